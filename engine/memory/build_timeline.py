"""Conversion of allocator events to a timeline: the maker, category and keepers of each storage, and its lifetime."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from weakref import ref

from torch import Tensor

from ...inspector.graph.graph import Graph
from ...inspector.graph.operations_and_calls import CallRecord, Operation, StoredOperation
from ...inspector.graph.source_lines import is_of_library, variables_assigned
from ..execution.accumulation_rule import PYTORCHS, Accumulation
from .allocator_events import AllocatorEvent, AllocatorRecording
from .allocator_recording import blocks_of
from .categories import Category
from .category_levels import summed_inputs, with_names
from .task_boundaries import SavedBlocks, Seen, Slots, TaskMoment, Visit
from .task_spans import Turn, Turns
from .timeline import (
    GRADIENT_GRAPH,
    IN_TREE,
    RANDOM_STATE,
    RANDOM_STATES_ON_CTX,
    REGION,
    Listed,
    Maker,
    Timeline,
    lasts_with_graph,
)

RECOMPUTED = "recomputed"
"""The slot of a tensor that a checkpointed region recomputed, for the node that needs it."""

HIDDEN = "hidden"
"""The slot of a tensor that a node keeps although torch does not show it; its free shows it."""

_CHECKPOINT = Maker(None, StoredOperation("get_rng_state", None), "torch.utils.checkpoint")
"""The maker shown for the random state that a checkpoint saves."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The record of one forward and backward on one device.

    Attributes:
        graph: the graph.
        device: the device whose allocator was recorded.
        forward: the events of the forward until the loss existed; later events in it are tapescope's own. If the
            forward was not recorded, only allocations: of the storages known to be alive at the start of the backward.
        recorded: whether the forward was recorded.
        makers: the operation that had run at each of the forward's marks; the last mark is at the loss. If the forward
            was not recorded, the maker of each storage.
        returned: by address, the numbers of the forward's marks at which a tensor at that address was returned.
        kept: the tensors that nodes keep at the start of the backward.
        backward: the events of the backward.
        marks: the task of each of the backward's marks, and the moment within that task.
        visits: the inputs and outputs of each task, in the order in which the tasks ended.
        keep_graph: whether the graph was retained.
        create_graph: whether the backward built a graph.
        accumulation: how gradients were summed and when they were freed.
        trees: the tasks of each sum that was computed as one product, in the order in which they ran.
        of_model: the addresses of parameters and buffers, which no level counts, even if the forward allocated them.
        variables: see `variables_of`.
        tensors: by address, weak references to the tensors that were returned at it.
    """

    graph: Graph
    device: str
    forward: AllocatorRecording
    recorded: bool
    makers: Sequence[Maker]
    returned: Mapping[int, Sequence[int]]
    kept: SavedBlocks
    backward: AllocatorRecording
    marks: Sequence[tuple[int, TaskMoment]]
    visits: Sequence[Visit]
    keep_graph: bool
    create_graph: bool = False
    accumulation: Accumulation = PYTORCHS
    trees: Sequence[Sequence[int]] = ()
    of_model: Collection[int] = ()
    variables: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    tensors: Mapping[int, Sequence[ref[Tensor]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Lives:
    """The storages of a measurement, numbered in the order in which they were allocated, and the tasks' turns.

    Attributes:
        births, deaths: by storage, the index of the row that allocates or frees it, counted through forward and
            backward; a death of None if it is alive at the end.
        first: the index of the first row of the backward.
        numbers: the storage of each row; -1 for a storage from before.
        places: see `Turns`.
    """

    turns: list[Turn]
    rows: list[AllocatorEvent]
    first: int
    births: list[int]
    deaths: list[int | None]
    numbers: list[int]
    places: list[int] | None = None

    def place_of(self, row: int) -> int:
        """Return the place of the task to which a row belongs; -1 before the first, `len(turns)` after the last one's
        end."""
        if self.places is not None:
            return -1 if row < self.first else self.places[row - self.first]
        if row < self.first + (self.turns[0].begin if self.turns else 0):
            return -1
        if not self.turns or row >= self.first + self.turns[-1].end:
            return len(self.turns)
        return bisect_right(self.turns, row - self.first, key=lambda turn: turn.begin) - 1

    @cached_property
    def start(self) -> int:
        """The row at which the first task begins."""
        return self.first + min((turn.begin for turn in self.turns), default=0)

    @property
    def bounds(self) -> list[int]:
        """The row of the backward at which each task begins, by place, and the row at which the last one ends.

        For tasks that run side by side it is the row at which they start: they may begin in another order.
        """
        begins = [turn.begin if self.places is None else turn.start for turn in self.turns]
        return [self.start - self.first, *begins[1:], max((turn.end for turn in self.turns), default=0)]


def lives_of(measured: Measured) -> Lives:
    """Follow each block from its allocation to its free, and find the blocks of the observed tensors."""
    rows = [*measured.forward.rows, *measured.backward.rows]
    first = len(measured.forward.rows)
    found = Turns.of(measured.backward, measured.marks, measured.visits)
    turns = found.turns
    stops = sorted(
        [(turn.start, False, place) for place, turn in enumerate(turns)]
        + [(turn.ended, True, place) for place, turn in enumerate(turns)]
    )
    coming = iter([*stops, (len(rows) + 1, True, -1)])
    stop = next(coming)
    alive: dict[int, int] = {}
    births: list[int] = []
    deaths: list[int | None] = []
    numbers: list[int] = []

    def find(seen: Seen | None) -> int:
        return -1 if seen is None else alive.get(seen.address, -1)

    def resolve(until: int) -> None:
        nonlocal stop
        while stop[0] <= until:
            _, ended, place = stop
            turn = turns[place]
            if ended:
                turn.outputs = tuple(map(find, turn.visit.outputs))
                turn.grad = find(turn.visit.grad)
            else:
                turn.inputs = tuple(map(find, turn.visit.inputs))
            stop = next(coming)

    for index, row in enumerate(rows):
        resolve(index - first)
        if row.nbytes > 0:
            alive[row.address] = len(births)
            numbers.append(len(births))
            births.append(index)
            deaths.append(None)
        else:
            number = alive.pop(row.address, -1)
            numbers.append(number)
            if number >= 0:
                deaths[number] = index
    resolve(len(rows) - first)
    return Lives(turns, rows, first, births, deaths, numbers, found.places)


def between_tasks(measured: Measured, lives: Lives) -> int:
    """Return how many blocks hooks allocated between tasks: those that are not sums of gradients.

    If the recording has the start of each task, hooks belong to the tasks, and the result is 0.
    """
    has_starts = any(moment is TaskMoment.BEGUN for _, moment in measured.marks[:1])
    if measured.backward.tasks or has_starts or not lives.turns:
        return 0
    graph, turns = measured.graph, lives.turns
    arriving = Counter([(edge.next_task, edge.input) for edge in graph.edges])
    arriving.update([(root.task, root.input) for root in graph.roots])
    inputs = {turn.visit.task: turn.visit.inputs for turn in turns}
    used = {number for turn in turns for number in turn.inputs}

    def born(begin: int, end: int) -> list[int]:
        rows = range(lives.first + begin, lives.first + end)
        return [number for row in rows if (number := lives.numbers[row]) >= 0 and lives.births[number] == row]

    count = sum(number not in used for number in born(0, turns[0].begin))  # roots' gradients are used
    for turn in turns:
        sums: set[int | None] = set()  # bytes; None: anything
        for edge in graph.out_edges[turn.visit.task]:
            if arriving[edge.next_task, edge.input] > 1 and edge.next_task in inputs:
                seen = inputs[edge.next_task][edge.input]
                sums.add(None if seen is None else seen.layout.nbytes)
        blocks = [lives.rows[lives.births[number]].nbytes for number in born(turn.ended, turn.end)]
        count += 0 if None in sums else sum(nbytes not in sums for nbytes in blocks)
    return count


def timeline_of(measured: Measured, lives: Lives, kinds: Kinds) -> Timeline:
    """Return the timeline of a measurement."""
    graph, turns = measured.graph, lives.turns
    shown = _shown(measured, lives)
    renumbered = {number: new for new, number in enumerate(shown)}
    events, event_ns, event_of_row, event_places = array("q"), array("q"), array("q"), array("q")
    base_ns = measured.backward.marks[0].ns if measured.backward.marks else 0
    for index, number in enumerate(lives.numbers):
        event_of_row.append(len(events))
        if number in renumbered and (measured.recorded or index >= lives.first):
            born = lives.births[number] == index
            events.append(renumbered[number] if born else ~renumbered[number])
            event_ns.append(lives.rows[index].ns - base_ns)
            if lives.places is not None:
                event_places.append(lives.place_of(index))
    event_of_row.append(len(events))

    def event(row: int) -> int:
        return event_of_row[lives.first + row]

    forward = [number for number in shown if lives.births[number] < lives.start]
    changes = sorted(
        (event_of_row[row], renumbered[number], category)
        for row, number, category in kinds.changes
        if number in renumbered
    )
    inputs = (renumbered.get(number, -1) for turn in turns for number in turn.inputs)
    listed = [
        (place, renumbered[number], task, given)
        for place, number, task, given in _listed(measured, turns)
        if number in renumbered
    ]
    slots = {RANDOM_STATE, *RANDOM_STATES_ON_CTX}  # a checkpoint reads its random state before its first operation
    random_states = {number for number, kept in kinds.saved.items() if any(slot in slots for _, slot in kept)}
    timeline = Timeline(
        graph,
        tuple(turn.visit.task for turn in turns),
        measured.device,
        "measured",
        events,
        array("q", map(event, lives.bounds)),
        array("q", (lives.rows[lives.births[number]].nbytes for number in shown)),
        array("b", (kinds.born_as[number] for number in shown)),
        changes,
        before=0 if measured.recorded else lives.first,
        makers=tuple(
            _CHECKPOINT if number in random_states else forward_maker(measured, lives.births[number])
            for number in forward
        ),
        saved={renumbered[number]: keepers for number, keepers in kinds.saved.items() if number in renumbered},
        held=frozenset(renumbered[number] for number in kinds.held if number in renumbered),
        grads={renumbered[number]: task for number, task in kinds.grads.items() if number in renumbered},
        inputs=array("q", inputs),
        event_ns=event_ns,
        task_ns=array("q", (ns - base_ns for turn in turns for ns in (turn.start_ns, turn.ended_ns))),
        blocks=blocks_of(measured.backward, measured.marks),
        accumulation=measured.accumulation,
        listed=tuple(listed),
        event_places=array("q", event_places),
        began_ns=_began(measured, base_ns),
        tensors=_tensors_held(measured, lives, [number for number in forward if number in kinds.held], renumbered),
    )
    return timeline if measured.accumulation == PYTORCHS else with_names(timeline)


def _tensors_held(
    measured: Measured, lives: Lives, held: Sequence[int], renumbered: Mapping[int, int]
) -> dict[int, tuple[int, Sequence[ref[Tensor]]]]:
    """Return `Timeline.tensors`."""
    addresses = {number: lives.rows[lives.births[number]].address for number in held if lives.deaths[number] is None}
    return {
        renumbered[number]: (address, measured.tensors[address])
        for number, address in addresses.items()
        if address in measured.tensors
    }


def _began(measured: Measured, base_ns: int) -> int | None:
    """Convert `base_ns` from the allocator's clock to `time.perf_counter_ns`; an operation's end is known on both."""
    if measured.recorded:
        for maker, mark in zip(reversed(measured.makers), reversed(measured.forward.marks), strict=False):
            if isinstance(maker.operation, Operation):
                return base_ns - mark.ns + maker.operation.created_ns
    return None


def _listed(measured: Measured, turns: Sequence[Turn]) -> Iterator[Listed]:
    """Yield the entries of `Timeline.listed`, with the storages' numbers in `Lives`."""
    if not measured.accumulation.lists:
        return
    ran = {turn.visit.task for turn in turns}
    summed = summed_inputs(measured.graph, ran)
    for place, turn in enumerate(turns):
        for edge in measured.graph.out_edges[turn.visit.task]:
            if (edge.next_task, edge.input) in summed and edge.next_task in ran and turn.outputs[edge.output] >= 0:
                yield place, turn.outputs[edge.output], edge.next_task, edge.input


