"""Memory over one backward: which storage was born and freed when, what it was for, and what level that makes."""

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
from .estimates import Direction, direction_of
from .lifetimes import Category, CategoryWalk, Lifetimes

if TYPE_CHECKING:
    from weakref import ref

    from torch import Tensor

    from ...inspector.graph.capture_records import Operation, StoredOperation
    from ...inspector.graph.source_lines import Source

Basis = Literal["measured", "calibrated", "dry run"]
Listed = tuple[int, int, int, int]
"""A place, a storage, a task and an input number, see `Timeline.listed`."""

ON_CTX = "ctx."
"""How the slots begin of what a custom Function put on its `ctx`: "ctx.hidden"."""

REGION = "checkpointed region"
"""The slot of what the nodes of such a region keep together: its inputs, and what else computes it again."""

RANDOM_STATE = "random state"
"""The slot of the random state with which a checkpointed region is computed again, kept by its nodes."""

RANDOM_STATES_ON_CTX = (f"{ON_CTX}fwd_cpu_state", f"{ON_CTX}fwd_device_states")
"""The slots of the random states of a reentrant checkpoint, which its one node has on its ctx."""

LEAF = "leaf"
"""The slot in which an AccumulateGrad has its leaf, as long as there is the graph."""

GRADIENT_GRAPH = "graph of the gradients"
"""The slot of what the graph keeps that a backward makes of itself (`create_graph=True`)."""

IN_TREE = "product of a sum"
"""The slot of what nodes had saved and left behind for one product of several (`batch=`), which its task makes."""


_DIRECTION_WORDS = {"at least": "at least", "at most": "at most", "unknown": "more or less"}


def lasts_with_graph(slot: str) -> bool:
    """Whether a node keeps the tensor in this slot after it has run."""
    return slot == LEAF or slot.startswith(ON_CTX)


