"""Finds other holders of a tensor by C++ reference counts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from ..garbage_collector import all_objects, undisturbed
from .saved_variables import saved_slots
from .tensors import base_of, computes_itself, is_fake, local_of, storage_of
from .thread_state import unobserved, without_torch_function


def owned_alone(tensors: Sequence[Tensor | None], number: int, others: int = 0) -> bool:
    """Whether nothing but this sequence, and so many other references of Python's, holds its tensor number `number`.

    The C++ side counts one reference for all of Python's, which Python counts itself.
    """
    tensor = tensors[number]
    if tensor is None or tensor._use_count() != 1:  # type: ignore[attr-defined]
        return False
    del tensor
    return sys.getrefcount(tensors[number]) == _ALONE + others


_ALONE = sys.getrefcount([object()][0]) + 1  # what a sequence adds to a reference of the call's own


def storage_owned_alone(tensor: Tensor) -> bool:
    """Whether no other tensor, nor a saved one, uses the storage."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == 2  # the tensor, and the storage looked at


def kept_by_others(tensors: Sequence[Tensor]) -> list[bool]:
    """Of tensors that nodes keep: whether anything besides these nodes keeps the bytes of each alive.

    That may be a variable, another graph, a hook, an AccumulateGrad (each leaf's). References are counted: to the
    tensors, to those of which they are views, and to the storages. What a node hides (see `saved_slots`) is unknown
    here, and counts as something else. Of a tensor without a storage of its own it is told of the tensor alone.

    Args:
        tensors: one for each slot, as `saved_slots` gives them. The caller must have no other reference to any.
    """
    return undisturbed(lambda: _kept_by_others(tensors))


def _kept_by_others(tensors: Sequence[Tensor]) -> list[bool]:
    usual, usual_of_storage = _references_of_one()
    with without_torch_function():
        spare, of_storages, through = _spare_references(tensors)
    held = {address for address, counts in of_storages.items() if counts != usual_of_storage}
    held.update(address for address, counts in spare.values() if counts != usual and address is not None)
    if fakes := {address for tensor in tensors if is_fake(tensor) and (address := spare[id(tensor)][0]) is not None}:
        held = held - fakes | _held_by_python(fakes, Counter(map(id, tensors)), is_fake)
    # Two views may share a tensor between them and their base: then there are fewer users than were expected.
    shared = {address for address in through if of_storages[address] < usual_of_storage}
    held -= shared
    if through := through - held - fakes:
        held |= _held_by_python(through, Counter(map(id, tensors)))
    found = []
    for number in map(id, tensors):
        address, counts = spare[number]
        found.append(counts != usual if address is None else address in held)
    return found


def _held_by_python(
    addresses: set[int], slots: Mapping[int, int], looks_at: Callable[[Tensor], bool] = lambda tensor: True
) -> set[int]:
    """Return the addresses of the storages that the user's Python code holds.

    This decides where C++ holds tensors that no slot leads to: those between a view and its base, and of fake tensors
    the one between a view and a view of it. Each that was made in Python has a Python object as long as it lives.

    Args:
        addresses: the addresses of all storages to check.
        slots: by `id` how often the caller holds a tensor.
        looks_at: whether to look at a tensor.
    """
    found: set[int] = set()
    with all_objects() as objects:
        tensors = [each for each in objects if issubclass(type(each), Tensor) and looks_at(each)]
    while tensors:
        number, storage = id(tensors[-1]), storage_of(tensors[-1])
        if storage is not None and storage.address in addresses:
            from_cpp = tensors[-1]._use_count() > 1
            if sys.getrefcount(tensors[-1]) > _ALONE + slots.get(number, 0) + from_cpp:
                found.add(storage.address)
        tensors.pop()
    return found


_Counts = tuple[int, int]  # references from C++, and from Python


_Spare = tuple[dict[int, tuple[int | None, _Counts]], dict[int, _Counts], set[int]]


def _spare_references(tensors: Sequence[Tensor]) -> _Spare:
    """How many references there are to tensors and storages, less one from each slot, each view and each tensor.

    What is left is equal for all that nothing else holds: the references of this function, and those by which the
    Python object and its C++ side hold each other. By `id` the address of the tensor's storage and the references to
    the tensor, and by address those to the storage; and the addresses of storages that views hold through others.
    """
    distinct = {id(tensor): tensor for tensor in tensors}
    locals_ = {number: local_of(tensor) for number, tensor in distinct.items() if computes_itself(tensor)}
    wrappers = {number: id(local) for number, local in locals_.items() if id(local) != number}
    distinct.update((id(local), local) for local in locals_.values())  # Python holds these, which is not told here
    locals_.clear()
    bases: list[Tensor] = []
    between: Counter[int] = Counter()
    for number in distinct:
        of_view, between[number] = _bases_held(distinct[number])
        bases += of_view
        of_view.clear()
    slots = Counter(map(id, tensors))
    slots.update(map(id, bases))
    distinct.update((id(base), base) for base in bases)
    addresses: dict[int, int | None] = {}
    storages = {}
    for number in distinct:
        try:
            storage = distinct[wrappers.get(number, number)].untyped_storage()
        except (NotImplementedError, RuntimeError, ValueError):
            addresses[number] = None
            continue
        addresses[number] = storage._cdata
        storages[storage._cdata] = storage
        del storage
    users = Counter(address for number, address in addresses.items() if number not in wrappers)
    for number, count in between.items():
        users[addresses[number]] += count
    spare = {}
    for number in distinct:
        count = slots[number]
        uses = distinct[number]._use_count()  # type: ignore[attr-defined]
        spare[number] = addresses[number], (uses - count, sys.getrefcount(distinct[number]) - count)
    of_storages = {}
    for address in storages:
        uses = torch._C._storage_Use_Count(address)
        of_storages[address] = uses - users[address], sys.getrefcount(storages[address])
    return (
        spare,
        of_storages,
        {address for number, count in between.items() if count and (address := addresses[number])},
    )


def _bases_held(view: Tensor) -> tuple[list[Tensor], int]:
    """Return the tensor of which this one is a view, once for each reference that the view has to it, and how many
    tensors between the two it holds.

    A view that reads its base's numbers in another way (`view_as_real`, `conj`, `imag`) holds each tensor through which
    it was made, to be able to go back (VariableTypeUtils.h, as_view: `rev_view_func`). To count them the view is made
    again.
    """
    base = base_of(view)
    if base is None or computes_itself(base):
        return [] if base is None else [base], 0
    if not (base.is_complex() or view.is_complex() or view.is_neg()):
        return [base], 0
    with unobserved():
        uses, users = base._use_count(), _users_of(base)  # type: ignore[attr-defined]
        again = view._view_func_unsafe(base)
        uses, users = base._use_count() - uses, _users_of(base) - users  # type: ignore[attr-defined]
        del again
    return [base] * uses, users - 1


def _users_of(tensor: Tensor) -> int:
    """The number of tensors on the tensor's storage, as C++ counts them, and a constant."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


@cache
def _references_of_one() -> tuple[_Counts, _Counts]:
    """The spare references of a tensor which one node keeps and nothing else, and of its storage."""
    return undisturbed(_count_references_of_one)


def _count_references_of_one() -> tuple[_Counts, _Counts]:
    with unobserved(), torch.inference_mode(False), torch.enable_grad():
        result = torch.ones((), requires_grad=True) * torch.ones(())
    assert result.grad_fn is not None
    spare, of_storages, _ = _spare_references([slot.tensor for slot in saved_slots(result.grad_fn)])
    ((_, counts),) = spare.values()
    (of_storage,) = of_storages.values()
    return counts, of_storage
