"""Detection of other holders of a tensor by C++ and Python reference counts."""

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
    """Return whether only this sequence, and `others` further Python references, hold tensor `number` of it.

    C++ counts a single reference for all Python references, which Python counts itself.
    """
    # The same rule as in the engine: only a gradient with a use count of 1 may be added to in place
    # (input_buffer.cpp, can_accumulate_inplace).
    tensor = tensors[number]
    if tensor is None or tensor._use_count() != 1:  # type: ignore[attr-defined]
        return False
    del tensor  # a local variable would count as one more reference
    return sys.getrefcount(tensors[number]) == _ALONE + others


_ALONE = sys.getrefcount([object()][0]) + 1  # references from a sequence and from the call itself


def storage_owned_alone(tensor: Tensor) -> bool:
    """Return whether no other tensor, including saved ones, uses the storage."""
    return (
        torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == 2
    )  # the tensor, and the storage object in this line


def kept_by_others(tensors: Sequence[Tensor]) -> list[bool]:
    """Return for each saved tensor whether anything besides these nodes keeps its bytes alive.

    This may be a variable, another graph, a hook, or a leaf's AccumulateGrad. References are counted to the tensors, to
    their bases, and to the storages. Saved tensors that nodes hide (see `saved_slots`) are unknown, and count as other
    holders. For a tensor without its own storage, only references to the tensor count.

    Args:
        tensors: one per slot, as returned by `saved_slots`. The caller must not have other references to them.
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
    # Two views may share a tensor between them and their base, so there may be fewer users than expected.
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

    This decides cases in which C++ holds tensors that no slot refers to: tensors between a view and its base, and for
    fake tensors the one between a view and a view of it. A tensor created in Python has a Python object while it lives.

    Args:
        addresses: the addresses of all storages to check.
        slots: number of the caller's references to each tensor, by `id`.
        looks_at: filter of the tensors to check.
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
    """Count the references to tensors and storages, minus one for each slot, each view and each tensor.

    The remainder is the same for all tensors without other holders: references from this function, and those between
    the Python object and its C++ tensor.

    Returns:
        By `id`, the address of the tensor's storage and the references to the tensor; by address, the references to the
        storage; and the addresses of storages that views hold through other tensors.
    """
    distinct = {id(tensor): tensor for tensor in tensors}
    locals_ = {number: local_of(tensor) for number, tensor in distinct.items() if computes_itself(tensor)}
    wrappers = {number: id(local) for number, local in locals_.items() if id(local) != number}
    distinct.update(
        (id(local), local) for local in locals_.values()
    )  # held by their Python wrapper, whose references are not checked here
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
    """Return a view's base, once per reference from the view, and the number of tensors held between the two.

    A view that reinterprets its base's elements (`view_as_real`, `conj`, `imag`) holds each tensor in between, to be
    able to reverse the view (VariableTypeUtils.h, as_view: `rev_view_func`). They are counted by creating the view
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
    """Return the number of tensors on the tensor's storage, as counted by C++, plus a constant."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


@cache
def _references_of_one() -> tuple[_Counts, _Counts]:
    """Return the spare references of a tensor held only by one node, and of its storage."""
    return undisturbed(_count_references_of_one)


def _count_references_of_one() -> tuple[_Counts, _Counts]:
    with unobserved(), torch.inference_mode(False), torch.enable_grad():
        result = torch.ones((), requires_grad=True) * torch.ones(())
    assert result.grad_fn is not None
    spare, of_storages, _ = _spare_references([slot.tensor for slot in saved_slots(result.grad_fn)])
    ((_, counts),) = spare.values()
    (of_storage,) = of_storages.values()
    return counts, of_storage
