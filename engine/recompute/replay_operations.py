"""Bytes that are let go of and made again: by running the operations that made them, on what they were called with.

Who holds what decides how long it lives: a saved tensor its `Bytes`, these the calls that make them, a call the `Bytes`
of its arguments. Nothing else holds any of them, so they go as the last node that could ask for them does.
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

_replaying = RLock()  # a backward on several devices has a thread for each


@dataclass(slots=True)
class ReplayTally:
    """What replays came to.

    Attributes:
        storages: how many were made again; nbytes: their sizes.
        operations: how many operations that took; seconds: how long, on the host.
    """

    storages: int = 0
    nbytes: int = 0
    operations: int = 0
    seconds: float = 0.0


class StorageView(NamedTuple):
    """A tensor: its bytes, and what it shows of them.

    Without bytes: those that the call writes into. It belongs to them, and were it to hold them, too, none of them
    would go before the collector comes.
    """

    bytes: Bytes | None
    view: View


class Saved(NamedTuple):
    """Stands for a tensor that a node saves, while its bytes are to be made again.

    Attributes:
        bytes: the tensor's.
        view: what it shows of them.
        writes: how often they had been written into when it was saved.
    """

    bytes: Bytes
    view: View
    writes: int

    @property
    def is_stale(self) -> bool:
        """Whether what it shows was written into since it was saved. PyTorch would not have it, either."""
        later = self.bytes.writes[self.writes :]
        return any(overlap(self.view, written, self.bytes.nbytes) for written in later)


class Held(NamedTuple):
    """A tensor whose bytes are at hand."""

    bytes: Bytes
    tensor: Tensor


class Bytes:
    """The bytes of a storage: at hand, or to be made again.

    Attributes:
        storage: the bytes, where they are at hand.
        calls: what makes them: the first call, and then those which write into what that gave. None: they are at hand.
        nbytes: how many.
        number: the storage's in the plan; -1 if that does not drop it.
        readers: who is made of them, and of which part.
        saved: a node keeps a part of them.
        tally: counts what making them takes.
        writes: what was written into, one view for each operation that was seen to do so.
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
        self._fresh = True  # what was written into it last was seen to be

    def hold(self, tensor: Tensor) -> None:
        """From here on the bytes are at hand: those of this tensor."""
        self.storage, self.calls = tensor.untyped_storage(), None
        self._counter, self._version = at_hand(tensor), version_of(tensor)

    def note_write(self, view: View) -> None:
        """An operation is writing into this part of it. The version goes up when that is done."""
        self.writes.append(view)
        self._fresh = False

    def note_version(self, written: Tensor | None = None) -> None:
        """What was writing into it is done. `written` shows it, where it is not at hand."""
        counter = written if self._counter is None else self._counter
        if not self._fresh and counter is not None:
            self._version, self._fresh = version_of(counter), True

    def is_behind(self, tensor: Tensor) -> bool:
        """Whether somebody who was not seen has written into it meanwhile. `tensor` shows it."""
        return self._fresh and version_of(tensor) > self._version

    def first_argument(self) -> Held:
        """The tensor that they were found at hand by."""
        assert self._counter is not None, "they are at hand"
        return Held(self, self._counter)

    def argument(self, tensor: Tensor) -> StorageView | Held:
        """A tensor that shows them."""
        return StorageView(self, View.of(tensor)) if self._counter is None else Held(self, at_hand(tensor))

    def check(self, reader: Operator, shown: View | Tensor) -> None:
        """That nobody has written into it.

        Raises:
            RuntimeError: somebody has.
        """
        self.note_version()
        if self._counter is not None and version_of(self._counter) != self._version:
            raise RuntimeError(
                f"ts.recompute can't run {reader} again: its argument {described(shown)} has been modified by an "
                f"inplace operation since the forward; it is at version {version_of(self._counter)}, expected version "
                f"{self._version}. Modify it after the backward, or plan without this"
            )