def _shown(measured: Measured, lives: Lives) -> list[int]:
    """Return all storages except the model's and those that tapescope allocated and freed between forward and
    backward."""
    end = measured.forward.marks[-1].row if measured.recorded else lives.first

    def is_shown(birth: int, death: int | None) -> bool:
        if birth >= lives.first:
            return True
        if death is not None and death < lives.first:
            return birth < end
        return lives.rows[birth].address not in measured.of_model

    return [
        number
        for number, (birth, death) in enumerate(zip(lives.births, lives.deaths, strict=True))
        if is_shown(birth, death)
    ]


def forward_maker(measured: Measured, row: int) -> Maker:
    """Return the maker of the block in this row of the forward."""
    mark = bisect_right(measured.forward.marks, row, key=itemgetter(0)) if measured.recorded else row
    maker = measured.makers[mark] if mark < len(measured.makers) else Maker(None, None, None)
    if row >= len(measured.forward.rows):
        return maker
    address = measured.forward.rows[row].address
    returned = measured.returned.get(address, ())
    if mark not in measured.variables:  # a later operation may return it, or a view of it: `head(x).float()`
        later = min((number for number in returned if number > mark and number in measured.variables), default=None)
        if later is None or any(
            each.address == address for each in measured.forward.rows[row + 1 : measured.forward.marks[later].row]
        ):
            return maker
        return replace(maker, variable=measured.variables[later][1])
    returned_by, variable = measured.variables[mark]
    return replace(maker, variable=variable) if returned_by in returned else maker


