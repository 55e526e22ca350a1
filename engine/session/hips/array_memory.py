"""Memory of a HIPS autograd forward and backward: which arrays were alive when."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from time import perf_counter_ns
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import ref

from torch import Tensor

from ....inspector.hips.forward_arrays import forward_arrays
from ....inspector.hips.tape import HipsTape
from ....inspector.hips.tape_nodes import RecordedNode, arrays_in, is_sparse, owner_of
from ....inspector.threads import Caller
from ....inspector.torch_private.allocators import WAITS_S
from ...execution.accumulation_rule import PYTORCHS, Accumulation
from ...execution.gradient_layouts import TensorLayout, contiguous, layout_of
from ...execution.input_buffer import InputBuffer
from ...memory.estimates import OF_PYTHON, Estimate
from ...memory.hips_footprints import PYTHONS_BYTES, footprint_of, maker_of, one_measurement, start_storage
from ...memory.lifetimes import Category
from ...memory.simulation import simulated
from ...memory.task_memory import Footprint, Footprints, Origin, StartStorage, TaskOutput
from ...memory.timeline import Maker, Timeline
from ...memory.timeline_categories import summed_inputs, with_names
from .gradient_sums import REST, value_of

BIRTH, DEATH, CHANGE = range(3)


class ArrayRow(NamedTuple):
    """What happened to an array, and when."""

    kind: int
    number: int
    ns: int


class ArrayLog:
    """Numbers arrays by their memory, and notes their births and deaths until it is `over`.

    Attributes:
        rows: what happened, in order.
        nbytes, born_as: by number.
        over: nothing is noted any more.
    """

    def __init__(self) -> None:
        self.rows: list[ArrayRow] = []
        self.nbytes: list[int] = []
        self.born_as: list[Category] = []
        self.over = False
        self._numbers: dict[int, int] = {}  # by id of an array that is alive
        self._refs: list[ref[Any]] = []

    def number(self, value: Any, category: Category) -> int:
        """The number of an array's memory, which is followed from now on; -1: it is none of numpy's own."""
        owner = owner_of(value)
        if owner is None or not owner.nbytes:
            return -1
        key = id(owner)
        if key not in self._numbers:
            number = self._numbers[key] = self.new(owner.nbytes, category)
            self.note(BIRTH, number)
            self._refs.append(ref(owner, partial(self._died, key)))
        return self._numbers[key]

    def new(self, nbytes: int, category: Category) -> int:
        """The number of something that is no array."""
        self.nbytes.append(nbytes)
        self.born_as.append(category)
        return len(self.nbytes) - 1

    def note(self, kind: int, number: int) -> None:
        self.rows.append(ArrayRow(kind, number, perf_counter_ns()))

    def with_workspace(self, rows: Sequence[ArrayRow], risen_bytes: int, began_ns: int) -> Sequence[ArrayRow]:
        """The rows of one turn, and where its arrays are at their highest what it took besides.

        `risen_bytes`: how far above its start tracemalloc saw it.
        """
        deltas = [0 if row.kind == CHANGE else self.nbytes[row.number] * (1 - 2 * row.kind) for row in rows]
        levels = list(accumulate(deltas, initial=0))
        highest = levels.index(max(levels))
        besides = risen_bytes - levels[highest]
        if besides <= PYTHONS_BYTES:
            return rows
        number, ns = self.new(besides, Category.WORKSPACE), rows[highest - 1].ns if highest else began_ns
        return [*rows[:highest], ArrayRow(BIRTH, number, ns), ArrayRow(DEATH, number, ns), *rows[highest:]]

    def _died(self, key: int, _: ref[Any]) -> None:
        number = self._numbers.pop(key)
        if not self.over:
            self.note(DEATH, number)


class Tracing:
    """tracemalloc at work, for one measurement at a time; where it is already, it goes on.

    Raises:
        RuntimeError: another measurement is under way.
    """

    def __enter__(self) -> Self:
        self._caller = Caller("a measured backward of a tape", stays=True)
        try:
            if (other := one_measurement.wait_for(self._caller, WAITS_S)) is not None:
                raise RuntimeError(
                    f"the memory of a tape is being measured already, in this thread or in another one, by {other.verb}"
                )
            self._ours = not tracemalloc.is_tracing()
            if self._ours:
                tracemalloc.start()
        except BaseException:
            self._caller.ended = True
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._ours:
                tracemalloc.stop()
        finally:
            self._caller.ended = True


class _ForwardTurn(NamedTuple):
    """The time in which one node is made: its first row, and at its start the traced bytes and the clock."""

    first: int
    traced_bytes: int
    began_ns: int


class TapedForward:
    """Follows the arrays of one forward from the moment a node made them until they are freed, its backward included.

    Known limitations: those of `ArrayWatch`. Arrays of the user's that no node made are not followed: what they take
    beyond those that are is workspace of the node after.

    Attributes:
        log: the arrays.
        makers: by number what made them.
    """

    def __init__(self, root: RecordedNode) -> None:
        self.log = ArrayLog()
        self.makers: dict[int, Maker] = {}
        self._root = root
        self._turns: list[_ForwardTurn] = []
        self._risen: list[int] = []
        self._made_by: list[Maker] = []
        self._given = {id(owner) for each in root.made if (owner := each()) is not None}
        self._begin_turn()

    def made(self, node: RecordedNode) -> None:
        """A primitive was called, and this is its node."""
        self._risen.append(tracemalloc.get_traced_memory()[1] - self._turns[-1].traced_bytes)
        self._made_by.append(maker := maker_of(node))
        for each in node.made:
            owner = each()
            if owner is not None and owner.nbytes and id(owner) not in self._given:
                self.makers.setdefault(self.log.number(owner, Category.FORWARD), maker)
            del owner
        self._begin_turn()

    def is_of(self, tape: HipsTape) -> bool:
        """Whether this tape is the one that was followed."""
        return tape.nodes[-1] is self._root

    def rows(self, until: int) -> list[ArrayRow]:
        """What happened, up to this row of the log, with the workspace of each node."""
        bounds = [*(turn.first for turn in self._turns), until]
        rows: list[ArrayRow] = []
        for number, (first, end) in enumerate(pairwise(bounds)):
            of_turn = self.log.rows[first:end]
            if number == len(self._risen):  # after the last node
                rows += of_turn
                continue
            for row in self.log.with_workspace(of_turn, self._risen[number], self._turns[number].began_ns):
                self.makers.setdefault(row.number, self._made_by[number])
                rows.append(row)
        return rows

    def _begin_turn(self) -> None:
        traced, _ = tracemalloc.get_traced_memory()
        self._turns.append(_ForwardTurn(len(self.log.rows), traced, perf_counter_ns()))
        tracemalloc.reset_peak()


@dataclass(slots=True)
class _Turn:
    """One task's turn: the index of its first row, the traced bytes at its start and at their highest, its arrays.

    Of its formula alone: the rows from `began` to `ended`, the bytes that it took, the layouts of what it gave, and
    which of that are gradients of indices.
    """

    task: int
    first: int
    traced_bytes: int
    began_ns: int
    ended_ns: int = 0
    peak_bytes: int = 0
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    layouts: list[TensorLayout] = field(default_factory=list)
    indexed: list[int] = field(default_factory=list)
    began: int = 0
    ended: int = 0
    formula_bytes: int = 0


class ArrayWatch:
    """Follows the arrays of one backward, from the moment they are gradients on their way until they are freed.

    A context, of which there is one at a time: tracemalloc, to which numpy reports, is at work inside; where it is
    already, it goes on, its peak set back. What a task takes at its highest beyond those
    arrays is its workspace. Of the forward those arrays count that its nodes made and something still keeps: their
    formulas (`vjp`), or the user's code; with a `TapedForward` of it all, from its first node on.

    Known limitations: scalars, which are objects of Python's, count nothing, nor workspace below 16 KiB, of which
    tracemalloc can't tell the interpreter's own. Other threads' memory counts as workspace. What a formula keeps
    hidden, in an object that is neither a function nor a container, is taken for held by the user.
    """

    def __init__(self, tape: HipsTape, forward: TapedForward | None = None) -> None:
        self._tape = tape
        self._forward = forward if forward is not None and forward.is_of(tape) else None
        self._log = ArrayLog() if self._forward is None else self._forward.log
        self._tracing = Tracing()
        self._turns: list[_Turn] = []
        self._buffers: dict[int, InputBuffer] = {}
        self._start: dict[int, StartStorage] = {}  # by number what is alive as the backward starts

    def __enter__(self) -> Self:
        self._tracing.__enter__()
        try:
            self._find_forward()
        except BaseException as error:  # an interrupt, or an object in a formula that can't be looked into
            self._tracing.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._log.over = True
        self._tracing.__exit__(kind, error, traceback)

    def waits(self, task_id: int, buffer: InputBuffer) -> None:
        """This is the task's input buffer."""
        self._buffers[task_id] = buffer

    def begin(self, task_id: int) -> None:
        """The task was picked; what is in its lists is going to be summed."""
        self._look()
        traced, _ = tracemalloc.get_traced_memory()
        self._turns.append(_Turn(task_id, len(self._log.rows), traced, perf_counter_ns()))
        tracemalloc.reset_peak()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is allocated meanwhile is not the task's."""
        self._note_peak()
        try:
            yield
        finally:
            tracemalloc.reset_peak()

    def summed(self, task_id: int) -> None:
        """They are: its buffer is empty."""
        self._buffers.pop(task_id)

    def start(self, task_id: int, gradients: Sequence[Tensor | None]) -> None:
        """The task runs on these."""
        rows, turn = self._log.rows, self._turns[-1]
        found = len(rows)
        turn.inputs += self._follow(gradients)
        sums = [row._replace(ns=turn.began_ns) for row in rows[found:]]  # made before the lists were let go
        rows[found:] = []
        rows[turn.first : turn.first] = sums
        turn.began, self._traced = len(rows), tracemalloc.get_traced_memory()[0]

    def end(self, task_id: int, outputs: Sequence[Tensor | None]) -> None:
        """It gave these; of the leaf's task the tape's gradient."""
        turn = self._turns[-1]
        turn.formula_bytes = tracemalloc.get_traced_memory()[1] - self._traced
        turn.outputs += self._follow(outputs)
        given = [each for each in outputs if each is not None]
        assert len(given) == len(outputs), "a formula gives all"
        turn.layouts += map(layout_of, given)
        turn.indexed += [
            index for index, each in enumerate(given) if value_of(each) is REST or is_sparse(value_of(each))
        ]
        turn.ended, turn.ended_ns = len(self._log.rows), perf_counter_ns()
        if self._tape.graph.tasks[task_id].is_leaf:
            for value in arrays_in(self._tape.nodes[task_id].space, self._tape.gradient):
                number = self._log.number(value, Category.GRADIENT)
                if number >= 0:
                    self._log.note(CHANGE, number)

    def over(self) -> None:
        """The last task's turn is over."""
        self._look()
        self._ended = len(self._log.rows)

    def timeline(self, accumulation: Accumulation) -> Timeline:
        """The memory up to now, after `over`."""
        log, bounds = self._log, [*(turn.first for turn in self._turns), self._ended]
        rows = [] if self._forward is None else self._forward.rows(self._first)
        rows += log.rows[self._first : bounds[0]]  # the gradient that was given
        starts = []
        for turn, (first, end) in zip(self._turns, pairwise(bounds), strict=True):
            starts.append(len(rows))
            rows += log.with_workspace(log.rows[first:end], turn.peak_bytes - turn.traced_bytes, turn.began_ns)
        starts.append(len(rows))
        rows += log.rows[self._ended :]
        timeline = self._timeline(rows, starts, accumulation)
        return timeline if accumulation == PYTORCHS else with_names(timeline)

    def footprints(self, timeline: Timeline) -> Footprints:
        """What each task did, for `ts.simulate`: the timeline's. After `over`."""
        graph = self._tape.graph
        tasks: list[Footprint | None] = [None] * len(graph)
        for turn in self._turns:
            if not graph.tasks[turn.task].is_leaf:
                tasks[turn.task] = self._footprint(turn)
        (root,) = graph.roots
        meta = graph.tasks[root.task].inputs[root.input]
        counts = self._turns[0].first > self._first  # what is no array of numpy's doesn't
        roots = (contiguous(meta.shape or (), meta.dtype.itemsize) if counts else None,)
        start = tuple(self._start.values())
        found = Footprints(graph, "cpu", "calibrated", tuple(tasks), start, {}, roots, True, (OF_PYTHON,))
        again = simulated(graph, timeline.order, found, accumulation=timeline.accumulation)
        if abs(again.peak_bytes - timeline.peak_bytes) <= max(PYTHONS_BYTES, timeline.peak_bytes // 100):
            return found
        differs = Estimate("even the order that was measured would be predicted otherwise than it went")
        return replace(found, limits=(OF_PYTHON, differs), unsure=(differs,))

    def _footprint(self, turn: _Turn) -> Footprint:
        born = [row.number for row in self._log.rows[turn.began : turn.ended] if row.kind == BIRTH]
        sizes = [self._log.nbytes[number] for number in born]
        besides = turn.formula_bytes - sum(sizes)
        outputs: list[TaskOutput | None] = []
        for index, (number, layout) in enumerate(zip(turn.outputs, turn.layouts, strict=True)):
            origin: tuple[Origin, int] = ("outside", -1)
            if index in turn.indexed:
                outputs.append(TaskOutput(*origin, replace(layout, sparse=True), keeps_base=False))
                continue
            if number >= 0 and number in turn.outputs[:index]:
                origin = "output view", turn.outputs.index(number)
            elif number in born:
                origin = "block", born.index(number)
            elif number >= 0 and number in turn.inputs:
                origin = "view", turn.inputs.index(number)
            outputs.append(TaskOutput(*origin, layout, keeps_base=False))
        return footprint_of(sizes, outputs, besides)

    def _timeline(self, rows: Sequence[ArrayRow], starts: Sequence[int], accumulation: Accumulation) -> Timeline:
        """Storages are numbered by birth here, and changes are between the events."""
        graph, log = self._tape.graph, self._log
        numbers = {number: number for number in range(self._before)}
        events, event_ns, changes, grads = array("q"), array("q"), [], {}
        places = []  # by row the index of its event
        for kind, number, ns in rows:
            places.append(len(events))
            if kind == BIRTH:
                numbers[number] = len(numbers)
            if kind == CHANGE:
                changes.append((len(events), numbers[number], Category.GRADIENT))
                grads[numbers[number]] = len(graph) - 1
            else:
                events.append(numbers[number] if kind == BIRTH else ~numbers[number])
                event_ns.append(ns - self._began_ns)
        places.append(len(events))
        old = sorted(numbers, key=numbers.__getitem__)
        makers = {number: each.made_by for number, each in self._start.items()}
        if self._forward is not None:
            makers |= self._forward.makers
        return Timeline(
            graph,
            tuple(turn.task for turn in self._turns),
            "cpu",
            "measured",
            events,
            array("q", (places[start] for start in starts)),
            array("q", (log.nbytes[number] for number in old)),
            array("q", (log.born_as[number] for number in old)),
            changes,
            self._before,
            [makers[number] for number in old if number in makers],  # of the forward, all before the others
            {numbers[number]: each.keepers for number, each in self._start.items() if each.keepers},
            frozenset(numbers[number] for number, each in self._start.items() if each.held),
            grads,
            array("q", (numbers.get(number, -1) for turn in self._turns for number in turn.inputs)),
            event_ns=event_ns,
            accumulation=accumulation,
            listed=[(place, numbers[number], *to) for place, number, to in self._listed(accumulation)],
            task_ns=array("q", (ns - self._began_ns for turn in self._turns for ns in (turn.began_ns, turn.ended_ns))),
        )

    def _listed(self, accumulation: Accumulation) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """What waits in lists: the place of the task that gave it, its number, and the task and input that take it."""
        if not accumulation.lists:
            return
        graph = self._tape.graph
        summed = summed_inputs(graph, {turn.task for turn in self._turns})
        for place, turn in enumerate(self._turns):
            for edge in graph.out_edges[turn.task]:
                to = edge.next_task, edge.input
                if to in summed and turn.outputs[edge.output] >= 0:
                    yield place, turn.outputs[edge.output], to

    def _find_forward(self) -> None:
        """The arrays that nodes made in the forward and something keeps, with those that keep them."""
        log = self._log
        for left in forward_arrays(self._tape):
            if left.owner.nbytes:
                category = Category.SAVED if left.keepers else Category.FORWARD
                number = log.number(left.owner, category)
                log.born_as[number] = category
                self._start[number] = start_storage(left)
        if self._forward is None:
            self._before = len(log.nbytes)
            log.rows.clear()
        else:
            self._before = 0
            freed = {row.number for row in log.rows if row.kind == DEATH}
            for number, maker in self._forward.makers.items():
                if number not in freed:  # of no node of the tape: somebody else keeps it
                    self._start.setdefault(number, StartStorage(log.nbytes[number], (), True, maker))
        self._first = len(log.rows)
        self._began_ns = perf_counter_ns()

    def _look(self) -> None:
        """Finds the sums that wait, and closes the last task's turn."""
        for buffer in self._buffers.values():
            for tensors in buffer.waiting():
                self._follow(tensors)
        if self._turns:
            self._note_peak()

    def _note_peak(self) -> None:
        turn = self._turns[-1]
        turn.peak_bytes = max(turn.peak_bytes, tracemalloc.get_traced_memory()[1])

    def _follow(self, tensors: Sequence[Tensor | None]) -> list[int]:
        return [-1 if each is None else self._log.number(value_of(each), Category.BUFFER) for each in tensors]
