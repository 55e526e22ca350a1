"""Tasks as people type them, and as they are told of: by their place in the run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from ...engine.queue.policy import is_dynamic
from ...engine.queue.ready_queue import PolicyError
from ...engine.sessions.stepper import Stepper
from ...engine.words.phrases import nth
from ...inspector.graph.graph import Graph, Task

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