@dataclass(frozen=True, slots=True)
class Maker:
    """What made a storage.

    Attributes:
        task: the task of the backward in which it was made; None: it was made in the forward, or before.
        operation: the operation of the forward that made it, or, if `task` is given, the one which that task is the
            backward of. None where no capture saw it.
        module: the path of the module in whose call this happened; "torch.utils.checkpoint" of the random states that
            checkpoints save, which no operation makes.
        variable: the variable or attribute of the user's to which the forward assigned it as it was made: `hidden`,
            `self.cache`; "" where it was assigned to none, or this is not known.
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
    """What kept a storage alive.

    Attributes:
        kind: "saved" in a slot of a task's node, from the forward until that task has run; "buffer", a gradient in the
            input buffer of a task; "grad", the .grad of the leaf of a task; "list", the list of an input of a task,
            until that runs; "consumed", a buffer or a list that a task has consumed, until the backward ends
            (`release="never"`); "node", the node of a task as long as there is the graph: on the `ctx` of a custom
            Function, the leaf of an AccumulateGrad, since it did not run (`inputs=`), or for the second derivative;
            "user", the user's own code or a hook; "backward", the call of backward itself, until its end.
        task: the id of that task; None for "user" and "backward".
        slot: what the node calls it: "self", "result", "ctx.name"; "hidden" is the slot of what torch does not show,
            "product of a sum" of what tasks before it left behind for `batch=`, "graph of the gradients" of what is
            kept for the second derivative; of a list the number of the input.
    """

    kind: Literal["saved", "buffer", "grad", "list", "consumed", "node", "user", "backward"]
    task: int | None = None
    slot: str | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage and its life.

    Attributes:
        number: counts the storages of one timeline.
        nbytes: its size, as requested from the allocator.
        category: what it was in the end.
        made_by, kept_by: see `Maker` and `Keeper`; the keepers of its whole life, saved slots first.
        born: the place, in the order, of the task in which it was born; -1: before the backward.
        died: that of the task in which it was freed; None: it was alive at the end. `len(order)`: as backward returned.
        born_ns, died_ns: nanoseconds since the start of the backward; None where the clock was not recorded.
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
    """What a caching allocator made of what was asked of it, by place: bytes of all that was on the device.

    It rounds each request up to a block, and cuts blocks out of the larger segments that it holds of the device. Each
    number is the highest while the task ran, and until the next one started; they need not have been so high at one
    moment.

    Attributes:
        requested: what was asked for. A block which another stream still uses counts until that has ended.
        allocated: the blocks. What torch.cuda.memory_allocated() says.
        reserved: the segments. What torch.cuda.memory_reserved() says, and other programs can't have.
        peak_before: the highest `allocated` before the first task started, since the user last reset that counter.
    """

    requested: array[int]
    allocated: array[int]
    reserved: array[int]
    peak_before: int

    @property
    def rounding(self) -> array[int]:
        """By place what the blocks are larger than was asked for; below 0 where another stream uses what was freed."""
        return array("q", map(sub, self.allocated, self.requested))

    @property
    def unused(self) -> array[int]:
        """By place what was reserved and in no block: kept for later, or too scattered to be of use."""
        return array("q", map(sub, self.reserved, self.allocated))

    @property
    def peak_allocated(self) -> int:
        """What torch.cuda.max_memory_allocated() would say if measuring had not reset it."""
        return max([self.peak_before, *self.allocated])


@dataclass(frozen=True, eq=False, repr=False)
class Consumers:
    """Who takes the storages of a timeline. What its attributes mean is told there, see `Timeline`."""

    graph: Graph
    order: Sequence[int]
    accumulation: Accumulation
    inputs: array[int]
    listed: Sequence[tuple[int, int, int, int]]

    @cached_property
    def places(self) -> dict[int, int]:
        """By task its place in the order."""
        return {task: place for place, task in enumerate(self.order)}

    @cached_property
    def lists(self) -> dict[int, list[tuple[int, str]]]:
        """By storage the tasks in whose lists it is, and of which input."""
        found: dict[int, list[tuple[int, str]]] = {}
        for _, number, task, given in self.listed:
            if (task, str(given)) not in found.setdefault(number, []):
                found[number].append((task, str(given)))
        return found

    @cached_property
    def buffers(self) -> dict[int, list[int]]:
        """By storage the places of the tasks in whose input buffers it was when they ran."""
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
        """The places of the tasks for which the storage, born at that place, had waited; the sum of a list had not."""
        places = self.buffers.get(number, [])
        if not self.accumulation.lists or not places:
            return places
        return [place for place in places if place != born]

    def of(self, number: int, born: int) -> list[int]:
        """The tasks that have consumed the storage and go on keeping it, in order; none where that is let go."""
        if not self.accumulation.keeps:
            return []
        tasks = self.graph.tasks
        waited = [self.order[place] for place in self.waited(number, born)]
        lists = [task for task, _ in self.lists.get(number, ())]
        found = [task for task in dict.fromkeys([*waited, *lists]) if not tasks[task].is_leaf]
        return sorted(found, key=self.places.__getitem__)


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Lifetimes):
    """The memory of one device over one backward, measured or predicted: births and deaths of storages in order.

    A level is the sum of the bytes requested for the storages that are alive and were made since just before the
    forward: parameters, inputs and gradients that were there earlier are not counted. Storages are numbered in order of
    birth; those alive before the first event come first.

    Attributes:
        graph, order: the graph, and the ids of its tasks in the order in which they ran.
        device: whose memory it is, "cpu" or "cuda:0".
        basis: "measured" on PyTorch's engine; predicted from one "calibrated" run, or from a "dry run" without any.
        estimates: why a prediction is an estimate only, in sentences, each an `Estimate` with its direction. Empty:
            nothing is known to be missing.
        unsure_bytes: of a prediction, the gradients that come in another layout than was seen, and may be copied.
        events: one number each: `n` for the birth of storage n, `~n` for its death.
        starts: the index of the first event of each place, and the end of the last one. Events before belong to the
            forward, events after to what backward() does at its end.
        nbytes: by storage.
        born_as: by storage, its category at birth.
        changes: (index of the event before which it happened, storage, category from then on), in order.
        before: how many storages are alive before the first event.
        makers: of the storages made in the forward or before, which are the first. The others were made by the task at
            the place of their birth.
        saved: by storage, the (task, slot) pairs that keep it.
        held: the storages which something else keeps, too: the user's code, a hook.
        grads: the storages that end as a .grad, with the id of the leaf's task.
        inputs: the storage in each input of each task's input buffer as it ran, by place and then by input; -1 where
            there was none or it is not known. Empty: not recorded.
        event_ns: when each event happened, nanoseconds since the start of the backward. Empty: not recorded.
        task_ns: by place when the task started, and when it ended, on the same clock. Empty: not recorded.
        blocks: what the allocator took of the device for all this; None where it was not measured, as on the CPU.
        accumulation: how gradients are summed, and when they are let go.
        listed: what waits in lists of several gradients: (place, storage, task, input), from the end of the task at
            that place until this one runs.
        began_ns: what `time.perf_counter_ns` said at the start of the backward; None: not known, as of one from a file.
        is_of_step: whether it is of a whole training step: what is there as the step begins and what the optimizer
            makes are in it, too.
        event_places: by event the place of the task in whose thread it happened, where each device had a queue of its
            own: tasks overlap then, and `starts` and `task_peaks` go from a task's start to that of the next one on any
            device. Empty: one came after the other.
        tensors: for each storage of the forward that the user's code went on holding, its address and weak references
            to the tensors, of any shape, that the forward's operations returned on it. Empty: not recorded.
        constant_bytes: tensors without a gradient that nodes saved and something else holds, where no capture saw the
            forward: inputs, and constants that the forward may have made. They are not counted, so the true levels may
            be higher by up to as much.
        baseline: what was there before the forward, which no level counts; empty of a whole step, where it counts.
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
        """Where the true peak is: "at least" this one, "at most" this one, or "unknown"; None: it is no estimate."""
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
        """The first index in `levels` at which the backward, forward left out, is at its highest level."""
        levels, start = self.levels, self.starts[0]
        highest = max(levels[start:])
        return levels.index(highest, start)

    @property
    def peak_bytes(self) -> int:
        """The highest level of the backward."""
        return self.levels[self.peak_event]

    @property
    def peak_with_baseline_bytes(self) -> int:
        """The peak, and what was there before the forward."""
        return self.peak_bytes + self.baseline.nbytes

    @property
    def peak_place(self) -> int:
        """The place of the task in which the peak was reached; -1: the backward started with it."""
        return self.place_of(self.peak_event - 1)

    @property
    def peak_task(self) -> int | None:
        """The id of that task; None if the backward started with its peak."""
        place = self.peak_place
        return self.order[place] if 0 <= place < len(self.order) else None

    @cached_property
    def workspace_share(self) -> float:
        """How much of the peak is workspace, from 0 to 1: what depends on kernels, threads and layouts."""
        event, place = self.peak_event, self.peak_place
        alive = (n for n in self.alive(event) if self.category_at(n, event, place) is Category.WORKSPACE)
        return sum(self.nbytes[number] for number in alive) / self.peak_bytes if self.peak_bytes else 0.0

    @cached_property
    def forward_peak_bytes(self) -> int | None:
        """The highest level of the forward; None where it was not recorded."""
        return None if self.before else max(self.levels[: self.starts[0] + 1])

    @cached_property
    def forward_ns(self) -> array[int]:
        """When each event of the forward happened, nanoseconds since its first. Empty: not recorded.

        What tapescope does between forward and backward takes no time: a root's gradient is made as the forward ends.
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
        """By place the highest level while the task ran, in bytes, the level at its start included."""
        levels, starts = self.levels, self.starts
        return array("q", (max(levels[starts[i] : starts[i + 1] + 1]) for i in range(len(self.order))))

    def place_of(self, event: int) -> int:
        """The place of the task during which an event happened; -1: before; `len(order)`: after the last one."""
        if self.event_places and 0 <= event < len(self.events):
            return self.event_places[event]
        return bisect_right(self.starts, event) - 1

    def category_at(self, number: int, event: int | None = None, place: int | None = None) -> Category:
        """What a storage was for just before this event; by default at the end.

        `place`: of which task, where several have no event of their own; by default of the last of them.
        """
        category = Category(self.born_as[number])
        for index, since, changed in self.changes_of.get(number, ()):
            if event is None or index < event or (index == event and (place is None or since <= place)):
                category = changed
        return category

    @cached_property
    def changes_of(self) -> dict[int, list[tuple[int, int, Category]]]:
        """By storage its changes: (index of the event before which it happened, place of its task, new category).

        Between two events many tasks may run: a leaf takes a gradient for its .grad without any.
        """
        found: dict[int, list[tuple[int, int, Category]]] = {}
        for event, number, category in self.changes:
            found.setdefault(number, []).append((event, _place_of_change(self, event, number, category), category))
        return found

    @cached_property
    def places(self) -> dict[int, int]:
        """By task its place in the order."""
        return self._consumers.places

    @cached_property
    def category_levels(self) -> dict[Category, array[int]]:
        """By category its bytes at each place, at the moment when that task's level was highest (`task_peaks`).

        They add up to `task_peaks`. Categories that never have bytes are left out.
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
        """The storage of this number.

        Raises:
            IndexError: there is none.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"there is no storage {number}; this timeline has {len(self)}")
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
        """What made the storage."""
        if number < len(self.makers):
            return self.makers[number]
        place = self.place_of(self.births[number])
        if not 0 <= place < len(self.order):
            return Maker(None, None, None)
        task = self.graph.tasks[self.order[place]]
        return Maker(task.id, task.operation, self.graph.module(task))

    def keepers(self, number: int) -> Iterator[Keeper]:
        """What kept the storage alive, in the order of time."""
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
        """The tasks that have consumed the storage and go on keeping it, in order; none where that is let go."""
        return self._consumers.of(number, self.place_of(self.births[number]))

    @cached_property
    def _consumers(self) -> Consumers:
        return Consumers(self.graph, self.order, self.accumulation, self.inputs, self.listed)


def _place_of_change(timeline: Timeline, event: int, number: int, category: Category) -> int:
    """The place of the task in which a storage's category changed."""
    leaf = timeline.grads.get(number, -1)
    if category is Category.GRADIENT and (place := timeline.places.get(leaf)) is not None:
        return place
    return bisect_left(timeline.starts, event) - 1
