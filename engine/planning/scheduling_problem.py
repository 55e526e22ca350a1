"""A backward as a scheduling problem: dependencies between tasks, and the memory alive between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from ...inspector.graph.graph import Graph
from ..memory.dry_run import dry_run
from ..memory.task_memory import Footprints
from ..memory.task_outputs import of_shapes
from ..memory.timeline import Timeline
from ..schedule.fsdp_stages import stage_edges
from ..schedule.greedy_order import allowed, heap_order, stages

_NS_PER_TASK = 5_000  # the time of the engine and a kernel launch, independent of size
_BYTES_PER_NS = 10  # memory bandwidth of a core
_FOREVER: tuple[int, ...] = ()


class Problem:
    """A backward as planners see it. Lists are indexed by task id; entries of tasks that do not run are empty.

    Memory consists of blocks, each alive from the first of its makers until the last of its users has ended. Blocks are
    derived from the simulation of HEAP's order, and are exact for that order. In another order levels can differ if
    several gradients are summed, because the first one decides on which block the sum is. The exact result is
    `peak_bytes`, which simulates the order.

    Attributes:
        graph: the graph.
        needed: the tasks that run; None: all.
        keep_graph: whether the backward retains the graph; None: as in the run that gave the footprints.
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
        """For each task, its successors in the order of its outputs, then those of the next `fully_shard` stage."""
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
        """For each task, the number of its predecessors."""
        counts = [0] * len(self.graph)
        for tasks in self.nexts:
            for task in tasks:
                counts[task] += 1
        return counts

    def start(self) -> list[int]:
        """Return the tasks that are ready at the start, in the order in which the engine finds them."""
        return allowed(self.graph, self.needed).start()

    @cached_property
    def footprints(self) -> Footprints:
        """The allocations of the tasks: as passed, or from a dry run.

        Raises:
            ValueError: a dry run is not possible any more, because tasks have run.
        """
        if self._footprints is None and not self._may_ask:
            raise ValueError(
                "this policy plans by memory, which cannot be predicted after tasks have run: start with it, or set "
                "session.footprints to those of a measured run before"
            )
        if self.graph.is_tape and (self._footprints is None or self._footprints.basis == "dry run"):
            return of_shapes(self.graph)  # planners assume that sums follow PyTorch's rule
        return self._footprints or dry_run(self.graph, names_hooks=self._names_hooks)

    @property
    def has_footprints(self) -> bool:
        """True if footprints were passed."""
        return self._footprints is not None

    @property
    def knows_memory(self) -> bool:
        """True if the footprints exist, so that no dry run is needed."""
        return self._footprints is not None or "footprints" in vars(self)

    def timeline(self, order: Sequence[int]) -> Timeline:
        """Simulate the memory of an order."""
        from ..memory.simulation import simulated

        return simulated(self.footprints.graph, order, self.footprints, self.keep_graph)

    def peak_bytes(self, order: Sequence[int]) -> int:
        """Simulate an order and return its highest level."""
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

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks of memory, from a simulation of HEAP's order."""
        return Blocks.of(self)

    @cached_property
    def start_bytes(self) -> int:
        """The level before the first task."""
        return sum(size for size, makers in zip(self.blocks.sizes, self.blocks.makers, strict=True) if not makers)

    @cached_property
    def durations(self) -> list[float]:
        """The time of each task in nanoseconds: as passed, or estimated from the bytes of gradients and saved tensors.

        The estimate is 5 µs per task plus 10 bytes per nanosecond. It ranks tasks on one machine and is not a time.
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
        """Return the peak of an order by these blocks, and the highest level in each task. O(tasks + blocks)."""
        blocks = self.blocks
        sizes, needs, made_by, used_by = blocks.sizes, blocks.needs, blocks.made_by, blocks.used_by
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


@dataclass(slots=True)
class Blocks:
    """The blocks of memory of a backward.

    Attributes:
        sizes: the bytes of each block.
        makers: for each block, the tasks of which the first to run allocates it; () if it exists from the start.
        users: for each block, the tasks after the last of which it is freed; () if it stays.
        needs: for each task, the bytes by which the level rises within it, at most.
        made_by, used_by: for each task, the blocks of which it is a maker, and a user.
    """

    sizes: list[int]
    makers: list[tuple[int, ...]]
    users: list[tuple[int, ...]]
    needs: list[int]
    made_by: list[list[int]] = field(init=False)
    used_by: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.made_by: list[list[int]] = [[] for _ in self.needs]
        self.used_by: list[list[int]] = [[] for _ in self.needs]
        for found, tasks_of in ((self.made_by, self.makers), (self.used_by, self.users)):
            for block, tasks in enumerate(tasks_of):
                for task in tasks:
                    found[task].append(block)

    @staticmethod
    def of(problem: Problem) -> Blocks:
        """Return the makers and users of each storage, from a simulation of HEAP's order."""
        graph, timeline = problem.graph, problem.heap_timeline
        count, order = len(timeline.nbytes), timeline.order
        place_of = timeline.places
        born = [-1] * count
        died = [len(order)] * count
        needs = [0] * len(graph)
        events, starts, levels, nbytes = timeline.events, timeline.starts, timeline.levels, timeline.nbytes
        for place, task in enumerate(order):
            first, end = starts[place], starts[place + 1]
            if first < end:
                needs[task] = max(levels[first : end + 1]) - levels[first]
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
                if (
                    len(waits[place]) > 1 and makers[storage] == givers[:1]
                ):  # otherwise it is a sum, allocated with the second
                    makers[storage] = givers
        for storage, keepers in timeline.saved.items():
            for task, _ in keepers:
                users[storage][task] = None
        ran = place_of.keys()
        sizes, makers_of, users_of = list[int](), list[tuple[int, ...]](), list[tuple[int, ...]]()
        for storage in range(count):
            if born[storage] == died[storage] and born[storage] >= 0:
                continue  # workspace, or added to another block at once
            ends = died[storage]
            last = _FOREVER
            if ends < len(order):
                users[storage][order[ends]] = None
                last = tuple(task for task in users[storage] if task in ran)
            sizes.append(nbytes[storage])
            makers_of.append(makers[storage])
            users_of.append(last)
        return Blocks(sizes, makers_of, users_of, needs)


def _arrivals(graph: Graph) -> list[list[int]]:
    """Return, for each input of all tasks, the tasks whose gradients arrive there; -1 for the caller of backward()."""
    first = list(accumulate([len(task.inputs) for task in graph.tasks], initial=0))
    found: list[list[int]] = [[] for _ in range(first[-1])]
    for edge in graph.edges:
        found[first[edge.next_task] + edge.input].append(edge.task)
    for root in graph.roots:
        found[first[root.task] + root.input].append(-1)
    return found
