"""Scheduling problems from plain numbers: a few tasks, who waits for whom, and which blocks of memory they share."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from tapehead.engine.schedule import Pending
from tapehead.inspector.graph import Edge, Graph, Root, Task, TensorMeta
from tapehead.inspector.kinds import Kind

Block = tuple[int, Sequence[int] | int | None, Sequence[int] | int | None]
"""Bytes, the task or tasks that make it (None: it is there from the start), and those that use it (None: it stays)."""


@dataclass
class FakeProblem:
    """What planners know of a backward, as `tapehead.engine.problem.Problem` has it, from given numbers."""

    graph: Graph
    tasks: list[int]
    nexts: list[list[int]]
    waits: list[int]
    needs: list[int]
    sizes: list[int]
    makers: list[tuple[int, ...]]
    users: list[tuple[int, ...]]
    made_by: list[list[int]]
    used_by: list[list[int]]
    certain: list[bool]
    start_bytes: int
    durations: list[int]
    ready: list[int] = field(default_factory=list)

    def start(self) -> list[int]:
        return list(self.ready)

    def levels(self, order: Sequence[int]) -> tuple[int, list[int]]:
        """The peak, and the highest level within each task of the order, in bytes."""
        made = {block for block, makers in enumerate(self.makers) if not makers}
        left = [len(users) for users in self.users]
        level, peaks = self.start_bytes, []
        for task in order:
            peaks.append(level + self.needs[task])
            for block in self.made_by[task]:
                if block not in made:
                    made.add(block)
                    level += self.sizes[block]
            for block in self.used_by[task]:
                left[block] -= 1
                if not left[block]:
                    level -= self.sizes[block]
        return max(peaks, default=level), peaks

    def peak_bytes(self, order: Sequence[int]) -> int:
        return self.levels(order)[0]


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
) -> FakeProblem:
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
    graph = graph_of(tasks, edges, leaves)
    run = sorted(range(tasks) if needed is None else needed)
    runs = set(run)
    nexts: list[list[int]] = [[] for _ in range(tasks)]
    waits = [0] * tasks
    for task, next_task in dict.fromkeys((edge.task, edge.next_task) for edge in graph.edges):
        if task in runs and next_task in runs:
            nexts[task].append(next_task)
            waits[next_task] += 1
    problem = FakeProblem(
        graph,
        run,
        nexts,
        waits,
        [0] * tasks,
        [],
        [],
        [],
        [[] for _ in range(tasks)],
        [[] for _ in range(tasks)],
        [],
        0,
        list(durations) if durations is not None else [1] * tasks,
        Pending(graph, runs).start(),
    )
    for nbytes, made_by, used_by in blocks:
        makers = _as_tuple(made_by, runs)
        if made_by is not None and not makers:
            continue  # what makes it does not run
        users = _as_tuple(used_by, runs)
        block = len(problem.sizes)
        problem.sizes.append(nbytes)
        problem.makers.append(makers)
        problem.users.append(users)
        problem.certain.append(len(makers) <= 1)
        if not makers:
            problem.start_bytes += nbytes
        for task in makers:
            problem.made_by[task].append(block)
        for task in users:
            problem.used_by[task].append(block)
    for task in run:
        made = sum(problem.sizes[block] for block in problem.made_by[task])
        problem.needs[task] = made if needs is None else needs[task]
    return problem


def _as_tuple(tasks: Sequence[int] | int | None, runs: set[int]) -> tuple[int, ...]:
    given = () if tasks is None else (tasks,) if isinstance(tasks, int) else tuple(tasks)
    return tuple(task for task in given if task in runs)


def random_problem(tasks: int, seed: int, density: float = 0.3) -> FakeProblem:
    """As backwards pose them: tasks make outputs for those that wait for them, and let go of what they saved."""
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


def is_legal(problem: FakeProblem, order: Sequence[int]) -> bool:
    """Whether it runs each task once, and none before what it waits for."""
    waits = list(problem.waits)
    for task in order:
        if waits[task]:
            return False
        for next_task in problem.nexts[task]:
            waits[next_task] -= 1
    return sorted(order) == list(problem.tasks)


def least_peak(problem: FakeProblem) -> int:
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
                    reached = max(peak, level + problem.needs[task])
                    if now not in following or reached < following[now][0]:
                        following[now] = (reached, _level(problem, now))
        best = following
    return best[everything][0] if tasks else problem.start_bytes


def _level(problem: FakeProblem, ran: frozenset[int]) -> int:
    """Bytes alive between two tasks, once these have run."""
    return sum(
        nbytes
        for nbytes, makers, users in zip(problem.sizes, problem.makers, problem.users, strict=True)
        if (not makers or not ran.isdisjoint(makers)) and not (users and ran.issuperset(users))
    )
