"""Memory of a HIPS autograd forward and backward: the lifetimes of arrays."""

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
from ...memory.categories import Category
from ...memory.category_levels import summed_inputs, with_names
from ...memory.estimates import OF_PYTHON, Estimate
from ...memory.hips_footprints import PYTHONS_BYTES, footprint_of, maker_of, one_measurement, start_storage
from ...memory.simulation import simulated
from ...memory.task_memory import Footprint, Footprints, Origin, StartStorage, TaskOutput
from ...memory.timeline import Maker, Timeline
from .gradient_sums import REST, value_of

BIRTH, DEATH, CHANGE = range(3)


class ArrayRow(NamedTuple):
    """One event of an array, and its time."""

    kind: int
    number: int
    ns: int


class ArrayLog:
    """Numbers arrays by their memory, and records their allocation and release until it is `over`.

    Attributes:
        rows: the events, in order.
        nbytes, born_as: size and category, by number.
        over: whether recording has ended.
    """

    def __init__(self) -> None:
        self.rows: list[ArrayRow] = []
        self.nbytes: list[int] = []
        self.born_as: list[Category] = []
        self.over = False
        self._numbers: dict[int, int] = {}  # by id of a live array
        self._refs: list[ref[Any]] = []

    def number(self, value: Any, category: Category) -> int:
        """Return the number of an array's memory, which is recorded from now on; -1 if numpy does not own it."""
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
        """Return a number for memory that is not an array."""
        self.nbytes.append(nbytes)
        self.born_as.append(category)
        return len(self.nbytes) - 1

    def note(self, kind: int, number: int) -> None:
        self.rows.append(ArrayRow(kind, number, perf_counter_ns()))

    def with_workspace(self, rows: Sequence[ArrayRow], risen_bytes: int, began_ns: int) -> Sequence[ArrayRow]:
        """Return the rows of one turn, with the workspace inserted where its arrays are at their peak.

        Args:
            rows: the rows of the turn.
            risen_bytes: the peak seen by tracemalloc, above the level at the start.
            began_ns: the start of the turn.
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
    """A context with tracemalloc running, for one measurement at a time; it continues if it was running already.

    Raises:
        RuntimeError: another measurement is running.
    """

    def __enter__(self) -> Self:
        self._caller = Caller("a measured backward of a tape", stays=True)
        try:
            if (other := one_measurement.wait_for(self._caller, WAITS_S)) is not None:
                raise RuntimeError(
                    f"the memory of a tape is already being measured, in this or another thread, by {other.verb}"
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
    """The interval in which one node is created: its first row, the traced bytes at its start, and the start time."""

    first: int
    traced_bytes: int
    began_ns: int


class TapedForward:
    """Records the arrays of one forward from their creation by a node until they are freed, including its backward.

    Known limitations: those of `ArrayWatch`. The user's arrays that no node created are not recorded; memory they need
    beyond the recorded arrays counts as workspace of the next node.

    Attributes:
        log: the arrays.
        makers: the creator of each array, by number.
        root: the argument's node, the tape's last one.
    """

    def __init__(self, root: RecordedNode) -> None:
        self.log = ArrayLog()
        self.makers: dict[int, Maker] = {}
        self.root = root
        self._turns: list[_ForwardTurn] = []
        self._risen: list[int] = []
        self._made_by: list[Maker] = []
        self._argument_owners = {id(owner) for each in root.made if (owner := each()) is not None}
        self._begin_turn()

    def made(self, node: RecordedNode) -> None:
        """Record the node of a primitive that was called."""
        self._risen.append(tracemalloc.get_traced_memory()[1] - self._turns[-1].traced_bytes)
        self._made_by.append(maker := maker_of(node))
        for each in node.made:
            owner = each()
            if owner is not None and owner.nbytes and id(owner) not in self._argument_owners:
                self.makers.setdefault(self.log.number(owner, Category.FORWARD), maker)
            del owner
        self._begin_turn()

    def rows(self, until: int) -> list[ArrayRow]:
        """Return the events up to this row of the log, with the workspace of each node."""
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
        # tracemalloc has one peak for the process, so each interval starts with a reset.
        tracemalloc.reset_peak()


@dataclass(slots=True)
class _Turn:
    """One task's interval: its first row, the traced bytes at its start and at its peak, and its arrays.

    For its formula alone: the rows from `began` to `ended`, its bytes, the layouts of its outputs, and which of them
    are gradients of indexing.
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
    """Records the arrays of one backward, from their use as gradients until they are freed.

    It is a context, and only one can be active: tracemalloc, to which numpy reports, runs inside. If it was running
    already, it continues with its peak reset. The memory a task needs at its peak beyond those arrays is its workspace.
    Arrays of the forward count if its nodes created them and something still references them: a formula (`vjp`), or the
    user's code. With a `TapedForward`, all of them count from its first node on.

    Known limitations: scalars, which are Python objects, count as nothing, and so does workspace below 16 KiB, which
    tracemalloc cannot distinguish from the interpreter's own. Memory of other threads counts as workspace. An array
    that a formula hides in an object other than a function or container counts as held by the user.
    """

    def __init__(self, tape: HipsTape, forward: TapedForward | None = None) -> None:
        self._tape = tape
        self._forward = forward if forward is not None and forward.root is tape.nodes[-1] else None
        self._log = ArrayLog() if self._forward is None else self._forward.log
        self._tracing = Tracing()
        self._turns: list[_Turn] = []
        self._buffers: dict[int, InputBuffer] = {}
        self._start: dict[int, StartStorage] = {}  # storages alive at the start of the backward, by number

    def __enter__(self) -> Self:
        self._tracing.__enter__()
        try:
            self._find_forward()
        except BaseException as error:  # an interrupt, or an object in a formula that cannot be inspected
            self._tracing.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._log.over = True
        self._tracing.__exit__(kind, error, traceback)

    def waits(self, task_id: int, buffer: InputBuffer) -> None:
        """Record the task's input buffer."""
        self._buffers[task_id] = buffer

    def begin(self, task_id: int) -> None:
        """Record that a task starts and its input lists are about to be summed."""
        self._note_sums()
        traced, _ = tracemalloc.get_traced_memory()
        self._turns.append(_Turn(task_id, len(self._log.rows), traced, perf_counter_ns()))
        tracemalloc.reset_peak()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Exclude allocations in this context from the task's."""
        self._note_peak()
        try:
            yield
        finally:
            tracemalloc.reset_peak()

    def summed(self, task_id: int) -> None:
        """Record that the inputs are summed and the task's buffer is empty."""
        self._buffers.pop(task_id)

    def start(self, task_id: int, gradients: Sequence[Tensor | None]) -> None:
        """Record the inputs on which the task's formula runs."""
        rows, turn = self._log.rows, self._turns[-1]
        found = len(rows)
        turn.inputs += self._follow(gradients)
        sums = [row._replace(ns=turn.began_ns) for row in rows[found:]]  # allocated before the lists were freed
        rows[found:] = []
        rows[turn.first : turn.first] = sums
        turn.began, self._traced = len(rows), tracemalloc.get_traced_memory()[0]

    def end(self, task_id: int, outputs: Sequence[Tensor | None]) -> None:
        """Record the outputs of the task's formula; for the leaf's task, the tape's gradient."""
        turn = self._turns[-1]
        turn.formula_bytes = tracemalloc.get_traced_memory()[1] - self._traced
        turn.outputs += self._follow(outputs)
        given = [each for each in outputs if each is not None]
        assert len(given) == len(outputs), "a formula returns all gradients"
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
        """Record the end of the last task."""
        self._note_sums()
        self._ended = len(self._log.rows)

    def timeline(self, accumulation: Accumulation) -> Timeline:
        """Return the memory timeline; to be called after `over`."""
        log, bounds = self._log, [*(turn.first for turn in self._turns), self._ended]
        rows = [] if self._forward is None else self._forward.rows(self._first)
        rows += log.rows[self._first : bounds[0]]  # the root gradient
        starts = []
        for turn, (first, end) in zip(self._turns, pairwise(bounds), strict=True):
            starts.append(len(rows))
            rows += log.with_workspace(log.rows[first:end], turn.peak_bytes - turn.traced_bytes, turn.began_ns)
        starts.append(len(rows))
        rows += log.rows[self._ended :]
        timeline = self._timeline(rows, starts, accumulation)
        return timeline if accumulation == PYTORCHS else with_names(timeline)

    def footprints(self, timeline: Timeline) -> Footprints:
        """Return the memory each task needs, for `ts.simulate`; to be called after `over`."""
        graph = self._tape.graph
        tasks: list[Footprint | None] = [None] * len(graph)
        for turn in self._turns:
            if not graph.tasks[turn.task].is_leaf:
                tasks[turn.task] = self._footprint(turn)
        (root,) = graph.roots
        meta = graph.tasks[root.task].inputs[root.input]
        counts = self._turns[0].first > self._first  # False if it is not an array owned by numpy
        roots = (contiguous(meta.shape or (), meta.dtype.itemsize) if counts else None,)
        start = tuple(self._start.values())
        found = Footprints(graph, "cpu", "calibrated", tuple(tasks), start, {}, roots, True, (OF_PYTHON,))
        again = simulated(graph, timeline.order, found, accumulation=timeline.accumulation)
        if abs(again.peak_bytes - timeline.peak_bytes) <= max(PYTHONS_BYTES, timeline.peak_bytes // 100):
            return found
        differs = Estimate("the prediction differs from the measurement even for the measured order")
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
        """Build the timeline; storages are renumbered by creation, and changes are placed between events."""
        graph, log = self._tape.graph, self._log
        numbers = {number: number for number in range(self._before)}
        events, event_ns, changes, grads = array("q"), array("q"), [], {}
        places = []  # index of each row's event
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
            [makers[number] for number in old if number in makers],  # those of the forward come first
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
        """Yield the gradients waiting in lists: the position of the task that returned it, its number, and its task and
        input."""
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
        """Find the arrays that nodes created in the forward and that are still referenced, with their references."""
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
                if number not in freed:  # not referenced by a node of the tape, so something else holds it
                    self._start.setdefault(number, StartStorage(log.nbytes[number], (), True, maker))
        self._first = len(log.rows)
        self._began_ns = perf_counter_ns()

    def _note_sums(self) -> None:
        """Record the sums in the input buffers, and the last task's peak up to now."""
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
