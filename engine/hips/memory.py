"""The memory of a backward of HIPS autograd's: which arrays lived when, and by tracemalloc what a task took besides."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from threading import Lock
from types import TracebackType
from typing import Any, Self
from weakref import ref

import numpy as np
from torch import Tensor

from ...inspector.graph.facts import StoredOperation
from ...inspector.tapes.hips_nodes import RecordedNode, arrays_in, owner_of
from ...inspector.tapes.hips_tape import HipsTape
from ..memory.accumulation import PYTORCHS, Accumulation
from ..memory.timeline import Category, Maker, Timeline
from ..memory.waiting_in_lists import summed_inputs, with_names
from ..tasks.input_buffer import InputBuffer
from .values import value_of

_PYTHONS_BYTES = 16 << 10
"""What a task takes besides arrays up to here may be Python's own objects, which tracemalloc counts, too."""

_BIRTH, _DEATH, _CHANGE = range(3)

_one_at_a_time = Lock()  # tracemalloc is the whole process's: who ended it would end another's measurement


@dataclass(slots=True)
class _Turn:
    """One task's turn: the index of its first event, the traced bytes at its start and at their highest, its arrays."""

    task: int
    first: int
    traced_bytes: int
    peak_bytes: int = 0
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


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
        self._over = False

    def __enter__(self) -> Self:
        if not _one_at_a_time.acquire(blocking=False):
            raise RuntimeError("the memory of a tape is being measured already, in this thread or in another one")
        try:
            self._find_forward()
            self._ours = not tracemalloc.is_tracing()
            if self._ours:
                tracemalloc.start()
        except BaseException:  # an interrupt, or an object in a formula that can't be looked into
            _one_at_a_time.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over = True
        if self._ours:
            tracemalloc.stop()
        _one_at_a_time.release()

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

    def end(self, task_id: int, outputs: Sequence[Tensor | None]) -> None:
        """It gave these; of the leaf's task the tape's gradient."""
        self._turns[-1].outputs += self._follow(outputs)
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
            self._makers,
            self._saved,
            frozenset(number for number in range(self._before) if number not in self._saved),
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
        if besides <= _PYTHONS_BYTES:
            return iter(rows)
        number = self._new(besides, Category.WORKSPACE)
        return iter([*rows[:highest], (_BIRTH, number), (_DEATH, number), *rows[highest:]])

    def _find_forward(self) -> None:
        """The arrays that nodes made in the forward and something keeps, with those that keep them."""
        nodes = self._tape.nodes
        given = {id(owner) for each in nodes[-1].made if (owner := each()) is not None}
        makers: list[Maker] = []
        for node in nodes[:-1]:
            for each in node.made:
                owner = each()
                if owner is not None and id(owner) not in given and id(owner) not in self._numbers:
                    self._number(owner, Category.SAVED)
                    makers.append(Maker(None, StoredOperation(node.name, node.source), ""))
        saved: dict[int, list[tuple[int, str]]] = {}
        for task_id, node in enumerate(nodes):
            for name, value in kept_by(node):
                owner = owner_of(value)
                number = self._numbers.get(id(owner), -1)
                if owner is not None and number >= 0 and (task_id, name) not in saved.setdefault(number, []):
                    saved[number].append((task_id, name))
        self._before = len(self._nbytes)
        self._born_as = [Category.SAVED if number in saved else Category.FORWARD for number in range(self._before)]
        self._makers = makers
        self._saved = {number: tuple(slots) for number, slots in saved.items()}
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


def kept_by(node: RecordedNode) -> Iterator[tuple[str, Any]]:
    """The arrays that a node's formula keeps, by the names which they have there."""
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("vjp", node.vjp)]
    while stack:
        name, value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, tuple | list):
            stack += [(name, each) for each in value]
        elif isinstance(value, dict):
            stack += [(name, each) for each in value.values()]
        elif isinstance(value, partial):
            stack += [(name, each) for each in (value.func, *value.args, *value.keywords.values())]
        elif (cells := getattr(value, "__closure__", None)) is not None:
            for free, cell in zip(value.__code__.co_freevars, cells, strict=True):
                if cell != _EMPTY:
                    stack.append((free, cell.cell_contents))


_EMPTY = type((lambda value: lambda: value)(0).__closure__[0])()  # type: ignore[index]
"""A cell with nothing in it is equal to this one."""
