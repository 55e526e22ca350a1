"""In-place writes of a forward, detected by tensor versions, and a log of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from ..graph.node_metadata import tensors_of
from ..graph.operation_inputs import argument_names, writes_first_argument
from ..graph.source_lines import Place, source_at, users_place
from ..torch_private.operators import writes_arguments
from ..torch_private.tensors import FollowedStorage, base_of, local_of, version_of
from ..torch_private.thread_state import without_torch_function


class Write(NamedTuple):
    """One call that wrote a tensor's bytes.

    Attributes:
        what: name of the function.
        place: the line that called it.
        storage: identifies the bytes, without keeping them alive.
        before, after: the versions before and after the write.
        is_silent: whether the versions belong to another tensor on the same bytes (`.data`), which autograd does not
            see.
    """

    what: str
    place: Place | None
    storage: FollowedStorage
    before: int
    after: int
    is_silent: bool

    def __str__(self) -> str:
        """Return the write as text: `add_ at train.py:45`."""
        source = None if self.place is None else source_at(self.place)
        return f"{self.what} at {source.short}" if source is not None else self.what


_MOST = 10_000  # an optimizer step may make hundreds; each needs 300 bytes
_log: deque[Write] = deque(maxlen=_MOST)  # of all threads


def note_write(
    what: str, place: Place | None, tensor: Tensor, before: int, after: int, is_silent: bool = False
) -> None:
    """Log that a call wrote to the tensor."""
    try:
        storage = FollowedStorage(local_of(tensor))
    except (NotImplementedError, RuntimeError, ValueError):  # no storage: sparse, nested
        return
    _log.append(Write(what, place, storage, before, after, is_silent))


def writes_between(address: int, version: int, now: int) -> list[Write]:
    """Return the in-place writes that took a live storage from one version to another; empty if any is unknown."""
    found: list[Write] = []
    for write in tuple(_log):
        if write.storage.address == address and not write.is_silent and version <= write.before and write.after <= now:
            while found and write.before <= found[-1].before:  # a nested call, or one seen by two watchers
                found.pop()
            found.append(write)
    ends = [(version, version), *((write.before, write.after) for write in found), (now, now)]
    return found if all(one[1] == other[0] for one, other in pairwise(ends)) else []


_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_ARRAYS = (torch.Tensor.numpy, torch.Tensor.__array__)
_aliases: dict[int, ref[Tensor]] = {}  # by id(): results of `.data`, which have their own version counter

Versions = Sequence[tuple[Tensor, int]]
"""The tensors that a call may write, with their versions before it."""


class UnnoticedWrites(Protocol):
    """Callbacks for writes that leave the versions of other tensors on the same bytes unchanged.

    They are called in the thread that writes.
    """

    def begins(self, tensor: Tensor) -> None:
        """Called when the tensor, or its `.data`, is about to be written."""

    def ends(self, what: str, place: Place | None, tensor: Tensor) -> None:
        """Called after the write. After `tensor.data = other` the tensor has other bytes."""

    def is_shared(self, array: Any) -> None:
        """Note that a NumPy array shares a tensor's bytes; no call reports when the array is written."""


_watchers: list[UnnoticedWrites] = []


@contextmanager
def watching_unnoticed_writes(watcher: UnnoticedWrites) -> Iterator[None]:
    """Report unnoticed writes seen by the open modes (a capture's, or `WritesSeen`) to the watcher."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


class _Writes(Enum):
    """The argument that a function may write, apart from `out`."""

    NOTHING = auto()
    FIRST = auto()
    """The first argument: `add_`."""
    IF_TOLD = auto()
    """The first argument if `inplace` is true."""
    ANYTHING = auto()
    """Unknown, or several."""
    UNNOTICED = auto()
    """None, but the result shares the bytes without sharing the version counter: `.data`, `numpy`."""
    REBOUND = auto()
    """The first argument gets other bytes, and keeps its version: `tensor.data = other`."""


@lru_cache(maxsize=4096)
def _what(function: Callable[..., Any]) -> _Writes:
    name = str(getattr(function, "__name__", ""))
    if function == _DATA or function in _ARRAYS:
        return _Writes.UNNOTICED
    if function == _SET_DATA:
        return _Writes.REBOUND
    if writes_first_argument(name):
        return _Writes.ANYTHING if name.startswith("_") and name != "__setitem__" else _Writes.FIRST
    by_schema = writes_arguments(function)
    if by_schema is not None:
        return _Writes.ANYTHING if by_schema else _Writes.NOTHING
    if not hasattr(function, "__code__"):  # implemented in C
        return _Writes.NOTHING
    if not str(getattr(function, "__module__", "")).startswith("torch"):
        return _Writes.ANYTHING
    names = argument_names(function)[0]
    if "max_norm" in names:  # of an embedding
        return _Writes.ANYTHING
    return _Writes.IF_TOLD if "inplace" in names else _Writes.NOTHING


def versions_before(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Versions | None:
    """Return the versions of the tensors that a call of torch may write; None if it writes nothing."""
    what = _what(function)
    if what is _Writes.NOTHING and not (kwargs and "out" in kwargs):
        return None
    if what is _Writes.UNNOTICED:
        return ()
    if what is _Writes.IF_TOLD and kwargs and "inplace" in kwargs:
        if not kwargs["inplace"]:
            return None
        what = _Writes.FIRST
    with without_torch_function():
        found: Versions
        if what in (_Writes.FIRST, _Writes.REBOUND) and args and isinstance(args[0], Tensor):
            found = ((args[0], version_of(args[0])),)
        else:
            given = (*args, *kwargs.values()) if kwargs else args
            found = [(tensor, version_of(tensor)) for tensor in tensors_of(given)]
        for watcher in _watchers:
            for tensor, _ in found:
                if what is _Writes.REBOUND or _is_alias(tensor):
                    watcher.begins(tensor)
        return found


def note_writes(versions: Versions, function: Callable[..., Any], result: object) -> None:
    """Log the writes of a call that has returned."""
    if not versions:
        if function == _DATA and isinstance(result, Tensor):
            _aliases[id(result)] = ref(result, partial(_forget, id(result)))
        elif result is not None and function in _ARRAYS:
            for watcher in _watchers:
                watcher.is_shared(result)
        return
    with without_torch_function():
        if function == _SET_DATA:
            for watcher in _watchers:
                watcher.ends(".data =", users_place(), versions[0][0])
            return
        for tensor, before in versions:
            after = version_of(tensor)
            # A scalar integer is a batch norm's count of batches, which no graph saves.
            is_counter = not tensor.dim() and not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
            if after > before and not is_counter:
                is_silent, name, place = _is_alias(tensor), str(function.__name__), users_place()
                note_write(name, place, tensor, before, after, is_silent)
                for watcher in _watchers if is_silent else ():
                    watcher.ends(name, place, tensor)


def _forget(number: int, dead: ref[Tensor]) -> None:
    if _aliases.get(number) is dead:  # otherwise another tensor has that id by now
        del _aliases[number]


def _is_alias(tensor: Tensor) -> bool:
    if not _aliases:
        return False
    base = base_of(tensor)
    base_or_self = tensor if base is None else base
    found = _aliases.get(id(base_or_self))
    return found is not None and found() is base_or_self


class WritesSeen(TorchFunctionMode):
    """A mode that logs the calls of this thread that write to tensors."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        versions = None if is_dynamo_compiling() else versions_before(function, args, kwargs)
        result = function(*args, **kwargs) if kwargs else function(*args)
        if versions is not None:
            note_writes(versions, function, result)
        return result
