"""What a page asks of a live session, as commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .live import Live


def command_of(message: Any, live: Live) -> Callable[[], object] | None:
    """What a message wants done, between two commands; None: it is none of these."""
    match message:
        case {"kind": "step", "device": str(device)}:
            return partial(live.step, 1, None, device)
        case {"kind": "step", "count": int(count)}:
            return partial(live.step, count)
        case {"kind": "step", "task": int(task)}:
            return partial(live.step, 1, task)
        case {"kind": "run"}:
            return live.run
        case {"kind": "run_to", "task": int(task)}:
            return partial(live.run_to, task)
        case {"kind": "policy", "policy": str(policy)}:
            return partial(live.switch, policy)
        case {"kind": "inspect", "task": int(task)}:
            return partial(live.inspect, task)
        case {"kind": "groups"}:
            return live.find_groups
        case {"kind": "predict"}:
            return live.predict
        case {"kind": "step_over"}:
            return live.step_over
        case {"kind": "step_out"}:
            return partial(live.step_over, out=1)
        case {"kind": "rewind", "position": int(position)}:
            return partial(live.rewind, position)
        case {"kind": "branch", "number": int(number)}:
            return partial(live.goto, None, number)
        case {"kind": "edit", "how": str(how), "value": value}:
            return partial(live.edit_as_told, how, value)
        case {"kind": "check", "task": int(task)}:
            return partial(live.check, task)
    return None


def stop_change_of(message: Any, live: Live) -> Callable[[], object] | None:
    """What a message wants changed of breakpoints and watchpoints, also while tasks run; None: it is none of these."""
    stops = live.session.stops
    match message:
        case {"kind": "break", "where": str(where)}:
            return partial(live.break_where, where)
        case {"kind": "watch", "condition": str(condition)}:
            return partial(live.watch_for, condition)
        case {"kind": "enable", "number": int(number), "on": bool(on)}:
            return partial(stops.enable if on else stops.disable, number)
        case {"kind": "delete", "number": int(number)}:
            return partial(stops.delete, number)
    return None
