"""Batches, seen as a DataLoader hands them out, in any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter


@contextmanager
def watching_batches(seen: Callable[[Any], None]) -> Iterator[None]:
    """Calls `seen` with each batch of any DataLoader, also those of loaders that are iterated already."""
    original = _BaseDataLoaderIter.__next__
    ended = False

    @wraps(original)
    def following(iterator: Any) -> Any:
        batch = original(iterator)
        if not ended:
            seen(batch)
        return batch

    _BaseDataLoaderIter.__next__ = following  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ended = True  # others may have wrapped it meanwhile, and have this in their chain for good
        if _BaseDataLoaderIter.__next__ is following:
            _BaseDataLoaderIter.__next__ = original  # type: ignore[method-assign]
