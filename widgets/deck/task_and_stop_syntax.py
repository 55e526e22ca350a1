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
    """Return the place of a breakpoint for typed text. The page writes tasks by their ids, such as #12.

    Raises:
        ValueError: if the text is empty.
    """
    if not text.strip():
        raise ValueError(
            "missing place to break; expected a task (53rd), a node (Addmm), a module (encoder.layer.3), a parameter "
            "(head.weight) or a line (model.py:120)"
        )
    found = _TASK.fullmatch(text)
    return text.strip() if found is None else f"task:{found[1]}"


def watched(text: str) -> tuple[list[str], str | None]:
    """Return the conditions and the module of typed text such as `nan, inf` or `norm > 1e3 and upcast at encoder.*`.

    The module is None if none is typed: then all modules are watched.

    Raises:
        ValueError: if the text has no condition.
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
            "missing condition to watch for; expected nan, inf, zero, norm>1e3, ratio<0.01, upcast, shape or missing, "
            "and optionally `at` with a module"
        )
    return conditions, where.strip() or None


_TYPED = re.compile(r"\s*(?:(?P<place>\d[\d,]*)(?:st|nd|rd|th)?|#(?P<created>\d+))\s*")


class Running(Protocol):
    """A session or a deck, as far as typed tasks need it."""

    @property
    def graph(self) -> Graph: ...

    @property
    def order(self) -> Sequence[int]: ...

    @property
    def planned(self) -> Sequence[int]: ...

    @property
    def current(self) -> Task | None: ...


def run_of(session: Running) -> Sequence[int]:
    """Return the ids of the tasks in the order in which they ran and will run, as far as it is known."""
    # A dynamic policy is a user's function, which would have to be called for each coming task.
    decides_later = isinstance(session, Stepper) and is_dynamic(session.picks)
    if not decides_later and (planned := session.planned):
        return planned
    try:
        current = session.current
    except PolicyError:  # the user's policy fails to choose
        current = None
    return [*session.order, *([] if current is None else [current.id])]


def told(session: Running) -> Graph:
    """Return the session's graph, which describes tasks with their positions in the run."""
    return session.graph.in_order(run_of(session))


def is_typed_task(text: str) -> bool:
    """Return whether a text is a task's position or number, such as `53rd` or `#26`."""
    return _TYPED.fullmatch(text) is not None


def typed_task(text: str, graph: Graph, order: Sequence[int]) -> Task:
    """Return the task for typed text: `53rd` or `53` is its position in this order, `#26` its number of creation.

    Raises:
        ValueError: if the text is neither, or no task has this position.
    """
    found = _TYPED.fullmatch(text)
    if found is None:
        raise ValueError(
            f"unknown task {text.strip()!r}; expected its position in this run, such as 53rd, which find and queue show"
        )
    if found["created"] is not None:
        return graph.task(int(found["created"]))
    place = int(found["place"].replace(",", ""))
    if not 1 <= place <= len(order):
        raise ValueError(f"no task runs {nth(place)}; this run has the 1st to the {nth(len(order))} task")
    return graph.tasks[order[place - 1]]
