"""A backward as a scheduling problem: which task waits for which, and what memory lives between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from ...inspector.graph.graph import Graph
from ..memory.dry_run import dry_run
from ..memory.task_memory import Footprints
from ..memory.task_outputs import of_shapes
from ..memory.timeline import Timeline
from ..schedule.fsdp_stages import stage_edges
from ..schedule.greedy_order import allowed, heap_order, stages

if TYPE_CHECKING:
    pass

_NS_PER_TASK = 5_000  # what the engine and a kernel's launch take, whatever the size
_BYTES_PER_NS = 10  # what a core reads and writes
_FOREVER: tuple[int, ...] = ()


class Problem:
    """What a planner knows of a backward. Lists are by task id; tasks that do not run have nothing in them.

    Memory is told in blocks, each alive from the first of its makers until the last of its users has ended. This is
    read off the simulation of HEAP's order, so for that order the levels are the simulation's. In another order they
    may differ where several gradients are summed: which comes first decides on whose block that is. What counts in the
    end is `peak_bytes`, which simulates.

    Attributes:
        graph: the graph.
        needed: the tasks that run; None: all.
        keep_graph: whether the backward frees nothing that is saved; None: as in the run from which the footprints are.
    """

    def __init__(
        self,
        graph: Graph,
        footprints: Footprints | None = None,
        needed: Collection[int] | None = None,
        durations: Mapping[int, float] | Sequence[float] | None = None,
        *,
        keep_graph: bool | None = None,
        may_ask: bool = True,
        names_hooks: bool = True,
    ) -> None:
        self.graph = graph
        self.needed = None if needed is None else frozenset(needed)
        self._footprints = footprints
        self._measured = durations
        self.keep_graph = keep_graph
        self._may_ask = may_ask
        self._names_hooks = names_hooks

    @cached_property
    def tasks(self) -> Sequence[int]:
        """The ids of the tasks that run, ascending."""
        return range(len(self.graph)) if self.needed is None else sorted(self.needed)

    @cached_property
    def nexts(self) -> list[list[int]]:
        """By task those that wait for it, each once, in the order of its outputs; then those of the stage to come."""
        found = [list(dict.fromkeys(edge.next_task for edge in edges)) for edges in self.graph.out_edges]
        if (runs := self.needed) is not None:
            found = [
                [task for task in tasks if task in runs] if task_id in runs else []
                for task_id, tasks in enumerate(found)
            ]
        if (numbers := stages(self.graph, self.needed)) is not None:
            for task, later in stage_edges(numbers, found):
                found[task].append(later)
        return found

    @cached_property
    def waits(self) -> list[int]:
        """By task for how many others it waits."""
        counts = [0] * len(self.graph)
        for tasks in self.nexts:
            for task in tasks:
                counts[task] += 1
        return counts

    def start(self) -> list[int]:
        """The tasks that are ready at once, in the order in which the engine gets them."""
        return allowed(self.graph, self.needed).start()

    @cached_property
    def footprints(self) -> Footprints:
        """What the tasks allocate: as given, else by a dry run.

        Raises:
            ValueError: it is too late for one.
        """
        if self._footprints is None and not self._may_ask:
            raise ValueError(
                "this policy plans by memory, of which nothing is known once tasks have run: begin with it, or set "
                "session.footprints to those of a measured run before"
            )
        if self.graph.is_tape and (self._footprints is None or self._footprints.basis == "dry run"):
            return of_shapes(self.graph)  # what planners know of sums is PyTorch's rule
        return self._footprints or dry_run(self.graph, names_hooks=self._names_hooks)

    @property
    def given(self) -> bool:
        """Whether footprints were given."""
        return self._footprints is not None

    @property
    def knows_memory(self) -> bool:
        """Whether the footprints are at hand, so that no dry run is to come."""
        return self._footprints is not None or "footprints" in vars(self)

    def timeline(self, order: Sequence[int]) -> Timeline:
        """The memory in this order, simulated."""
        from ..memory.simulation import simulated

        return simulated(self.footprints.graph, order, self.footprints, self.keep_graph)

    def peak_bytes(self, order: Sequence[int]) -> int:
        """The highest level in this order, simulated."""
        own = list(order) == self.heap_order  # in a chain all orders are
        return (self.heap_timeline if own else self.timeline(order)).peak_bytes

    @cached_property
    def heap_order(self) -> list[int]:
        """PyTorch's own order."""
        return heap_order(self.graph, self.needed)

    @cached_property
    def heap_timeline(self) -> Timeline:
        """PyTorch's own memory."""
        return self.timeline(self.heap_order)

    @property
    def sizes(self) -> list[int]:
        """The bytes of each block."""
        return self._blocks.sizes

    @property
    def makers(self) -> list[tuple[int, ...]]:
        """By block the tasks of which the first to run makes it; () if it is there from the start."""
        return self._blocks.makers

    @property
    def users(self) -> list[tuple[int, ...]]:
        """By block the tasks after the last of which it is gone; () if it stays."""
        return self._blocks.users

    @property
    def needs(self) -> list[int]:
        """By task the bytes by which the level rises at its highest moment, over the level before it."""
        return self._blocks.needs

    @cached_property
    def made_by(self) -> list[list[int]]:
        """By task the blocks of which it is a maker."""
        return self._by_task(self.makers)

    @cached_property
    def used_by(self) -> list[list[int]]:
        """By task the blocks of which it is a user."""
        return self._by_task(self.users)

    @cached_property
    def start_bytes(self) -> int:
        """The level before the first task."""
        return sum(size for size, makers in zip(self.sizes, self.makers, strict=True) if not makers)

    def _by_task(self, tasks_of: list[tuple[int, ...]]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(len(self.graph))]
        for block, tasks in enumerate(tasks_of):
            for task in tasks:
                found[task].append(block)
        return found

    @cached_property
    def durations(self) -> list[float]:
        """Nanoseconds by task: as given; where nothing is, a guess by the bytes of its gradients and of what it saved.

        The guess is 5 µs a task and 10 bytes a nanosecond: it ranks tasks on one machine, and says no time.
        """
        tasks = self.graph.tasks
        touched = [sum(meta.nbytes or 0 for meta in task.inputs) for task in tasks]
        for edge in self.graph.edges:
            touched[edge.task] += self.graph.tasks[edge.next_task].inputs[edge.input].nbytes or 0
        guessed = [_NS_PER_TASK + nbytes / _BYTES_PER_NS for nbytes in touched]
        if self._measured is None:
            return guessed
        known = self._measured if isinstance(self._measured, Mapping) else dict(enumerate(self._measured))
        return [known.get(task_id, guess) for task_id, guess in enumerate(guessed)]

    def levels(self, order: Sequence[int]) -> tuple[int, list[int]]:
        """The peak by these blocks, and the highest level in each task, by place. O(tasks + blocks)."""
        blocks = self._blocks
        sizes, needs, made_by, used_by = blocks.sizes, blocks.needs, self.made_by, self.used_by
        left = list(map(len, blocks.users))
        made = [not makers for makers in blocks.makers]
        level = self.start_bytes
        peaks = []
        for task in order:
            peaks.append(level + needs[task])
            for block in made_by[task]:
                if not made[block]:
                    made[block] = True
                    level += sizes[block]
            for block in used_by[task]:
                left[block] -= 1
                if not left[block]:
                    level -= sizes[block]
        return max([self.start_bytes, *peaks, level]), peaks

    @cached_property
    def _blocks(self) -> _Blocks:
        return _Blocks(self)


