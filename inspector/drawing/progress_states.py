"""Progress of a backward in the picture of its graph: done, running and ready tasks.

Equal layers are drawn once. The picture shows the layer that runs, or that ran last, as the deck does
(widgets/js/src/graph/layer_choice.ts).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..graph.graph import Graph
from .boxes import PlacedBox
from .fold import FoldedCalls
from .layout import Layout

State = Literal["done", "running", "ready", "waiting"]

STATE_TITLES: Mapping[State, str] = {"done": "done", "running": "running", "ready": "ready", "waiting": "waiting"}
"""Titles of the states in the order of the legend, the same as in the deck."""

_BAR = 2  # height in pixels of a closed box's progress bar
_BELOW_BAR = 1.5


def states_of(count: int, ran: Sequence[int], ready: Sequence[int], current: int | None) -> list[State]:
    """Return the state of each task.

    Args:
        count: number of tasks.
        ran: ids of the tasks that have run.
        ready: ids of the tasks in the ready queue.
        current: id of the task that runs next, or None.
    """
    states: list[State] = ["waiting"] * count
    for task_id in ready:
        states[task_id] = "ready"
    for task_id in ran:
        states[task_id] = "done"
    if current is not None:
        states[current] = "running"
    return states


LayerState = Literal["done", "running", "begun", "waiting"]


@dataclass(frozen=True, slots=True)
class ShownLayer:
    """The one of equal layers that the picture shows, and the state of each layer, the first created first."""

    number: int
    states: tuple[LayerState, ...]


class Standing:
    """The progress of all drawn elements; empty without states."""

    def __init__(self, states: Sequence[State], graph: Graph, placed: Layout) -> None:
        self._layers: dict[int, ShownLayer] = {}  # by `FoldedCalls.repeat`
        self._counts: dict[int, Counter[State]] = {}  # by drawn task
        self._shown: dict[int, int] = {}
        if states:
            self._count(states, graph, placed, _Layers(states, graph, placed.boxes).choose(self._layers))

    def shown(self, task: int) -> int:
        """Return the task that a drawn task shows: itself, or its counterpart in the shown one of equal layers."""
        return self._shown.get(task, task)

    def layer(self, group: FoldedCalls) -> ShownLayer | None:
        """Return which of its equal layers an open box shows, or None if it shows no particular one."""
        return None if group.repeat is None else self._layers.get(group.repeat)

    def mark(self, tasks: Sequence[int]) -> tuple[str, str]:
        """Return classes and attributes of the element that shows these tasks; empty without states.

        The most active state of the tasks counts.
        """
        if not self._counts:
            return "", ""
        found = self._found(tasks)
        if found["running"] or found["ready"]:
            state = "running" if found["running"] else "ready"
        else:
            state = "done" if 0 < found["done"] == found.total() else "waiting"
        return f" ts-now-{state}", f' data-state="{state}"'

    def bar(self, tasks: Sequence[int], left: float, right: float, height: float) -> str:
        """Return the progress bar of an element with several tasks, a line from `left` to `right` at its bottom."""
        found = self._found(tasks)
        done, count = found["done"], found.total()
        if not 0 < done < count:
            return ""
        top = height - _BAR - _BELOW_BAR
        width = max(1.0, (right - left) * done / count)
        return f'<path class="ts-bar" d="M{left:g} {top:g}h{width:.1f}v{_BAR}H{left:g}z"/>'

    def _found(self, tasks: Sequence[int]) -> Counter[State]:
        return sum((self._counts.get(each, Counter()) for each in dict.fromkeys(tasks)), Counter())

    def _count(self, states: Sequence[State], graph: Graph, placed: Layout, hidden: set[int]) -> None:
        drawn = {task_id for pill in placed.pills for task_id in pill.tasks} | {each.task for each in placed.tasks}
        for task_id, stands_in in enumerate(placed.shown_by):
            givers = graph.in_edges[task_id] if graph.tasks[task_id].is_leaf else ()
            if task_id in hidden or (givers and all(each.task in hidden for each in givers)):
                continue
            self._shown.setdefault(stands_in, task_id)
            if givers and stands_in not in drawn:  # in a closed box, counted with the task that passes its gradient
                stands_in = placed.shown_by[givers[0].task]
            self._counts.setdefault(stands_in, Counter())[states[task_id]] += 1


class _Layers:
    """Chooses among equal layers, the outermost first."""

    def __init__(self, states: Sequence[State], graph: Graph, boxes: Sequence[PlacedBox]) -> None:
        self._states = states
        self._graph = graph
        self._groups = [box.group for box in boxes if box.group.layers and not box.group.closed]
        self._chosen: list[tuple[FoldedCalls, dict[int, int], int]] = []  # with the place of each task in its layer

    def choose(self, shown: dict[int, ShownLayer]) -> set[int]:
        """Set in `shown` the layer shown for each `FoldedCalls.repeat`, and return the tasks of all other layers."""
        hidden: set[int] = set()
        for group in self._groups:
            assert group.repeat is not None
            members = [[self._in_chosen(task) for task in tasks] for tasks in group.layers]
            states = tuple(self._layer_state(tasks) for tasks in members)
            begun = [number for number, state in enumerate(states) if state != "waiting"]
            running = [number for number, state in enumerate(states) if state == "running"]
            number = (running or begun or [len(members) - 1])[0]  # the last created runs first
            shown[group.repeat] = ShownLayer(number, states)
            hidden.update(task for other, tasks in enumerate(members) if other != number for task in tasks)
            places = {task: place for tasks in group.layers for place, task in enumerate(tasks)}
            self._chosen.append((group, places, number))
        return hidden

    def _in_chosen(self, task: int) -> int:
        """Return the counterpart of a task in the shown ones of the layers around it."""
        for group, places, number in reversed(self._chosen):
            if task in places:
                task = group.layers[number][places[task]]
        return task

    def _layer_state(self, tasks: Sequence[int]) -> LayerState:
        inside = set(tasks)
        found = {self._states[each] for task in tasks for each in (task, *self._parameters(task, inside))}
        if "running" in found:
            return "running"
        if found == {"done"}:
            return "done"
        return "begun" if "done" in found else "waiting"

    def _parameters(self, task: int, inside: set[int]) -> Iterator[int]:
        """Yield the parameters that only this layer uses. The task of a shared parameter runs after all layers."""
        graph = self._graph
        for edge in graph.out_edges[task]:
            givers = graph.in_edges[edge.next_task] if graph.tasks[edge.next_task].is_leaf else ()
            if givers and all(giver.task in inside for giver in givers):
                yield edge.next_task
