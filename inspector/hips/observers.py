"""Observers of tapes while they are recorded: checks of values, and callbacks for new nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

LOOKING: ContextVar[bool] = ContextVar("looking_at_values", default=False)
"""True if new nodes check their values for NaN and infinity."""


class Follower(Protocol):
    """Callbacks for the start of each trace and for each new node."""

    def begun(self, root: Any) -> None: ...

    def made(self, node: Any) -> None: ...


FOLLOWED: ContextVar[Follower | None] = ContextVar("followed_by", default=None)
"""The active observers of tape recordings."""


@contextmanager
def looking_at_values() -> Iterator[None]:
    """Let tapes recorded in this context find the node that made the first NaN or infinite value."""
    token = LOOKING.set(True)
    try:
        yield
    finally:
        LOOKING.reset(token)
