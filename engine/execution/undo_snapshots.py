"""Places in which Python code keeps state: read before a task, and restored by undo."""

from __future__ import annotations

import array
import io
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from operator import is_
from types import CellType
from typing import Any, Protocol

import torch

from ...inspector.torch_private.hooks import set_post_accumulate_hooks

MISSING = object()


class PlaceChange(Protocol):
    """A change of a place, which can be undone and redone."""

    def undo(self) -> None: ...

    def redo(self) -> None: ...


class Place(Protocol):
    """A place with state that code may change."""

    def read(self) -> Any: ...

    def change(self, before: Any) -> PlaceChange | None: ...


@dataclass(slots=True)
class ByKey:
    """A dict, or the names in it to which code refers."""

    kept: MutableMapping[Any, Any]
    names: tuple[str, ...] | None = None

    def read(self) -> dict[Any, Any]:
        if self.names is None:
            return dict(self.kept)
        return {name: self.kept.get(name, MISSING) for name in self.names}

    def change(self, before: dict[Any, Any]) -> PlaceChange | None:
        kept = self.kept
        is_whole = self.names is None and isinstance(kept, dict) and len(kept) == len(before)
        if is_whole and all(map(is_, kept, before)) and all(map(is_, kept.values(), before.values())):
            return None  # unchanged, as most are, found without a copy
        after = self.read()
        if len(before) == len(after) and all(map(is_, (*before, *before.values()), (*after, *after.values()))):
            return None
        keys = [*before, *(key for key in after if key not in before)]
        changed = [(key, before.get(key, MISSING), after.get(key, MISSING)) for key in keys]
        changed = [each for each in changed if each[1] is not each[2]]
        return Rebound(self.kept, changed, tuple(before), tuple(after)) if changed else None


@dataclass(slots=True)
class Rebound:
    """Keys with their values before and after. Restored hooks keep their position in the order."""

    kept: MutableMapping[Any, Any]
    changed: list[tuple[Any, Any, Any]]
    keys_before: tuple[Any, ...]
    keys_after: tuple[Any, ...]

    def undo(self) -> None:
        self._put([(key, after, before) for key, before, after in self.changed], self.keys_before)

    def redo(self) -> None:
        self._put(self.changed, self.keys_after)

    def _put(self, changed: list[tuple[Any, Any, Any]], keys: tuple[Any, ...]) -> None:
        kept, again = self.kept, False
        for key, expected, wanted in changed:
            if kept.get(key, MISSING) is not expected:
                continue
            if wanted is MISSING:
                del kept[key]
            else:
                again |= expected is MISSING
                kept[key] = wanted
        if again:
            for key in [*(key for key in keys if key in kept), *(key for key in list(kept) if key not in keys)]:
                kept[key] = kept.pop(key)


class Attributes(MutableMapping[str, Any]):
    """Attributes that are not in a writable dict."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._found, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self._found, name)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class OfClass(Attributes):
    """Attributes of a class. The `backward` of a custom Function is static, so it may keep a count there."""

    def __getitem__(self, name: str) -> Any:
        return vars(self._found)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in vars(self._found) if not name.startswith("__"))


class OfSlots(Attributes):
    """Attributes of an object with `__slots__`."""

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._found, name)
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        slots = (vars(kind).get("__slots__", ()) for kind in type(self._found).__mro__)
        names = (name for each in slots for name in ((each,) if isinstance(each, str) else each))
        return (name for name in names if not name.startswith("__") and hasattr(self._found, name))


class OfLeaf(Attributes):
    """The hooks of a leaf. If there never were any, torch has None in place of the dict."""

    _NAMES = "_backward_hooks", "_post_accumulate_grad_hooks"

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "_post_accumulate_grad_hooks":
            set_post_accumulate_hooks(self._found, value)
        else:
            setattr(self._found, name, value)

    def __getitem__(self, name: str) -> Any:
        return getattr(self._found, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._NAMES)


class _ComparedPlace:
    """A place whose states before and after a task are compared and restored as a whole."""

    __slots__ = ()
    read: Callable[[], Any]
    write: Callable[[Any], object]

    def same(self, one: Any, other: Any) -> bool:
        return bool(one == other)

    def change(self, before: Any) -> PlaceChange | None:
        after = self.read()
        return None if self.same(before, after) else _Whole(self, before, after)


@dataclass(slots=True)
class SavedState(_ComparedPlace):
    """The state of a random number generator, or of a file in memory."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


