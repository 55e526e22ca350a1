"""Scheduling problems from plain numbers: a few tasks, who waits for whom, and which blocks of memory they share."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from tapescope.engine.planning.certain_memory import CertainBlock, CertainMemory
from tapescope.engine.planning.scheduling_problem import Blocks, Problem
from tapescope.inspector.graph.graph import Edge, Graph, Root, Task, TensorMeta
from tapescope.inspector.graph.kinds import Kind

Block = tuple[int, Sequence[int] | int | None, Sequence[int] | int | None]
"""Bytes, the task or tasks that make it (None: it is there from the start), and those that use it (None: it stays)."""


class PosedProblem(Problem):
    """A problem whose blocks are given instead of simulated. Its own levels are then the truth about its peak.

    The exact search and the lower bound read footprints, which it has none of: see `conftest.py`.
    """

    def __init__(
        self,
        graph: Graph,
        blocks: Iterable[Block],
        needs: Sequence[int] | None,
        needed: Iterable[int] | None,
        durations: Sequence[float] | None,
    ) -> None:
        super().__init__(graph, None, None if needed is None else list(needed), durations)
        runs = set(self.tasks)
        posed = [(nbytes, _as_tuple(makers), _as_tuple(users)) for nbytes, makers, users in blocks]
        posed = [each for each in posed if not each[1] or runs.intersection(each[1])]  # else nothing makes it
        makers = [tuple(task for task in makers if task in runs) for _, makers, _ in posed]
        users = [tuple(task for task in users if task in runs) for _, _, users in posed]
        self.blocks = Blocks([nbytes for nbytes, _, _ in posed], makers, users, [0] * len(graph))
        for task in self.tasks:
            made = sum(self.blocks.sizes[block] for block in self.blocks.made_by[task])
            self.blocks.needs[task] = made if needs is None else needs[task]

    def peak_bytes(self, order: Sequence[int]) -> int:
        return self.levels(order)[0]


@dataclass(slots=True)
class BlockState:
    """See `MemoryState`."""

    ran: int
    ready: int
    level: int
    holders: None = None


class BlockStates:
    """The states of a posed problem, one task apart: `MemoryStates` by its blocks."""

    def __init__(self, problem: PosedProblem) -> None:
        self._problem = problem
        self._awaits = [0] * len(problem.nexts)
        for task in problem.tasks:
            for later in problem.nexts[task]:
                self._awaits[later] |= 1 << task
        self._makers = [sum(1 << task for task in set(makers)) for makers in problem.blocks.makers]
        self._users = [sum(1 << task for task in set(users)) for users in problem.blocks.users]

    def start(self) -> BlockState:
        ready = sum(1 << task for task in self._problem.tasks if not self._awaits[task])
        return BlockState(0, ready, self._problem.start_bytes)

    def run(self, state: BlockState, task: int) -> tuple[BlockState, int]:
        problem, before, after = self._problem, state.ran, state.ran | 1 << task
        level, ready = state.level, state.ready ^ 1 << task
        for block in problem.blocks.made_by[task]:
            if not self._makers[block] & before:
                level += problem.blocks.sizes[block]
        for block in problem.blocks.used_by[task]:
            if not self._users[block] & ~after:
                level -= problem.blocks.sizes[block]
        for later in problem.nexts[task]:
            if not self._awaits[later] & ~after:
                ready |= 1 << later
        return BlockState(after, ready, level), max(state.level + problem.blocks.needs[task], level)

    def key(self, state: BlockState) -> object:
        return state.ran


def certain_blocks(problem: PosedProblem) -> CertainMemory:
    """`CertainMemoryReader` of a posed problem: its blocks that have one maker at most."""
    found = CertainMemory(problem.blocks.needs, [0] * len(problem.blocks.needs))
    for nbytes, makers, users in zip(problem.blocks.sizes, problem.blocks.makers, problem.blocks.users, strict=True):
        if len(makers) <= 1:
            found.blocks.append(CertainBlock(nbytes, makers, list(users), stays=not users))
    return found


def all_tame(problem: PosedProblem) -> SimpleNamespace:
    """`Commuting` of a posed problem, whose blocks are the same in every order."""
    count = len(problem.nexts)
    return SimpleNamespace(tame=[True] * count, rivals=[[] for _ in range(count)], loose=set(), ends_alike=True)


def graph_of(tasks: int, edges: Iterable[tuple[int, int]], leaves: Iterable[int] = ()) -> Graph:
    """A graph of this many tasks. An edge (a, b) says that b waits for a; `leaves` are AccumulateGrad tasks."""
    inputs, outputs = [0] * tasks, [0] * tasks
    found = []
    for task, next_task in sorted(edges):
        found.append(Edge(task, outputs[task], next_task, inputs[next_task]))
        outputs[task] += 1
        inputs[next_task] += 1
    meta = TensorMeta((1,), torch.float32, torch.device("cpu"))
    accumulate = set(leaves)
    made = tuple(
        Task(number, "AccumulateGrad", Kind.ACCUMULATE_GRAD, 2**64 - 1, (meta,), parameter=f"parameter{number}")
        if number in accumulate
        else Task(number, f"Made{number}Backward0", Kind.CPP, number, (meta,) * max(1, inputs[number]))
        for number in range(tasks)
    )
    return Graph(made, tuple(found), tuple(Root(task, 0) for task in range(tasks) if not inputs[task]))


def problem_of(
    tasks: int,
    edges: Iterable[tuple[int, int]],
    needs: Sequence[int] | None = None,
    blocks: Iterable[Block] = (),
    *,
    durations: Sequence[int] | None = None,
    leaves: Iterable[int] = (),
    needed: Iterable[int] | None = None,
) -> PosedProblem:
    """A problem of tasks 0 to `tasks` - 1.

    Args:
        tasks: how many there are.
        edges: (a, b): task b waits for task a.
        needs: bytes by which the level rises within each task; None: what the task makes.
        blocks: (bytes, makers, users).
        durations: ns of each task; None: 1 each.
        leaves: the tasks that are AccumulateGrad.
        needed: the tasks that run, with all that leads to them; None: all.
    """
    return PosedProblem(graph_of(tasks, edges, leaves), blocks, needs, needed, durations or [1] * tasks)


def _as_tuple(tasks: Sequence[int] | int | None) -> tuple[int, ...]:
    return () if tasks is None else (tasks,) if isinstance(tasks, int) else tuple(tasks)


def random_problem(tasks: int, seed: int, density: float = 0.3) -> PosedProblem:
    """Return a problem like those of backwards: tasks create outputs for waiting tasks, and free their saved
    tensors."""
    draw = random.Random(seed)
    edges = [(a, b) for b in range(tasks) for a in range(b) if draw.random() < density]
    blocks: list[Block] = []
    needs = []
    for task in range(tasks):
        takers = [b for a, b in edges if a == task]
        outputs = [draw.randint(0, 8) for _ in range(draw.randint(0, 2))]
        made = [
            (nbytes, task, draw.sample(takers, draw.randint(1, len(takers))) if takers else None) for nbytes in outputs
        ]
        blocks += made
        needs.append(sum(outputs) + draw.randint(0, 3))
        if draw.random() < 0.5:
            blocks.append((draw.randint(0, 8), None, task))
    return problem_of(tasks, edges, needs, blocks)


def is_legal(problem: PosedProblem, order: Sequence[int]) -> bool:
    """Return whether the order runs each task once, after the tasks that it waits for."""
    waits = list(problem.waits)
    for task in order:
        if waits[task]:
            return False
        for next_task in problem.nexts[task]:
            waits[next_task] -= 1
    return sorted(order) == list(problem.tasks)


def least_peak(problem: PosedProblem) -> int:
    """The least peak of any legal order, in the problem's own model: all sets of tasks that can have run are tried."""
    tasks, everything = list(problem.tasks), frozenset(problem.tasks)
    before = {task: {a for a in tasks if task in problem.nexts[a]} for task in tasks}
    best: dict[frozenset[int], tuple[int, int]] = {frozenset(): (problem.start_bytes, problem.start_bytes)}
    for _ in tasks:
        following: dict[frozenset[int], tuple[int, int]] = {}
        for ran, (peak, level) in best.items():
            for task in everything - ran:
                if before[task] <= ran:
                    now = ran | {task}
                    reached = max(peak, level + problem.blocks.needs[task])
                    if now not in following or reached < following[now][0]:
                        following[now] = (reached, _level(problem, now))
        best = following
    return best[everything][0] if tasks else problem.start_bytes


def _level(problem: PosedProblem, ran: frozenset[int]) -> int:
    """Bytes alive between two tasks, once these have run."""
    return sum(
        nbytes
        for nbytes, makers, users in zip(problem.blocks.sizes, problem.blocks.makers, problem.blocks.users, strict=True)
        if (not makers or not ran.isdisjoint(makers)) and not (users and ran.issuperset(users))
    )
