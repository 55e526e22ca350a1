"""The memory of a backward of HIPS autograd's: which arrays lived when, and by tracemalloc what a task took besides."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from types import TracebackType
from typing import Any, Self
from weakref import ref

from torch import Tensor

from ...inspector.tapes.forward_arrays import forward_arrays
from ...inspector.tapes.hips_nodes import arrays_in, is_sparse, owner_of
from ...inspector.tapes.hips_tape import HipsTape
from ..memory.accumulation import PYTORCHS, Accumulation
from ..memory.footprint import Footprint, Footprints, Origin, StartStorage, TaskOutput, TensorLayout
from ..memory.layouts import contiguous, layout_of
from ..memory.timeline import Category, Timeline
from ..memory.waiting_in_lists import summed_inputs, with_names
from ..prediction.dry_run_limits import OF_PYTHON
from ..prediction.simulation import simulated
from ..prediction.tape_footprints import PYTHONS_BYTES, footprint_of, one_measurement, start_storage
from ..tasks.input_buffer import InputBuffer
from .values import REST, value_of

_BIRTH, _DEATH, _CHANGE = range(3)


@dataclass(slots=True)
class _Turn:
    """One task's turn: the index of its first event, the traced bytes at its start and at their highest, its arrays.

    Of its formula alone: the events from `began` to `ended`, the bytes that it took, the layouts of what it gave, and
    which of that are gradients of indices.
    """

    task: int
    first: int
    traced_bytes: int
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
    formulas (`vjp`), or the user's code.

    Known limitations: scalars, which are objects of Python's, count nothing, nor workspace below 16 KiB, of which
    tracemalloc can't tell the interpreter's own. Other threads' memory counts as workspace. What a formula keeps
    hidden, in an object that is neither a function nor a container, is taken for held by the user.
    """

    def __init__(self, tape: HipsTape) -> None:
        self._tape = tape
        self._numbers: dict[int, int] = {}  # by id of an array that is alive
        self._refs: list[ref[Any]] = []
        self._nbytes: list[int] = []
        self._born_as: list[Category] = []
        self._events: list[tuple[int, int]] = []
        self._turns: list[_Turn] = []
        self._buffers: dict[int, InputBuffer] = {}
        self._start: list[StartStorage] = []
        self._over = False

    def __enter__(self) -> Self:
        if not one_measurement.acquire(blocking=False):
            raise RuntimeError("the memory of a tape is being measured already, in this thread or in another one")
        try:
            self._find_forward()
            self._ours = not tracemalloc.is_tracing()
            if self._ours:
                tracemalloc.start()
        except BaseException:  # an interrupt, or an object in a formula that can't be looked into
            one_measurement.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over = True
        if self._ours:
            tracemalloc.stop()
        one_measurement.release()

    def waits(self, task_id: int, buffer: InputBuffer) -> None:
        """This is the task's input buffer."""
        self._buffers[task_id] = buffer

    def begin(self, task_id: int) -> None:
        """The task was picked; what is in its lists is going to be summed."""
        self._look()
        traced, _ = tracemalloc.get_traced_memory()
        self._turns.append(_Turn(task_id, len(self._events), traced))
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
        turn, found = self._turns[-1], len(self._events)
        turn.inputs += self._follow(gradients)
        sums = self._events[found:]  # made before the lists were let go
        self._events[found:] = []
        self._events[turn.first : turn.first] = sums
        turn.began, self._traced = len(self._events), tracemalloc.get_traced_memory()[0]

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
        turn.ended = len(self._events)
        if self._tape.graph.tasks[task_id].is_leaf:
            for value in arrays_in(self._tape.nodes[task_id].space, self._tape.gradient):
                number = self._number(value, Category.GRADIENT)
                if number >= 0:
                    self._events.append((_CHANGE, number))

    def over(self) -> None:
        """The last task's turn is over."""
        self._look()
        self._ended = len(self._events)

    def timeline(self, accumulation: Accumulation) -> Timeline:
        """The memory up to now, after `over`."""
        bounds = [*(turn.first for turn in self._turns), self._ended]
        rows = self._events[: bounds[0]]  # the gradient that was given
        starts = []
        for turn, (first, end) in zip(self._turns, pairwise(bounds), strict=True):
            starts.append(len(rows))
            rows += self._with_workspace(turn, self._events[first:end])
        starts.append(len(rows))
        rows += self._events[self._ended :]
        timeline = self._timeline(rows, starts, accumulation)
        return timeline if accumulation == PYTORCHS else with_names(timeline)

    def footprints(self, timeline: Timeline) -> Footprints:
        """What each task did, for `th.simulate`: the timeline's. After `over`."""
        graph = self._tape.graph
        tasks: list[Footprint | None] = [None] * len(graph)
        for turn in self._turns:
            if not graph.tasks[turn.task].is_leaf:
                tasks[turn.task] = self._footprint(turn)
        (root,) = graph.roots
        meta = graph.tasks[root.task].inputs[root.input]
        counts = timeline.start_bytes > sum(each.nbytes for each in self._start)  # what is no array of numpy's doesn't
        roots = (contiguous(meta.shape or (), meta.dtype.itemsize) if counts else None,)
        start = tuple(self._start)
        found = Footprints(graph, "cpu", "calibrated", tuple(tasks), start, {}, roots, True, (OF_PYTHON,))
        again = simulated(graph, timeline.order, found, accumulation=timeline.accumulation)
        if abs(again.peak_bytes - timeline.peak_bytes) <= max(PYTHONS_BYTES, timeline.peak_bytes // 100):
            return found
        differs = "even the order that was measured would be predicted otherwise than it went"
        return replace(found, limits=(OF_PYTHON, differs), unsure=(differs,))

    def _footprint(self, turn: _Turn) -> Footprint:
        born = [number for kind, number in self._events[turn.began : turn.ended] if kind == _BIRTH]
        sizes = [self._nbytes[number] for number in born]
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

    def _timeline(self, rows: Sequence[tuple[int, int]], starts: Sequence[int], accumulation: Accumulation) -> Timeline:
        """Storages are numbered by birth here, and changes are between the events."""
        graph = self._tape.graph
        numbers = {number: number for number in range(self._before)}
        events, changes, grads = array("q"), [], {}
        places = []  # by row the index of its event
        for kind, number in rows:
            places.append(len(events))
            if kind == _BIRTH:
                numbers[number] = len(numbers)
                events.append(numbers[number])
            elif kind == _DEATH:
                events.append(~numbers[number])
            else:
                changes.append((len(events), numbers[number], Category.GRADIENT))
                grads[numbers[number]] = len(graph) - 1
        places.append(len(events))
        old = sorted(numbers, key=numbers.__getitem__)
        return Timeline(
            graph,
            tuple(turn.task for turn in self._turns),
            "cpu",
            "measured",
            events,
            array("q", (places[start] for start in starts)),
            array("q", (self._nbytes[number] for number in old)),
            array("q", (self._born_as[number] for number in old)),
            changes,
            self._before,
            [each.made_by for each in self._start],
            {number: each.keepers for number, each in enumerate(self._start) if each.keepers},
            frozenset(number for number, each in enumerate(self._start) if each.held),
            grads,
            array("q", (numbers.get(number, -1) for turn in self._turns for number in turn.inputs)),
            accumulation=accumulation,
            listed=[(place, numbers[number], *to) for place, number, to in self._listed(accumulation)],
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

    def _with_workspace(self, turn: _Turn, rows: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """A task's events, and where its arrays are at their highest what it took besides."""
        deltas = [0 if kind == _CHANGE else self._nbytes[number] * (1 - 2 * kind) for kind, number in rows]
        levels = list(accumulate(deltas, initial=0))
        highest = levels.index(max(levels))
        besides = turn.peak_bytes - turn.traced_bytes - levels[highest]
        if besides <= PYTHONS_BYTES:
            return iter(rows)
        number = self._new(besides, Category.WORKSPACE)
        return iter([*rows[:highest], (_BIRTH, number), (_DEATH, number), *rows[highest:]])

    def _find_forward(self) -> None:
        """The arrays that nodes made in the forward and something keeps, with those that keep them."""
        for left in forward_arrays(self._tape):
            if left.owner.nbytes:
                self._number(left.owner, Category.SAVED if left.keepers else Category.FORWARD)
                self._start.append(start_storage(left))
        self._before = len(self._nbytes)
        self._events.clear()

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
        return [-1 if each is None else self._number(value_of(each), Category.BUFFER) for each in tensors]

    def _number(self, value: Any, category: Category) -> int:
        """The number of an array's memory; -1: it is none of numpy's own."""
        owner = owner_of(value)
        if owner is None or not owner.nbytes:
            return -1
        key = id(owner)
        if key not in self._numbers:
            number = self._numbers[key] = self._new(owner.nbytes, category)
            self._events.append((_BIRTH, number))
            self._refs.append(ref(owner, partial(self._died, key)))
        return self._numbers[key]

    def _died(self, key: int, _: ref[Any]) -> None:
        number = self._numbers.pop(key)
        if not self._over:
            self._events.append((_DEATH, number))

    def _new(self, nbytes: int, category: Category) -> int:
        self._nbytes.append(nbytes)
        self._born_as.append(category)
        return len(self._nbytes) - 1