def global_generators() -> Iterator[SavedState]:
    """Yield the states of Python's and NumPy's global generators; torch's are recorded with each task."""
    yield SavedState(random.getstate, random.setstate)
    if (numpy := sys.modules.get("numpy")) is not None:
        yield _pickled(numpy.random.get_state, numpy.random.set_state)


def saved_state_of(found: Any) -> SavedState | None:
    if isinstance(found, random.Random) and not isinstance(found, random.SystemRandom):  # it has no state
        return SavedState(found.getstate, found.setstate)
    if isinstance(found, io.StringIO | io.BytesIO) and not found.closed:
        in_memory: Any = found
        return SavedState(in_memory.__getstate__, in_memory.__setstate__)
    if isinstance(found, torch.Generator):
        return SavedState(lambda: found.get_state().tolist(), lambda state: found.set_state(torch.ByteTensor(state)))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(found, numpy.random.Generator):
        bits = found.bit_generator
        return _pickled(lambda: bits.state, lambda state: setattr(bits, "state", state))
    return None


def _pickled(read: Callable[[], Any], write: Callable[[Any], object]) -> SavedState:
    """Return a state that contains arrays, pickled so that it can be compared."""
    return SavedState(lambda: pickle.dumps(read()), lambda state: write(pickle.loads(state)))


@dataclass(slots=True)
class ClosureCell(_ComparedPlace):
    """A closure variable of an enclosing function."""

    cell: CellType

    def read(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return MISSING

    def write(self, value: Any) -> None:
        if value is MISSING:
            del self.cell.cell_contents
        else:
            self.cell.cell_contents = value

    def same(self, one: Any, other: Any) -> bool:
        return one is other


@dataclass(slots=True)
class Entries(_ComparedPlace):
    """A list or a deque."""

    kept: list[Any] | deque[Any]

    def read(self) -> tuple[Any, ...]:
        return tuple(self.kept)

    def change(self, before: tuple[Any, ...]) -> PlaceChange | None:
        after = self.read()
        if self.same(before, after):
            return None
        if isinstance(self.kept, list) and self.same(before, after[: len(before)]):  # a log: store only the new entries
            return _Grown(self.kept, len(before), after[len(before) :])
        return _Whole(self, before, after)

    def write(self, value: tuple[Any, ...]) -> None:
        self.kept.clear()
        self.kept.extend(value)

    def same(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        return len(one) == len(other) and all(map(is_, one, other))


@dataclass(slots=True)
class _Grown:
    """A list that only grew. Undo removes the new entries, unless something else has changed them since."""

    kept: list[Any]
    length: int
    added: tuple[Any, ...]

    def undo(self) -> None:
        tail = self.kept[self.length :]
        if len(tail) == len(self.added) and all(one is other for one, other in zip(tail, self.added, strict=True)):
            del self.kept[self.length :]

    def redo(self) -> None:
        if len(self.kept) == self.length:
            self.kept.extend(self.added)


@dataclass(slots=True)
class Set(_ComparedPlace):
    """A set."""

    kept: set[Any]

    def read(self) -> frozenset[Any]:
        return frozenset(self.kept)

    def write(self, value: frozenset[Any]) -> None:
        self.kept.clear()
        self.kept.update(value)


@dataclass(slots=True)
class Array(_ComparedPlace):
    """A numpy array, an `array.array` or a bytearray."""

    kept: Any

    @staticmethod
    def of(found: Any) -> Array | None:
        """Return the array; None for other objects and for read-only arrays."""
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(found, numpy.ndarray):
            return Array(found) if found.flags.writeable else None
        return Array(found) if isinstance(found, array.array | bytearray) else None

    @property
    def nbytes(self) -> int:
        return int(memoryview(self.kept).nbytes if isinstance(self.kept, bytearray | array.array) else self.kept.nbytes)

    def read(self) -> Any:
        return self.kept[:] if isinstance(self.kept, bytearray | array.array) else self.kept.copy()

    def write(self, value: Any) -> None:
        every = ... if hasattr(value, "shape") else slice(None)
        self.kept[every] = value

    def same(self, one: Any, other: Any) -> bool:
        bits_of = bytes if isinstance(one, bytearray) else type(one).tobytes
        return bool(bits_of(one) == bits_of(other))


@dataclass(slots=True)
class _Whole:
    """A change of a place that is restored as a whole, unless something else has changed the place since."""

    place: _ComparedPlace
    before: Any
    after: Any

    def undo(self) -> None:
        self._put(self.after, self.before)

    def redo(self) -> None:
        self._put(self.before, self.after)

    def _put(self, expected: Any, wanted: Any) -> None:
        now: Any = self.place.read()
        if self.place.same(now, expected):
            self.place.write(wanted)