def maker_of(made: Operation | CallRecord | None) -> Maker:
    """Return the maker of the storages allocated while this operation or call ran."""
    if made is None:
        return Maker(None, None, None)
    if isinstance(made, CallRecord):
        return Maker(None, None, made.full_path)
    return Maker(None, made, None if made.call is None else made.call.full_path)


def variables_of(made: Sequence[Operation | CallRecord | None]) -> dict[int, tuple[int, str]]:
    """Return, by operation number, the variable to which the user's line assigned the result, and the number of the
    call that returned it: the operation itself, or the outermost of the library's modules around it."""
    found: dict[int, str] = {}
    variables: dict[int, dict[int, str]] = {}  # by code, which the operations keep alive
    outermost: dict[int, int] = {}
    returned_by: dict[int, int] = {}  # of a module that was not seen to end, the last operation in it
    for number, each in enumerate(made):
        if isinstance(each, CallRecord):
            returned_by[id(each)] = number
        elif each is not None and each.place is not None:
            code, instruction = each.place
            if id(code) not in variables:
                variables[id(code)] = variables_assigned(code)
            if variable := variables[id(code)].get(instruction):
                found[number] = variable
                call, outermost[number] = each.call, id(each)
                while call is not None and is_of_library(call.module_class):
                    outermost[number], call = id(call), call.parent
                returned_by[outermost[number]] = number
    return {number: (returned_by[outermost[number]], variable) for number, variable in found.items()}


