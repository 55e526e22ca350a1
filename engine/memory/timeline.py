"""Timeline of the memory of one backward: lifetimes and categories of storages, and the resulting levels."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import sub
from typing import TYPE_CHECKING, Literal

from ...inspector.graph.graph import Graph
from ..execution.accumulation_rule import PYTORCHS, Accumulation
from .baseline import Baseline
from .categories import Category, CategoryWalk
from .estimates import Direction, direction_of
from .lifetimes import Lifetimes, mean_level

if TYPE_CHECKING:
    from weakref import ref

    from torch import Tensor

    from ...inspector.graph.operations_and_calls import Operation, StoredOperation
    from ...inspector.graph.source_lines import Source

Basis = Literal["measured", "calibrated", "dry run"]
Listed = tuple[int, int, int, int]
"""A place, a storage, a task and an input number, see `Timeline.listed`."""

ON_CTX = "ctx."
"""The prefix of slots for tensors that a custom Function put on its `ctx`: "ctx.hidden"."""

REGION = "checkpointed region"
"""The slot of tensors that a region's nodes keep together: its inputs and other values for its recomputation."""

RANDOM_STATE = "random state"
"""The slot of the random state with which a checkpointed region is recomputed, kept by its nodes."""

RANDOM_STATES_ON_CTX = (f"{ON_CTX}fwd_cpu_state", f"{ON_CTX}fwd_device_states")
"""The slots of the random states of a reentrant checkpoint, on the ctx of its one node."""

LEAF = "leaf"
"""The slot in which an AccumulateGrad holds its leaf as long as the graph lives."""

GRADIENT_GRAPH = "graph of the gradients"
"""The slot of tensors kept by the graph that a backward builds (`create_graph=True`)."""

IN_TREE = "product of a sum"
"""The slot of saved tensors that nodes leave for one product of several (`batch=`), which its task computes."""


_DIRECTION_WORDS = {"at least": "at least", "at most": "at most", "unknown": "more or less"}


def lasts_with_graph(slot: str) -> bool:
    """Return whether a node keeps the tensor in this slot after it has run."""
    return slot == LEAF or slot.startswith(ON_CTX)


@dataclass(frozen=True, slots=True)
class Maker:
    """The origin of a storage.

    Attributes:
        task: the task of the backward that allocated it; None if it was allocated in the forward or before.
        operation: the operation of the forward that allocated it or, with a `task`, the one of which that task is the
            backward. None if no capture saw it.
        module: the path of the module in whose call this happened; "torch.utils.checkpoint" for the random states that
            checkpoints save, which no operation allocates.
        variable: the user's variable or attribute to which the forward assigned the result: `hidden`, `self.cache`; ""
            if there is none or it is not known.
    """

    task: int | None
    operation: Operation | StoredOperation | None
    module: str | None
    variable: str = ""

    @property
    def source(self) -> Source | None:
        """The user's line in the forward."""
        return None if self.operation is None else self.operation.source


