"""Tasks, breakpoints and watchpoints as people type them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from ...engine.schedule.policy import is_dynamic
from ...engine.schedule.ready_queue import PolicyError
from ...engine.session.direct_session import Stepper
from ...inspector.graph.graph import Graph, Task
from ...inspector.text.sizes_and_counts import nth

_TASK = re.compile(r"\s*#(\d+)\s*")
_OPERATOR = re.compile(r"\s*([<>])\s*")


def place(text: str) -> str:
    """Where to break. The page gives tasks by their ids, as #12.

    Raises:
        ValueError: nothing was typed.
    """
    if not text.strip():
        raise ValueError(
            "break where? Give a task (53rd), a node (Addmm), a module (encoder.layer.3), a parameter (head.weight) "
            "or a line (model.py:120)"
        )
    found = _TASK.fullmatch(text)
    return text.strip() if found is None else f"task:{found[1]}"


def watched(text: str) -> tuple[list[str], str | None]:
    """What to watch for, and where: `nan, inf`, `norm > 1e3 and upcast at encoder.*`. None: everywhere.

    Raises:
        ValueError: nothing was typed.
    """
    what, _, where = re.sub(r"\s+", " ", f" {text} ").partition(" at ")
    words = _OPERATOR.sub(r"\1", what).replace(",", " ").replace(" or ", " ").split()
    conditions: list[str] = []
    joined = False
    for word in words:
        if word == "and" and conditions:
            joined = True
        elif joined:
            conditions[-1] += f" and {word}"
            joined = False
        else:
            conditions.append(word)
    if not conditions or joined:
        raise ValueError(
            "watch for what? Give conditions, as nan, inf, zero, norm>1e3, ratio<0.01, upcast, shape or missing, and "
            "after `at` a module where it is not everywhere"
        )
    return conditions, where.strip() or None


_TYPED = re.compile(r"\s*(?:(?P<place>\d[\d,]*)(?:st|nd|rd|th)?|#(?P<created>\d+))\s*")


class Running(Protocol):
    """A session, or a deck."""

    @property
    def graph(self) -> Graph: ...

    @property
    def order(self) -> Sequence[int]: ...

    @property
    def planned(self) -> Sequence[int]: ...

    @property
    def current(self) -> Task | None: ...


def run_of(session: Running) -> Sequence[int]:
    """The ids of its tasks in the order in which they ran and are going to, as far as that is known."""
    asks = isinstance(session, Stepper) and is_dynamic(session.picks)  # the user's function, for each task to come
    if not asks and (planned := session.planned):
        return planned
    try:
        current = session.current
    except PolicyError:  # it fails to choose
        current = None
    return [*session.order, *([] if current is None else [current.id])]


def told(session: Running) -> Graph:
    """Its graph, which says of tasks at which place they ran or are going to run."""
    return session.graph.in_order(run_of(session))


def is_typed_task(text: str) -> bool:
    """Whether it is a number by which a task may be typed."""
    return _TYPED.fullmatch(text) is not None


def typed_task(text: str, graph: Graph, order: Sequence[int]) -> Task:
    """The task that is typed: `53rd` or `53`, its place in this order; `#26`, the one created as that number.

    Raises:
        ValueError: it is neither, or no task has this place.
    """
    found = _TYPED.fullmatch(text)
    if found is None:
        raise ValueError(
            f"which task? {text.strip()!r} is no place of one in this run, as 53rd; find and queue show them"
        )
    if found["created"] is not None:
        return graph.task(int(found["created"]))
    place = int(found["place"].replace(",", ""))
    if not 1 <= place <= len(order):
        raise ValueError(f"no task runs {nth(place)}: known are the 1st to the {nth(len(order))} of this run")
    return graph.tasks[order[place - 1]]