class _Blocks:
    """What a simulation of HEAP's order shows of who makes and who uses each storage."""

    def __init__(self, problem: Problem) -> None:
        graph, timeline = problem.graph, problem.heap_timeline
        count, order = len(timeline.nbytes), timeline.order
        place_of = timeline.places
        born = [-1] * count
        died = [len(order)] * count
        self.needs = [0] * len(graph)
        events, starts, levels, nbytes = timeline.events, timeline.starts, timeline.levels, timeline.nbytes
        for place, task in enumerate(order):
            first, end = starts[place], starts[place + 1]
            if first < end:
                self.needs[task] = max(levels[first : end + 1]) - levels[first]
                for number in events[first:end]:
                    if number >= 0:
                        born[number] = place
                    else:
                        died[~number] = place
        users: list[dict[int, None]] = [{} for _ in range(count)]
        waits = _arrivals(graph)
        first_input = list(accumulate([len(task.inputs) for task in graph.tasks], initial=0))
        makers: list[tuple[int, ...]] = [() if place < 0 else (order[place],) for place in born]
        producers = [sorted(tasks - {-1}, key=lambda task: place_of.get(task, len(order))) for tasks in map(set, waits)]
        index = 0
        for task in order:
            for place in range(first_input[task], first_input[task + 1]):
                storage = timeline.inputs[index]
                index += 1
                if storage < 0:
                    continue
                users[storage][task] = None
                givers = tuple(producers[place])
                if len(waits[place]) > 1 and makers[storage] == givers[:1]:  # else it is a sum, made with the second
                    makers[storage] = givers
        for storage, keepers in timeline.saved.items():
            for task, _ in keepers:
                users[storage][task] = None
        ran = place_of.keys()
        self.sizes: list[int] = []
        self.makers: list[tuple[int, ...]] = []
        self.users: list[tuple[int, ...]] = []
        for storage in range(count):
            if born[storage] == died[storage] and born[storage] >= 0:
                continue  # workspace, and what was added to another's block at once
            ends = died[storage]
            last = _FOREVER
            if ends < len(order):
                users[storage][order[ends]] = None
                last = tuple(task for task in users[storage] if task in ran)
            self.sizes.append(nbytes[storage])
            self.makers.append(makers[storage])
            self.users.append(last)


def _arrivals(graph: Graph) -> list[list[int]]:
    """By input, counted through all tasks, the tasks whose gradients come there; -1: the caller's."""
    first = list(accumulate([len(task.inputs) for task in graph.tasks], initial=0))
    found: list[list[int]] = [[] for _ in range(first[-1])]
    for edge in graph.edges:
        found[first[edge.next_task] + edge.input].append(edge.task)
    for root in graph.roots:
        found[first[root.task] + root.input].append(-1)
    return found