@dataclass(frozen=True, slots=True)
class Keeper:
    """A holder that keeps a storage alive.

    Attributes:
        kind: "saved" in a slot of a task's node, from the forward until that task has run; "buffer", a gradient in the
            input buffer of a task; "grad", the .grad of a task's leaf; "list", the list of a task's input until the
            task runs; "consumed", a buffer or list that a task has consumed, until the backward ends
            (`release="never"`); "node", the node of a task as long as the graph lives: on the `ctx` of a custom
            Function, as the leaf of an AccumulateGrad, because it did not run (`inputs=`), or for the second
            derivative; "user", user code or a hook; "backward", the call of backward itself until it returns.
        task: the id of that task; None for "user" and "backward".
        slot: the node's name for it: "self", "result", "ctx.name"; "hidden" for tensors that torch does not show,
            "product of a sum" for tensors that earlier tasks left for `batch=`, "graph of the gradients" for tensors
            kept for the second derivative; for a list, the number of the input.
    """

    kind: Literal["saved", "buffer", "grad", "list", "consumed", "node", "user", "backward"]
    task: int | None = None
    slot: str | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage and its lifetime.

    Attributes:
        number: its number in the timeline.
        nbytes: its size, as requested from the allocator.
        category: its category at the end.
        made_by, kept_by: see `Maker` and `Keeper`; all keepers of its lifetime, saved slots first.
        born: the place in the order of the task that allocated it; -1 if it was allocated before the backward.
        died: the place of the task in which it was freed; `len(order)` if it was freed as backward() returned; None if
            it was alive at the end.
        born_ns, died_ns: nanoseconds since the start of the backward; None if the time was not recorded.
    """

    number: int
    nbytes: int
    category: Category
    made_by: Maker
    kept_by: tuple[Keeper, ...]
    born: int
    died: int | None
    born_ns: int | None
    died_ns: int | None


@dataclass(frozen=True, slots=True)
class BlockLevels:
    """The levels of a caching allocator by place, in bytes, for all memory on the device.

    The allocator rounds each request up to a block, and takes blocks from the larger segments that it reserves. Each
    number is the highest from the task's start to the next one's; the three maxima may be at different moments.

    Attributes:
        requested: the requested bytes. A block that another stream still uses counts until that stream is done.
        allocated: the bytes of blocks, as in torch.cuda.memory_allocated().
        reserved: the bytes of segments, as in torch.cuda.memory_reserved(), which other programs cannot use.
        peak_before: the highest `allocated` before the first task, since the user last reset that counter.
    """

    requested: array[int]
    allocated: array[int]
    reserved: array[int]
    peak_before: int

    @property
    def rounding(self) -> array[int]:
        """The bytes lost to rounding, by place; negative if another stream still uses freed blocks."""
        return array("q", map(sub, self.allocated, self.requested))

    @property
    def unused(self) -> array[int]:
        """The reserved bytes outside blocks, by place: cached for later, or too fragmented to be used."""
        return array("q", map(sub, self.reserved, self.allocated))

    @property
    def peak_allocated(self) -> int:
        """The value that torch.cuda.max_memory_allocated() would have if measuring had not reset it."""
        return max([self.peak_before, *self.allocated])


@dataclass(frozen=True, eq=False, repr=False)
class Consumers:
    """The tasks that consume the storages of a timeline. For the attributes see `Timeline`."""

    graph: Graph
    order: Sequence[int]
    accumulation: Accumulation
    inputs: array[int]
    listed: Sequence[tuple[int, int, int, int]]

    @cached_property
    def places(self) -> dict[int, int]:
        """The place of each task in the order."""
        return {task: place for place, task in enumerate(self.order)}

    @cached_property
    def lists(self) -> dict[int, list[tuple[int, str]]]:
        """The tasks and inputs in whose lists each storage is."""
        found: dict[int, list[tuple[int, str]]] = {}
        for _, number, task, given in self.listed:
            if (task, str(given)) not in found.setdefault(number, []):
                found[number].append((task, str(given)))
        return found

    @cached_property
    def buffers(self) -> dict[int, list[int]]:
        """The places of the tasks in whose input buffers each storage was when they ran."""
        found: dict[int, list[int]] = {}
        index = 0
        tasks = self.graph.tasks
        if not self.inputs:
            return found
        for place, task_id in enumerate(self.order):
            for _ in tasks[task_id].inputs:
                number = self.inputs[index]
                index += 1
                if number >= 0 and place not in found.setdefault(number, []):
                    found[number].append(place)
        return found

    def waited(self, number: int, born: int) -> list[int]:
        """Return the places of the tasks for which the storage, allocated at place `born`, waited. A list's sum did not
        wait."""
        places = self.buffers.get(number, [])
        if not self.accumulation.lists or not places:
            return places
        return [place for place in places if place != born]

    def of(self, number: int, born: int) -> list[int]:
        """Return the tasks that consumed the storage and still keep it, in order; none if it was freed."""
        if not self.accumulation.keeps:
            return []
        tasks = self.graph.tasks
        waited = [self.order[place] for place in self.waited(number, born)]
        lists = [task for task, _ in self.lists.get(number, ())]
        found = [task for task in dict.fromkeys([*waited, *lists]) if not tasks[task].is_leaf]
        return sorted(found, key=self.places.__getitem__)


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Lifetimes):
    """The memory of one device over one backward, measured or predicted: allocations and frees of storages in order.

    A level is the sum of the requested bytes of the storages that are alive and were allocated since just before the
    forward: older parameters, inputs and gradients are not counted. Storages are numbered in the order in which they
    are allocated; those alive before the first event come first.

    Attributes:
        graph, order: the graph, and the ids of its tasks in the order in which they ran.
        device: the device, "cpu" or "cuda:0".
        basis: "measured" on PyTorch's engine; predicted from a "calibrated" run, or from a "dry run" without any run.
        estimates: the reasons why a prediction is only an estimate, each an `Estimate` with its direction. Empty if
            nothing is known to be missing.
        unsure_bytes: in a prediction, the bytes of gradients in an unexpected layout, which may be copied.
        events: one number each: `n` for the allocation of storage n, `~n` for its free.
        starts: the index of each place's first event, and the end of the last place's. Earlier events belong to the
            forward, later events to the end of backward().
        nbytes: the size of each storage.
        born_as: the category of each storage when it was allocated.
        changes: (index of the event before which it happened, storage, category from then on), in order.
        before: the number of storages alive before the first event.
        makers: the makers of the storages allocated in the forward or before, which are the first ones. The others were
            allocated by the task at their place.
        saved: by storage, the (task, slot) pairs that keep it.
        held: the storages that are also held outside the graph: by user code, by a hook.
        grads: the storages that end as a .grad, with the id of the leaf's task.
        inputs: the storage in each input of each task's input buffer as it ran, by place and then by input; -1 if there
            is none or it is not known. Empty if not recorded.
        event_ns: the time of each event, in nanoseconds since the start of the backward. Empty if not recorded.
        task_ns: the start and end of each place's task, on the same clock. Empty if not recorded.
        blocks: the levels of the caching allocator; None if they were not measured, as on the CPU.
        accumulation: the rule by which gradients are summed, and when they are freed.
        listed: gradients that wait in lists: (place, storage, task, input), from the end of the task at that place
            until the named task runs.
        began_ns: the value of `time.perf_counter_ns` at the start of the backward; None if unknown, as from a file.
        is_of_step: whether it covers a whole training step, including the memory at its start and the optimizer's.
        event_places: the place of the task in whose thread each event happened, if each device had its own queue. Tasks
            then overlap, and `starts` and `task_peaks` reach from a task's start to that of the next one on any device.
            Empty if tasks ran one after the other.
        tensors: for each storage of the forward that user code kept holding, its address and weak references to the
            tensors, of any shape, that the forward's operations returned on it. Empty if not recorded.
        constant_bytes: bytes of saved tensors without a gradient that something outside the graph also holds, if no
            capture saw the forward: inputs, and constants that the forward may have allocated. They are not counted, so
            the true levels may be higher by up to this many bytes.
        baseline: the memory from before the forward, which no level counts; empty for a whole step, which counts it.
    """

    graph: Graph
    order: tuple[int, ...]
    device: str
    basis: Basis
    events: array[int]
    starts: array[int]
    nbytes: array[int]
    born_as: array[int]
    changes: Sequence[tuple[int, int, Category]] = ()
    before: int = 0
    makers: Sequence[Maker] = ()
    saved: Mapping[int, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    held: frozenset[int] = frozenset()
    grads: Mapping[int, int] = field(default_factory=dict)
    inputs: array[int] = field(default_factory=lambda: array("q"))
    event_ns: array[int] = field(default_factory=lambda: array("q"))
    estimates: tuple[str, ...] = ()
    blocks: BlockLevels | None = None
    accumulation: Accumulation = PYTORCHS
    listed: Sequence[Listed] = ()
    unsure_bytes: int = 0
    task_ns: array[int] = field(default_factory=lambda: array("q"))
    is_of_step: bool = False
    began_ns: int | None = None
    event_places: array[int] = field(default_factory=lambda: array("q"))
    tensors: Mapping[int, tuple[int, Sequence[ref[Tensor]]]] = field(default_factory=dict)
    constant_bytes: int = 0
    baseline: Baseline = field(default_factory=Baseline)

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", self.graph.for_result)

    def __repr__(self) -> str:
        kind = self.basis if self.basis == "measured" else f"predicted ({self.basis})"
        estimate = f", an estimate ({_DIRECTION_WORDS[self.direction]})" if self.direction else ""
        workspace = f", {self.workspace_share:.1%} of it workspace" if self.workspace_share else ""
        constants = f", without {self.constant_bytes:,} of saved inputs and constants" if self.constant_bytes else ""
        return f"<Timeline of {self.device}, {kind}{estimate}: peak {self.peak_bytes:,} bytes{workspace}{constants}>"

    @property
    def direction(self) -> Direction | None:
        """The direction of the true peak: "at least" or "at most" this one, or "unknown"; None if this is not an
        estimate."""
        return direction_of(self.estimates)

    @property
    def start_bytes(self) -> int:
        """The level when the backward starts."""
        return self.levels[self.starts[0]]

    @property
    def end_bytes(self) -> int:
        """The level when backward() has returned."""
        return self.levels[-1]

    @cached_property
    def peak_event(self) -> int:
        """The first index in `levels` at which the backward, without the forward, is at its highest level."""
        levels, start = self.levels, self.starts[0]
        highest = max(levels[start:])
        return levels.index(highest, start)

    @property
    def peak_bytes(self) -> int:
        """The highest level of the backward."""
        return self.levels[self.peak_event]

    @property
    def average_bytes(self) -> float | None:
        """The mean level from the start of the first task to the end of the last one, in which each level counts for as
        long as it lasted; None if no times were recorded, as in a prediction."""
        if not (self.event_ns and self.task_ns):
            return None
        return mean_level(self.levels, self.event_ns, self.task_ns[0], max(self.task_ns))

    @property
    def peak_with_baseline_bytes(self) -> int:
        """The peak plus the memory from before the forward."""
        return self.peak_bytes + self.baseline.nbytes

    @property
    def peak_place(self) -> int:
        """The place of the task in which the peak was reached; -1 if the backward started with it."""
        return self.place_of(self.peak_event - 1)

    @property
    def peak_task(self) -> int | None:
        """The id of that task; None if the backward started with its peak."""
        place = self.peak_place
        return self.order[place] if 0 <= place < len(self.order) else None

    @cached_property
    def workspace_share(self) -> float:
        """The share of workspace in the peak, from 0 to 1. It depends on kernels, threads and layouts."""
        event, place = self.peak_event, self.peak_place
        alive = (n for n in self.alive(event) if self.category_at(n, event, place) is Category.WORKSPACE)
        return sum(self.nbytes[number] for number in alive) / self.peak_bytes if self.peak_bytes else 0.0

    @cached_property
    def forward_peak_bytes(self) -> int | None:
        """The highest level of the forward; None if it was not recorded."""
        return None if self.before else max(self.levels[: self.starts[0] + 1])

    @cached_property
    def forward_ns(self) -> array[int]:
        """The time of each event of the forward, in nanoseconds since its first. Empty if not recorded.

        The time of tapescope's work between forward and backward is left out: a root's gradient is allocated as the
        forward ends.
        """
        clock = self.event_ns[: 0 if self.before else self.starts[0]]
        own = [event for event in range(len(clock)) if self.events[event] >= 0]
        own = [event for event in own if self.born_as[self.events[event]] != Category.BUFFER]
        if not own:
            return array("q")
        end = clock[own[-1]]
        return array("q", (min(ns, end) - clock[0] for ns in clock))

    @cached_property
    def task_peaks(self) -> array[int]:
        """The highest level of each place's task in bytes, including the level at its start."""
        levels, starts = self.levels, self.starts
        return array("q", (max(levels[starts[i] : starts[i + 1] + 1]) for i in range(len(self.order))))

    def place_of(self, event: int) -> int:
        """Return the place of the task during which an event happened; -1 before the first, `len(order)` after the
        last."""
        if self.event_places and 0 <= event < len(self.events):
            return self.event_places[event]
        return bisect_right(self.starts, event) - 1

    def category_at(self, number: int, event: int | None = None, place: int | None = None) -> Category:
        """Return the category of a storage just before this event; by default at the end.

        Args:
            number: the storage.
            event: the index of the event.
            place: the task's place, if several tasks have no event before it; by default the last of them.
        """
        category = Category(self.born_as[number])
        for index, since, changed in self.changes_of.get(number, ()):
            if event is None or index < event or (index == event and (place is None or since <= place)):
                category = changed
        return category

    @cached_property
    def changes_of(self) -> dict[int, list[tuple[int, int, Category]]]:
        """The changes of each storage: (index of the event before which it happened, place of its task, new category).

        Many tasks may run between two events: a leaf that stores a gradient as its .grad causes none.
        """
        found: dict[int, list[tuple[int, int, Category]]] = {}
        for event, number, category in self.changes:
            found.setdefault(number, []).append((event, _place_of_change(self, event, number, category), category))
        return found

    @cached_property
    def places(self) -> dict[int, int]:
        """The place of each task in the order."""
        return self._consumers.places

    @cached_property
    def category_levels(self) -> dict[Category, array[int]]:
        """The bytes of each category by place, at the moment of the task's highest level (`task_peaks`).

        They sum to `task_peaks`. Categories that never have bytes are left out.
        """
        changes = [
            (event, _place_of_change(self, event, number, category), number, category)
            for event, number, category in self.changes
        ]
        walk = CategoryWalk(self.events, self.nbytes, self.born_as, self.before, changes)
        columns = {category: array("q") for category in Category}
        for place, highest in enumerate(self.task_peaks):
            walk.go_to(self.levels.index(highest, self.starts[place]), place)
            for category, column in columns.items():
                column.append(walk.nbytes_of.get(category, 0))
        return {category: column for category, column in columns.items() if any(column)}

    def __iter__(self) -> Iterator[Storage]:
        return map(self.storage, range(len(self)))

    def storage(self, number: int) -> Storage:
        """Return the storage with this number.

        Raises:
            IndexError: If there is none.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"unknown storage {number}; this timeline has {len(self)}")
        birth, death = self.births[number], self.deaths.get(number)
        clock = self.event_ns
        return Storage(
            number,
            self.nbytes[number],
            self.category_at(number),
            self.maker(number),
            tuple(self.keepers(number)),
            self.place_of(birth),
            None if death is None else self.place_of(death),
            clock[birth] if clock and birth >= 0 else None,
            clock[death] if clock and death is not None else None,
        )

    def maker(self, number: int) -> Maker:
        """Return the maker of the storage."""
        if number < len(self.makers):
            return self.makers[number]
        place = self.place_of(self.births[number])
        if not 0 <= place < len(self.order):
            return Maker(None, None, None)
        task = self.graph.tasks[self.order[place]]
        return Maker(task.id, task.operation, self.graph.module(task))

    def keepers(self, number: int) -> Iterator[Keeper]:
        """Yield the keepers of the storage, in the order of time."""
        for task, slot in self.saved.get(number, ()):
            lasts = lasts_with_graph(slot) or slot == GRADIENT_GRAPH or task not in self.places
            yield Keeper("node" if lasts else "saved", task, slot)
        for task, slot in self._consumers.lists.get(number, ()):
            yield Keeper("list", task, slot)
        for place in self._consumers.buffers.get(number, ()):
            yield Keeper("buffer", self.order[place])
        for task in self.consumers(number):
            yield Keeper("consumed", task)
        if number in self.grads:
            yield Keeper("grad", self.grads[number])
        if number in self.held:
            yield Keeper("user")
        at_end = self.deaths.get(number, -1) >= self.starts[-1]
        if at_end and not self.consumers(number) and not self.is_of_step:
            yield Keeper("backward")

    def consumers(self, number: int) -> list[int]:
        """Return the tasks that consumed the storage and still keep it, in order; none if it was freed."""
        return self._consumers.of(number, self.place_of(self.births[number]))

    @cached_property
    def _consumers(self) -> Consumers:
        return Consumers(self.graph, self.order, self.accumulation, self.inputs, self.listed)


def _place_of_change(timeline: Timeline, event: int, number: int, category: Category) -> int:
    """Return the place of the task in which a storage's category changed."""
    leaf = timeline.grads.get(number, -1)
    if category is Category.GRADIENT and (place := timeline.places.get(leaf)) is not None:
        return place
    return bisect_left(timeline.starts, event) - 1
