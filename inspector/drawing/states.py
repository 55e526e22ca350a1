"""How far a backward is, in the picture of its graph: what has run, what runs, what is ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from ..graph.graph import Graph
from .cells import Rect
from .layout import Layout

State = Literal["done", "running", "ready", "waiting"]

STATE_TITLES: Mapping[State, str] = {"done": "has run", "running": "runs next", "ready": "ready", "waiting": "waits"}
"""In the order of the legend. What is mixed, a box or a row of tasks, has the share of it that has run as a bar."""

_BAR = 3  # pixels
_ROUND = 5


def states_of(count: int, ran: Sequence[int], ready: Sequence[int], current: int | None) -> list[State]:
    """By task its state.

    Args:
        count: how many tasks there are.
        ran: the ids of those that have run.
        ready: of those that wait in the ready queue.
        current: of the one that runs next, if one does.
    """
    states: list[State] = ["waiting"] * count
    for task_id in ready:
        states[task_id] = "ready"
    for task_id in ran:
        states[task_id] = "done"
    if current is not None:
        states[current] = "running"
    return states


def draw_states(states: Sequence[State], graph: Graph, placed: Layout) -> Iterator[str]:
    """Over the tasks and closed boxes of a laid out graph; nothing where no states are given."""
    if not states:
        return
    shown: dict[int, Counter[State]] = {}
    drawn = {task_id for pill in placed.pills for task_id in pill.tasks} | {each.task for each in placed.tasks}
    for task_id, stands_in in enumerate(placed.shown_by):
        givers = graph.in_edges[task_id]
        if graph.tasks[task_id].is_leaf and stands_in not in drawn and givers:  # within a closed box, with its giver
            stands_in = placed.shown_by[givers[0].task]
        shown.setdefault(stands_in, Counter())[states[task_id]] += 1
    for task in placed.tasks:
        yield _drawn(task.rect, shown.get(task.task, Counter()))
    for pill in placed.pills:
        found = sum((shown.get(each, Counter()) for each in pill.tasks), Counter())
        yield _drawn(pill.rect, found, pill.rect.height / 2)
    for box in placed.boxes:
        if box.group.closed:
            tasks = dict.fromkeys(box.group.tasks())
            yield _drawn(box.rect, sum((shown.get(each, Counter()) for each in tasks), Counter()))


def state_entries(states: Sequence[State]) -> Iterator[tuple[str, float, str]]:
    """The legend: for each state that occurs a sample, its width, and what it means."""
    for state, title in STATE_TITLES.items():
        if state in states and state != "waiting":
            yield f'<g transform="translate(0 2)">{_shape(state, 14, 12)}</g>', 14, title


def _drawn(rect: Rect, found: Counter[State], rounded: float = _ROUND) -> str:
    """One state for all of what is drawn here; of several the liveliest, and how many have run."""
    done, count = found["done"], found.total()
    state: State = "done" if done and done == count else "waiting"
    state = "running" if found["running"] else "ready" if found["ready"] else state
    parts = _shape(state, rect.width, rect.height, rounded)
    if 0 < done < count:
        bar = f'x="0" y="{rect.height - _BAR:g}" width="{rect.width * done / count:.1f}" height="{_BAR}"'
        parts += f'<rect class="th-bar" {bar}/>'
    place = f"translate({rect.x:.1f} {rect.y:.1f})"
    return f'<g class="th-state" data-state="{state}" transform="{place}">{parts}</g>'


def _shape(state: State, width: float, height: float, rounded: float = _ROUND) -> str:
    if state == "waiting":
        return ""
    corner = min(rounded, width / 2, height / 2)
    return f'<rect class="th-is-{state}" width="{width:.1f}" height="{height:.1f}" rx="{corner:g}"/>'