class Kinds:
    """The categories of the storages of a measurement.

    Attributes:
        born_as: the category of each storage when it was allocated.
        changes: (row, storage, category from then on).
        saved: by storage, the slots that keep it.
        held: the storages that something outside the graph holds.
        grads: the storages that are a .grad at the end, with the leaf's task.
    """

    def __init__(self, measured: Measured, lives: Lives) -> None:
        self.born_as = [Category.UNKNOWN] * len(lives.births)
        self.changes: list[tuple[int, int, Category]] = []
        self.saved: dict[int, tuple[tuple[int, str], ...]] = {}
        self.held: set[int] = set()
        self.grads: dict[int, int] = {}
        self._measured = measured
        self._lives = lives
        self._ran = {turn.visit.task for turn in lives.turns}
        self._last_use: dict[int, int] = {}  # by storage: place of the last task with it as input or output
        self._outputs: set[tuple[int, int]] = set()
        self._taken: dict[int, Turn] = {}  # by storage: the turn of the leaf whose .grad it became
        for place, turn in enumerate(lives.turns):
            for number in (*turn.inputs, *turn.outputs):
                self._last_use[number] = place
            self._outputs.update((place, number) for number in turn.outputs)
            if turn.grad >= 0:
                self._taken[turn.grad] = turn
                if lives.deaths[turn.grad] is None:
                    self.grads[turn.grad] = turn.visit.task
        self._sort_forward()
        self._sort_backward()

    def _sort_forward(self) -> None:
        lives, measured = self._lives, self._measured
        start = lives.start
        marks = [mark.row for mark in measured.forward.marks]
        for number, (birth, death) in enumerate(zip(lives.births, lives.deaths, strict=True)):
            if birth >= start:
                return
            if death is not None and death < start:
                inside = bisect_right(marks, birth) == bisect_right(marks, death)
                self.born_as[number] = Category.WORKSPACE if inside else Category.FORWARD
                continue
            if birth >= lives.first:  # a root's gradient
                self.born_as[number] = Category.BUFFER
                continue
            keepers = measured.kept.saved.get(lives.rows[birth].address, ())
            place = len(lives.turns) if death is None else lives.place_of(death)
            if place < len(lives.turns):
                task = lives.turns[place].visit.task
                if all(keeper != task for keeper, _ in keepers):
                    if region := measured.kept.regions.get(task):
                        keepers += tuple((each, REGION) for each in region)
                    elif task in measured.kept.hiding:
                        keepers += ((task, HIDDEN),)
                    elif any(tree[-1] == task and one in tree for tree in measured.trees for one, _ in keepers):
                        # It was kept for a product that this task computed.
                        keepers += ((task, IN_TREE),)
                    else:  # only a hook can have dropped its last reference
                        self.held.add(number)
            elif death is None and not self._stays_with_graph(keepers):
                self.held.add(number)
            if keepers:
                self.saved[number] = keepers
                self.born_as[number] = Category.SAVED
            elif self._was_returned(number):
                self.born_as[number] = Category.FORWARD
            else:  # kept inside an operation: a library's cache, or an extension
                self.held.discard(number)

    @property
    def taken(self) -> dict[int, int]:
        """The storages that become a .grad, with the leaf's task, including those freed later."""
        return {number: turn.visit.task for number, turn in self._taken.items()}

    def _stays_with_graph(self, keepers: Slots) -> bool:
        """Return whether nodes still keep the storage after the backward."""
        if self._measured.keep_graph and keepers:
            return True
        return any(lasts_with_graph(slot) or task not in self._ran for task, slot in keepers)

    def _was_returned(self, number: int) -> bool:
        """Return whether an operation of the forward returned a tensor on this storage since it was allocated."""
        measured, birth = self._measured, self._lives.births[number]
        marks = measured.forward.marks
        found = measured.returned.get(self._lives.rows[birth].address, ())
        return not measured.recorded or any(marks[mark].row > birth for mark in found)

    def _sort_backward(self) -> None:
        lives = self._lives
        start = lives.start
        for number, (birth, death) in enumerate(zip(lives.births, lives.deaths, strict=True)):
            if birth < start:
                if number in self._taken:  # a hook or custom Function returned a tensor of the forward as gradient
                    self._take(number)
                continue
            place = lives.place_of(birth)
            if place == len(lives.turns):
                continue  # callbacks allocated it at the end of backward()
            turn = lives.turns[place]
            row = birth - lives.first
            flows = (place, number) in self._outputs or number in turn.inputs
            flows = flows or row >= turn.ended or row < turn.summed
            if flows:
                self.born_as[number] = Category.BUFFER
            elif number == turn.grad:
                self.born_as[number] = Category.GRADIENT
            elif death is not None and lives.place_of(death) == place:
                self.born_as[number] = Category.WORKSPACE
            elif keeper := self._later_keeper(turn, death):
                self.born_as[number] = Category.SAVED
                self.saved[number] = (keeper,)
            else:
                self.born_as[number] = Category.HELD
                self.held.add(number)
            if flows and number in self._taken:
                self._take(number)
            elif flows and death is None:
                last = lives.turns[max(place, self._last_use.get(number, place))]
                keeper = self._later_keeper(turn, death)
                if keeper is None:
                    self.held.add(number)
                else:
                    self.saved[number] = (keeper,)
                category = Category.HELD if keeper is None else Category.SAVED
                self.changes.append((lives.first + last.end, number, category))

    def _later_keeper(self, turn: Turn, death: int | None) -> tuple[int, str] | None:
        """Return the node that keeps a storage the task allocated and that outlived its use; None if a hook holds
        it."""
        lives, measured = self._lives, self._measured
        if death is None:
            return (turn.visit.task, GRADIENT_GRAPH) if measured.create_graph else None
        place = lives.place_of(death)
        if place == len(lives.turns):
            return None
        task = lives.turns[place].visit.task
        region = measured.kept.regions.get(turn.visit.task, ())
        return (task, RECOMPUTED) if task in region else None

    def _take(self, number: int) -> None:
        """Record that the storage became a .grad when its leaf's task ended."""
        self.changes.append((self._lives.first + self._taken[number].ended, number, Category.GRADIENT))
