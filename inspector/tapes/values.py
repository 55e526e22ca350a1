"""Whether tapes that are recorded look at the values of their nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LOOKING: ContextVar[bool] = ContextVar("looking_at_values", default=False)
"""Whether nodes that are made look for NaN and infinite values."""


@contextmanager
def looking_at_values() -> Iterator[None]:
    """Tapes that are recorded meanwhile know which node made the first NaN or infinite value."""
    token = LOOKING.set(True)
    try:
        yield
    finally:
        LOOKING.reset(token)
