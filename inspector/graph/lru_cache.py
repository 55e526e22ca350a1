"""A small cache of the most recently used results."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import RLock
from typing import Generic, TypeVar

_MOST = 64  # of each kind

V = TypeVar("V")


class LongKey:
    """A long key that computes its hash once; a tuple would do so at each lookup.

    Raises:
        TypeError: A part of the key is not hashable.
    """

    __slots__ = ("_facts", "_hash")

    def __init__(self, *facts: Hashable) -> None:
        self._facts = facts
        self._hash = hash(facts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LongKey) and self._hash == other._hash and self._facts == other._facts


class Latest(Generic[V]):
    """The most recently used values by key. Threads may share it, and so may finalizers, which run inside its methods.

    Keys compare in Python, where Ctrl-C may interrupt. An OrderedDict would then have a key without a position; a dict,
    whose entries move to the end by leaving and returning, only loses the entry.

    Args:
        most: maximum total weight of the values.
        weigh: function that returns a value's weight.
    """

    def __init__(self, most: int = _MOST, weigh: Callable[[V], int] = lambda found: 1) -> None:
        self._most = most
        self._weigh = weigh
        self._found: dict[Hashable, V] = {}
        self._lock = RLock()

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._found

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Hashable) -> V | None:
        """Return the cached value of this key, or None."""
        with self._lock:
            found = self._found.pop(key, None)
            if found is not None:
                self._found[key] = found
            return found

    def put(self, key: Hashable, found: V) -> None:
        """Cache a value for the key, replacing the previous one."""
        with self._lock:
            self._found.pop(key, None)
            self._found[key] = found
            while sum(map(self._weigh, self._found.values())) > self._most:
                self._found.pop(next(iter(self._found)))

    def of(self, key: Hashable, find: Callable[[], V]) -> V:
        """Return the cached value of this key; if it is missing, call `find` and cache its result."""
        found = self.get(key)
        if found is None:
            found = find()  # may take seconds, so outside of the lock
            self.put(key, found)
        return found

    def clear(self) -> None:
        with self._lock:
            self._found.clear()
