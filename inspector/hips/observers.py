"""What is to be known of tapes while they are recorded: their values, and who follows what their nodes make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

LOOKING: ContextVar[bool] = ContextVar("looking_at_values", default=False)
"""Whether nodes that are made look for NaN and infinite values."""


class Follower(Protocol):
    """Callbacks for the start of each trace and for each new node."""

    def begun(self, root: Any) -> None: ...

    def made(self, node: Any) -> None: ...


FOLLOWED: ContextVar[Follower | None] = ContextVar("followed_by", default=None)
"""The observers of the tapes that are recorded."""


@contextmanager
def looking_at_values() -> Iterator[None]:
    """Tapes that are recorded meanwhile know which node made the first NaN or infinite value."""
    token = LOOKING.set(True)
    try:
        yield
    finally:
        LOOKING.reset(token)