class FollowedCall:
    """An operation as it was called in the forward.

    Attributes:
        args, kwargs: with a `StorageView` or `Held` in each tensor's place.
        parts: those of other bytes than what it writes into.
        outputs: which of its outputs are the beginning of which bytes.

    Args:
        part_of: gives what stands for a tensor.
        result: what an operator gave that reads nothing: that is all it takes to have it again.
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
        if traits.is_batch_norm:
            args = replayed_arguments(operator, args)
        self.args = [_replaced(each, part_of, self.parts) for each in args]
        self.kwargs = {name: _replaced(each, part_of, self.parts) for name, each in kwargs.items()}
        self.outputs: list[tuple[int, weakref.ref[Bytes]]] = []
        self._generator = _generator_of(args, kwargs) if traits.is_random else None
        self._state = None if self._generator is None else self._generator.get_state()

    def run(self, tensor_of: Callable[[StorageView | Held], Tensor]) -> Any:
        """Calls it again. Random numbers are what they were, and go on afterwards as if nobody had drawn any."""
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
    """A tensor that shows the same and may be kept: it holds no graph, and has its version."""
    # A leaf without gradients may yet become part of a graph, by a write, and then hold what holds it.
    is_parameter = tensor.requires_grad and tensor.is_leaf
    return tensor if is_parameter and not computes_itself(tensor) else detached(tensor)


def bytes_of(wanted: Bytes) -> torch.UntypedStorage:
    """The bytes; made again if they are not at hand, with all that this takes.

    Raises:
        RuntimeError: what they are made of has been modified; and what the operations raise.
    """
    if wanted.storage is None:
        with _replaying, _undisturbed():
            ahead = [wanted]
            while ahead:
                each = ahead[-1]
                missing = _missing(each) if each.storage is None else []
                if missing:
                    ahead += missing
                    continue
                if each.storage is None:
                    _make(each)
                ahead.pop()
    assert wanted.storage is not None
    return wanted.storage


def made_again(wanted: Bytes, originals: Callable[[Bytes], torch.UntypedStorage | None]) -> torch.UntypedStorage:
    """The bytes made again for once, nothing of it kept.

    Args:
        originals: gives bytes that are there though they are to be let go of.
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
    """What its calls read besides itself."""
    for call in each.calls or ():
        for part in call.parts:
            assert part.bytes is not None, "it is not what the call writes into"
            yield part.bytes


def _missing(each: Bytes) -> list[Bytes]:
    return [other for other in _arguments(each) if other.storage is None]


def _make(each: Bytes) -> None:
    """Runs its calls, all of whose arguments are at hand, and lets go of them."""
    began = perf_counter()
    calls = each.calls
    assert calls is not None
    storage = None
    for call in calls:
        storage = _called(call, each, storage, _storage, others=True)
    each.storage, each.calls = storage, None
    tally = each.tally
    tally.storages += 1
    tally.nbytes += each.nbytes
    tally.operations += len(calls)
    tally.seconds += perf_counter() - began


def _storage(each: Bytes) -> torch.UntypedStorage | None:
    return each.storage


def _called(
    call: FollowedCall,
    of: Bytes,
    storage: torch.UntypedStorage | None,
    there: Callable[[Bytes], torch.UntypedStorage | None],
    others: bool = False,
) -> torch.UntypedStorage:
    """Runs one of the calls that make these bytes, and gives the storage.

    Args:
        storage: what the calls before gave; None for the first.
        others: what else it gives goes to those whose bytes it is.
    """

    def tensor_of(argument: StorageView | Held) -> Tensor:
        if isinstance(argument, Held):
            argument.bytes.check(call.operator, argument.tensor)
            return argument.tensor
        if argument.bytes is None:
            assert storage is not None
            return on_storage(storage, argument.view)
        argument.bytes.check(call.operator, argument.view)
        whole = there(argument.bytes)
        assert whole is not None
        return on_storage(whole, argument.view)

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


def view_of(shown: View | Tensor) -> View:
    """Of what an argument shows."""
    return View.of(shown) if isinstance(shown, Tensor) else shown


def described(shown: View | Tensor) -> str:
    """`(6×4 torch.float32)`."""
    return f"({shape_text(shown.shape)} {shown.dtype})"


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without gradients, and without autocast: its casts were recorded as operations of their own."""
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
    """Where an operator takes its random numbers from: the generator it is given, else that of its device."""
    given = kwargs.get("generator")
    if isinstance(given, torch.Generator):
        return given
    tensor = next(tensors_of((args, kwargs)), None)
    device = tensor.device if tensor is not None else torch.device(kwargs.get("device") or "cpu")
    return generator_of(device)


def _replaced(value: Any, part_of: Callable[[Tensor], StorageView | Held], parts: list[StorageView | Held]) -> Any:
    """An argument with a `StorageView` or `Held` in the place of each tensor. Those with bytes are added to `parts`."""
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
