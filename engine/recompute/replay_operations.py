"""Dropped storages, and their recomputation by running the operations that made them on the same arguments.

Ownership decides lifetimes: a saved tensor holds its `Bytes`, `Bytes` hold the calls that make them, and a call holds
the `Bytes` of its arguments. Nothing else holds any of these, so they are freed with the last node that needs them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...inspector.capture.forward_program import WHOLE, overlap
from ...inspector.capture.operator_traits import filled_like, replayed_arguments, traits_of
from ...inspector.graph.node_metadata import tensors_of
from ...inspector.text.sizes_and_counts import shape_text
from ...inspector.torch_private.operators import Operator
from ...inspector.torch_private.random_states import generator_of
from ...inspector.torch_private.tensors import View, computes_itself, detached, on_storage, version_of
from ...inspector.torch_private.thread_state import autocast_devices

_replaying = RLock()  # PyTorch's engine runs a thread for each device; two must not recompute one storage


@dataclass(slots=True)
class ReplayTally:
    """Counts of recomputation.

    Attributes:
        storages, nbytes: number and size of the storages that were recomputed.
        operations, seconds: number of operations run for that, and the time on the host.
    """

    storages: int = 0
    nbytes: int = 0
    operations: int = 0
    seconds: float = 0.0


class StorageView(NamedTuple):
    """A tensor, as a view of bytes.

    `bytes` is None for the storage that the call writes to. That storage holds the call, so holding it here would be a
    reference cycle, which is only freed when Python's garbage collector runs.
    """

    bytes: Bytes | None
    view: View


class Saved(NamedTuple):
    """The packed form of a saved tensor whose storage is dropped.

    Attributes:
        bytes: the bytes of the tensor's storage.
        view: the part of them that it shows.
        writes: number of writes to the storage before the tensor was saved.
    """

    bytes: Bytes
    view: View
    writes: int

    @property
    def is_stale(self) -> bool:
        """True if the tensor was modified in place after it was saved, which PyTorch also refuses."""
        later = self.bytes.writes[self.writes :]
        return any(overlap(self.view, written, self.bytes.nbytes) for written in later)


class Held(NamedTuple):
    """A tensor whose bytes are kept."""

    bytes: Bytes
    tensor: Tensor


class Bytes:
    """The bytes of a storage, either present or recomputable.

    Attributes:
        storage: the storage, if it is present.
        calls: the calls that recompute it: the one that creates it, then those that write to it; None if it is present.
        nbytes: its size.
        number: its number in the plan; -1 if the plan does not drop it.
        readers: weak references to the `Bytes` computed from it, each with the part that was read.
        saved: whether a node saves a part of it.
        tally: the counts to update when it is recomputed.
        writes: the part written by each in-place operation.
    """

    __slots__ = (
        *("__weakref__", "_counter", "_fresh", "_version", "calls", "nbytes", "number", "readers"),
        *("saved", "storage", "tally", "writes"),
    )

    def __init__(
        self,
        tensor: Tensor,
        storage: torch.UntypedStorage,
        tally: ReplayTally,
        call: FollowedCall | None = None,
        number: int = -1,
    ) -> None:
        self.nbytes = storage.nbytes()
        self.number = number
        self.saved = False
        self.tally = tally
        self.readers: list[tuple[weakref.ref[Bytes], View | Tensor]] = []
        self.writes: list[View] = []
        self.calls = None if call is None else [call]
        self.storage = storage if call is None else None
        self._counter = at_hand(tensor) if call is None else None
        self._version = version_of(tensor)
        self._fresh = True  # whether _version includes all writes seen so far

    def hold(self, tensor: Tensor) -> None:
        """Keep the storage of this tensor from here on, instead of recomputing it."""
        self.storage, self.calls = tensor.untyped_storage(), None
        self._counter, self._version = at_hand(tensor), version_of(tensor)

    def note_write(self, view: View) -> None:
        """Note that an operation is about to write to this part. Its version increases afterwards."""
        self.writes.append(view)
        self._fresh = False

    def note_version(self, written: Tensor | None = None) -> None:
        """Note the version after a write. `written` is a tensor on the storage, needed if that is not present."""
        counter = written if self._counter is None else self._counter
        if not self._fresh and counter is not None:
            self._version, self._fresh = version_of(counter), True

    def is_behind(self, tensor: Tensor) -> bool:
        """Return whether the storage of `tensor` has been written to by an operation that was not seen."""
        return self._fresh and version_of(tensor) > self._version

    def first_argument(self) -> Held:
        """Return the tensor that this was created from, as an argument."""
        assert self._counter is not None, "the storage is present"
        return Held(self, self._counter)

    def argument(self, tensor: Tensor) -> StorageView | Held:
        """Return a tensor on this storage as an argument."""
        return StorageView(self, View.of(tensor)) if self._counter is None else Held(self, at_hand(tensor))

    def check(self, reader: Operator, shown: View | Tensor) -> None:
        """Raise RuntimeError if the storage was modified since the forward.

        Args:
            reader: the operator that reads it.
            shown: the argument, for the message.
        """
        self.note_version()
        if self._counter is not None and version_of(self._counter) != self._version:
            raise RuntimeError(
                f"ts.recompute cannot run {reader} again: its argument {described(shown)} has been modified by an "
                f"inplace operation since the forward; it is at version {version_of(self._counter)}, expected version "
                f"{self._version}. Modify it after the backward instead, or run this forward without ts.recompute"
            )


class FollowedCall:
    """A recorded call of an operator in the forward.

    Attributes:
        args, kwargs: the arguments, with a `StorageView` or `Held` in place of each tensor.
        parts: these, except views of the storage that the call writes to.
        outputs: pairs of an output and the `Bytes` that it creates.

    Args:
        part_of: returns the `StorageView` or `Held` for a tensor.
        result: the result of an operator that reads nothing, such as `zeros_like`; its shape and device are enough to
            run it again.
    """

    __slots__ = ("_generator", "_like", "_state", "args", "kwargs", "operator", "outputs", "parts")

    def __init__(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        part_of: Callable[[Tensor], StorageView | Held],
        result: Tensor | None = None,
    ) -> None:
        self.operator = operator
        self.parts: list[StorageView | Held] = []
        self._like = None if result is None else (View.of(result), result.device)
        if self._like is not None:
            args, kwargs = (), {}
        traits = traits_of(operator)
        # native_batch_norm in training mode updates the running statistics, which its schema does not declare. Without
        # them it computes the same bits, and the statistics are updated once.
        if traits.is_batch_norm:
            args = replayed_arguments(operator, args)
        self.args = [_replaced(each, part_of, self.parts) for each in args]
        self.kwargs = {name: _replaced(each, part_of, self.parts) for name, each in kwargs.items()}
        self.outputs: list[tuple[int, weakref.ref[Bytes]]] = []
        self._generator = _generator_of(args, kwargs) if traits.is_random else None
        self._state = None if self._generator is None else self._generator.get_state()

    def run(self, tensor_of: Callable[[StorageView | Held], Tensor]) -> Any:
        """Run the call again with the same random numbers, and leave the generator as it was."""
        args = [_restored(each, tensor_of) for each in self.args]
        kwargs = {name: _restored(each, tensor_of) for name, each in self.kwargs.items()}
        if self._like is not None:
            return filled_like(self.operator, *self._like)
        if self._generator is None or self._state is None:
            return self.operator(*args, **kwargs)
        before = self._generator.get_state()
        self._generator.set_state(self._state)
        try:
            return self.operator(*args, **kwargs)
        finally:
            self._generator.set_state(before)


def at_hand(tensor: Tensor) -> Tensor:
    """Return a tensor on the same storage that can be kept: it holds no graph and shares the version counter."""
    # A leaf without gradients may become part of a graph by an in-place write, and would then hold the graph.
    is_parameter = tensor.requires_grad and tensor.is_leaf
    return tensor if is_parameter and not computes_itself(tensor) else detached(tensor)


def bytes_of(wanted: Bytes) -> torch.UntypedStorage:
    """Return the storage, recomputed first, with all its dropped inputs, if it is not present.

    Raises:
        RuntimeError: if an input of the recomputation has been modified. Errors of the operations pass through.
    """
    if wanted.storage is None:
        with _replaying, _undisturbed():
            # An explicit stack, not recursion: chains of dropped operations can be thousands long.
            ahead = [wanted]
            while ahead:
                each = ahead[-1]
                missing = []
                if each.storage is None:
                    missing = [other for other in _arguments(each) if other.storage is None]
                if missing:
                    ahead += missing
                    continue
                if each.storage is None:
                    _make(each)
                ahead.pop()
    assert wanted.storage is not None
    return wanted.storage


def made_again(wanted: Bytes, originals: Callable[[Bytes], torch.UntypedStorage | None]) -> torch.UntypedStorage:
    """Return a recomputed copy of the storage without keeping any of it in the records.

    Args:
        originals: returns the original of a storage that is still alive although it will be dropped.
    """
    made: dict[Bytes, torch.UntypedStorage] = {}

    def there(each: Bytes) -> torch.UntypedStorage | None:
        for found in (each.storage, made.get(each)):
            if found is not None:
                return found
        return originals(each)

    with _replaying, _undisturbed():
        ahead = [wanted]
        while ahead:
            each = ahead[-1]
            missing = [other for other in _arguments(each) if there(other) is None]
            if missing:
                ahead += missing
                continue
            storage = None
            for call in each.calls or ():
                storage = _called(call, each, storage, there)
            assert storage is not None
            made[ahead.pop()] = storage
    return made[wanted]


def _arguments(each: Bytes) -> Iterator[Bytes]:
    """Yield the storages that its calls read, except itself."""
    for call in each.calls or ():
        for part in call.parts:
            assert part.bytes is not None, "parts exclude the storage that the call writes to"
            yield part.bytes


def _make(each: Bytes) -> None:
    """Recompute a storage whose inputs are all present, and release its calls."""
    began = perf_counter()
    calls = each.calls
    assert calls is not None
    storage = None
    for call in calls:
        storage = _called(call, each, storage, lambda other: other.storage, others=True)
    # Without its calls it holds its inputs no longer, so intermediates that no other node needs are freed at once.
    each.storage, each.calls = storage, None
    tally = each.tally
    tally.storages += 1
    tally.nbytes += each.nbytes
    tally.operations += len(calls)
    tally.seconds += perf_counter() - began


def _called(
    call: FollowedCall,
    of: Bytes,
    storage: torch.UntypedStorage | None,
    there: Callable[[Bytes], torch.UntypedStorage | None],
    others: bool = False,
) -> torch.UntypedStorage:
    """Run one of the calls that recompute a storage, and return the storage.

    Args:
        call: the call.
        of: the bytes to recompute.
        storage: the storage created by the earlier calls; None for the first call.
        there: returns the storage of an argument.
        others: whether to also store the other outputs of the call where they are needed.
    """

    def tensor_of(argument: StorageView | Held) -> Tensor:
        if isinstance(argument, Held):
            argument.bytes.check(call.operator, argument.tensor)
            return argument.tensor
        if argument.bytes is None:
            assert storage is not None
            return on_storage(storage, argument.view)
        argument.bytes.check(call.operator, argument.view)
        source = there(argument.bytes)
        assert source is not None
        return on_storage(source, argument.view)

    result = call.run(tensor_of)
    if storage is not None:
        return storage
    for output, reference in call.outputs:
        made = (result if output == WHOLE else result[output]).untyped_storage()
        other = reference()
        if other is of:
            storage = made
        elif others and other is not None and other.storage is None and len(other.calls or ()) == 1:
            other.storage, other.calls = made, None
            other.tally.storages += 1
            other.tally.nbytes += other.nbytes
    assert storage is not None and storage.nbytes() == of.nbytes
    return storage


def described(shown: View | Tensor) -> str:
    """Return the shape and type of an argument, such as `(6×4 torch.float32)`."""
    return f"({shape_text(shown.shape)} {shown.dtype})"


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Turn off gradients and autocast, whose casts were recorded as separate operations."""
    casting = [device for device in autocast_devices() if torch.is_autocast_enabled(device)]
    for device in casting:
        torch.set_autocast_enabled(device, False)
    try:
        with torch.no_grad():
            yield
    finally:
        for device in casting:
            torch.set_autocast_enabled(device, True)


def _generator_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Generator:
    """Return the generator an operator draws from: its `generator` argument, or that of its device."""
    generator = kwargs.get("generator")
    if isinstance(generator, torch.Generator):
        return generator
    tensor = next(tensors_of((args, kwargs)), None)
    device = tensor.device if tensor is not None else torch.device(kwargs.get("device") or "cpu")
    return generator_of(device)


def _replaced(value: Any, part_of: Callable[[Tensor], StorageView | Held], parts: list[StorageView | Held]) -> Any:
    """Return an argument with `StorageView` or `Held` for its tensors; those with bytes are added to `parts`."""
    if isinstance(value, Tensor):
        part = part_of(value)
        if part.bytes is not None:
            parts.append(part)
        return part
    if isinstance(value, list | tuple):
        return [_replaced(each, part_of, parts) for each in value]
    return value


def _restored(value: Any, tensor_of: Callable[[StorageView | Held], Tensor]) -> Any:
    if isinstance(value, StorageView | Held):
        return tensor_of(value)
    if isinstance(value, list):
        return [_restored(each, tensor_of) for each in value]
    return value
