"""Writes through `.data` and arrays of NumPy's, which no version tells of; seen where a function mode is open."""

from __future__ import annotations

from threading import get_ident
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from ...inspector.graph.source import Place
from ...inspector.torch_internals.modes import unobserved
from ...inspector.torch_internals.sequence_numbers import sequence_nr
from ...inspector.torch_internals.tensors import (
    FollowedStorage,
    StorageBytes,
    View,
    computes_itself,
    local_of,
    on_storage,
    storage_of,
)
from .forwards import Forwards
from .silent_step import SilentStep, SilentWords, WrittenBytes

_MOST_ARRAYS = 32  # each is copied at each forward: a loop may keep all that it has ever plotted
_MOST_COPIES = 2  # of the same bytes: of a loop whose graphs never run

_OF_DATA = SilentWords(
    noun="write",
    why="a write through .data counts no version",
    instead="under torch.no_grad(), without .data, PyTorch raises an error instead",
    unnamed="a tensor",
)
_OF_NUMPY = SilentWords(
    noun="write",
    why="NumPy's writes count no version",
    instead="or let NumPy have a copy, .numpy().copy()",
    unnamed="a tensor",
)


class DataWrites:
    """Keeps of each such write what was there before, while a graph waits for its backward.

    Of an array no call tells when it is written. What a module's forward has left of its bytes is copied as the forward
    ends, while the array lives: what differs in its backward was written since.

    Attributes:
        told: writes through `.data`, in their order.
        shared: bytes that somebody could write since, in their order.

    Known limitations. `torch.from_numpy` is seen by no mode, so a tensor that was made of an array is none of these.
    Of more than 32 arrays that live those made last are looked at.
    """

    def __init__(self, forwards: Forwards) -> None:
        self.told: list[SilentStep] = []
        self.shared: list[SilentStep] = []
        self.step = 0
        self._forwards = forwards
        self._thread = get_ident()
        self._is_paused = False
        self._followed: dict[int, FollowedStorage] = {}  # so that no others get the address of those that were written
        self._begun: dict[int, _Begun] = {}  # by the tensor's id, until the call is over
        self._arrays: list[ref[Any]] = []

    @property
    def writes(self) -> list[SilentStep]:
        return [*self.told, *self.shared]

    def pause(self) -> None:
        """An optimizer steps, whose writes are looked at as a whole."""
        self._is_paused = True

    def go_on(self) -> None:
        self._is_paused = False

    @property
    def _looks_away(self) -> bool:
        return self._is_paused or get_ident() != self._thread or not self._is_anything_waiting

    @property
    def _is_anything_waiting(self) -> bool:
        return self._forwards.unseen or bool(self._forwards.waiting())

    def begins(self, tensor: Tensor) -> None:
        if not self._looks_away and (copy := _bytes_of(tensor)) is not None:
            self._begun[id(tensor)] = _Begun(copy, View.of(tensor), storage_of(tensor))

    def ends(self, what: str, place: Place | None, tensor: Tensor) -> None:
        begun = self._begun.pop(id(tensor), None)
        if begun is None or self._looks_away:
            return
        made = SilentStep(what, place, self.step, sequence_nr(), {}, _OF_DATA)
        if (begun.view, begun.storage) == (View.of(tensor), storage_of(tensor)):
            self._add(self.told, made, tensor, WrittenBytes(begun.copy))
        elif not computes_itself(tensor) and (begun.view.shape, begun.view.dtype) == (tensor.shape, tensor.dtype):
            before = on_storage(begun.copy.untyped_storage(), begun.view)
            self._add(self.told, made, tensor, WrittenBytes(before, ref(tensor), is_other=True))

    def is_shared(self, array: Any) -> None:
        if get_ident() == self._thread and isinstance(array.base, Tensor):
            self._arrays.append(ref(array))
            if len(self._arrays) > _MOST_ARRAYS:
                self._arrays = [each for each in self._arrays if each() is not None][-_MOST_ARRAYS:]

    def forward_ends(self) -> None:
        """What arrays share with tensors is as the forward found it."""
        arrays = [each for kept in self._arrays if (each := kept()) is not None]
        self._arrays = [ref(each) for each in arrays]
        for each in arrays:
            copy = _bytes_of(each.base)
            if copy is not None:
                made = SilentStep("An array of NumPy's", None, self.step, sequence_nr(), {}, _OF_NUMPY)
                self._add(self.shared, made, each.base, WrittenBytes(copy))

    def _add(self, steps: list[SilentStep], made: SilentStep, tensor: Tensor, written: WrittenBytes) -> None:
        """Several writes by one line are one; of those that no graph was made between the first tells."""
        followed = FollowedStorage(local_of(tensor))
        address = followed.address
        if address in self._followed and not self._followed[address].alive:
            self._forget(address)
        same = [each for each in steps if address in each.written]
        if same and same[-1].number == made.number and not same[-1].written[address].is_other:
            return
        if len(same) >= _MOST_COPIES:
            del same[0].written[address]
        into = next((each for each in steps if _is_by_the_same(each, made)), made)
        into.written[address] = written
        self._followed[address] = followed
        if into is made:
            steps.append(made)
        steps[:] = [each for each in steps if each.written]

    def _forget(self, address: int) -> None:
        for steps in (self.told, self.shared):
            for each in steps:
                each.written.pop(address, None)

    def forget_old(self) -> None:
        """Lets go of what no graph waits behind, and of what is no more."""
        self._begun.clear()  # of calls that raised, or that only read
        self._arrays = [each for each in self._arrays if each() is not None]
        if not self.told and not self.shared:
            return
        for address in [each for each, followed in self._followed.items() if not followed.alive]:
            del self._followed[address]
            self._forget(address)
        oldest = None if self._forwards.unseen else min((each.start for each in self._forwards.waiting()), default=None)
        for steps in (self.told, self.shared):
            if not self._forwards.unseen:
                steps[:] = [each for each in steps if oldest is not None and each.number > oldest]
            steps[:] = [each for each in steps if each.written]
        if not self.told and not self.shared:
            self._followed.clear()


class _Begun(NamedTuple):
    """What a call may write, before it: a copy of all the bytes below, and where the tensor was on them."""

    copy: Tensor
    view: View
    storage: StorageBytes | None


def _is_by_the_same(one: SilentStep, other: SilentStep) -> bool:
    return (one.who, one.place, one.number) == (other.who, other.place, other.number)


def _bytes_of(tensor: Tensor) -> Tensor | None:
    """A copy of all its storage; None where it has none of its own."""
    with unobserved():
        try:
            storage = local_of(tensor).untyped_storage()
        except (NotImplementedError, RuntimeError, ValueError):
            return None
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).clone()
