"""What a page asks of a live session, as commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ....engine.stops.breakpoints import Breakpoint
from ..stop_words import place, watched
from ..typed_tasks import is_typed_task, typed_task
from .live import Live

if TYPE_CHECKING:
    from ....engine.stops.watchpoints import Watchpoint


def command_of(message: Any, live: Live) -> Callable[[], object] | None:
    """What a message wants done, between two commands; None: it is none of these."""
    match message:
        case {"kind": "step", "device": str(device)}:
            return partial(live.running.step, 1, None, device)
        case {"kind": "step", "count": int(count)}:
            return partial(live.running.step, count)
        case {"kind": "step", "task": int(task)}:
            return partial(live.running.step, 1, task)
        case {"kind": "run"}:
            return live.running.run
        case {"kind": "run_to", "task": int(task)}:
            return partial(live.running.run_to, task)
        case {"kind": "policy", "policy": str(policy)}:
            return partial(live.switch, policy)
        case {"kind": "inspect", "task": int(task)}:
            return partial(live.edits.inspect, task)
        case {"kind": "groups"}:
            return live.find_groups
        case {"kind": "predict"}:
            return live.predict
        case {"kind": "step_over"}:
            return live.running.step_over
        case {"kind": "step_out"}:
            return partial(live.running.step_over, out=1)
        case {"kind": "rewind", "position": int(position)}:
            return partial(live.running.rewind, position)
        case {"kind": "branch", "number": int(number)}:
            return partial(live.running.goto, None, number)
        case {"kind": "edit", "how": str(how), "value": value}:
            return partial(live.edits.edit_as_told, how, value)
        case {"kind": "check", "task": int(task)}:
            return partial(live.edits.check, task)
    return None


def stop_change_of(message: Any, live: Live) -> Callable[[], object] | None:
    """What a message wants changed of breakpoints and watchpoints, also while tasks run; None: it is none of these."""
    stops = live.session.stops
    match message:
        case {"kind": "break", "where": str(where)}:
            return partial(_break_where, where, live)
        case {"kind": "watch", "condition": str(condition)}:
            return partial(_watch_for, condition, live)
        case {"kind": "enable", "number": int(number), "on": bool(on)}:
            return partial(stops.enable if on else stops.disable, number)
        case {"kind": "delete", "number": int(number)}:
            return partial(stops.delete, number)
    return None


def _break_where(text: str, live: Live) -> Breakpoint:
    """A breakpoint where a person has typed."""
    session = live.session
    if is_typed_task(text):
        return session.break_at(typed_task(text, session.graph, live.plan.order))
    return session.break_at(place(text))


def _watch_for(text: str, live: Live) -> Watchpoint:
    """A watchpoint of what a person has typed."""
    conditions, at = watched(text)
    return live.session.watch(*conditions, at=at)
