"""Who holds a tensor besides: counts of references, as C++ has them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ..threads import all_objects, undisturbed
from .modes import unobserved, without_torch_function
from .saved import saved_slots
from .tensors import base_of, computes_itself, is_fake, local_of, storage_of


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
        spare, of_storages = _spare_references(tensors)
    held = {address for address, counts in of_storages.items() if counts != usual_of_storage}
    held.update(address for address, counts in spare.values() if counts != usual and address is not None)
    if fakes := {address for tensor in tensors if is_fake(tensor) and (address := spare[id(tensor)][0]) is not None}:
        held = held - fakes | _held_fakes(fakes, Counter(map(id, tensors)))
    found = []
    for number in map(id, tensors):
        address, counts = spare[number]
        found.append(counts != usual if address is None else address in held)
    return found


def _held_fakes(addresses: set[int], slots: Mapping[int, int]) -> set[int]:
    """Of storages below fake tensors those which Python holds, by their addresses.

    Such a tensor has a Python object as long as it lives, and a view of a view keeps the one between them alive, which
    others don't. So what C++ alone holds tells nothing; an AccumulateGrad is none of those who do.

    Args:
        addresses: of the storages.
        slots: by `id` how often the caller holds a tensor.
    """
    found: set[int] = set()
    with all_objects() as objects:
        fakes = [each for each in objects if issubclass(type(each), FakeTensor)]
    while fakes:
        number, storage = id(fakes[-1]), storage_of(fakes[-1])
        if storage is not None and storage.address in addresses:
            from_cpp = fakes[-1]._use_count() > 1
            if sys.getrefcount(fakes[-1]) > _ALONE + slots.get(number, 0) + from_cpp:
                found.add(storage.address)
        fakes.pop()
    return found


_Counts = tuple[int, int]  # references from C++, and from Python


def _spare_references(tensors: Sequence[Tensor]) -> tuple[dict[int, tuple[int | None, _Counts]], dict[int, _Counts]]:
    """How many references there are to tensors and storages, less one from each slot, each view and each tensor.

    What is left is equal for all that nothing else holds: the references of this function, and those by which the
    Python object and its C++ side hold each other. By `id` the address of the tensor's storage and the references to
    the tensor, and by address those to the storage.
    """
    distinct = {id(tensor): tensor for tensor in tensors}
    locals_ = {number: local_of(tensor) for number, tensor in distinct.items() if computes_itself(tensor)}
    wrappers = {number: id(local) for number, local in locals_.items() if id(local) != number}
    distinct.update((id(local), local) for local in locals_.values())  # Python holds these, which is not told here
    locals_.clear()
    bases = [base for tensor in distinct.values() for base in _bases_held(tensor)]
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
    spare = {}
    for number in distinct:
        count = slots[number]
        uses = distinct[number]._use_count()  # type: ignore[attr-defined]
        spare[number] = addresses[number], (uses - count, sys.getrefcount(distinct[number]) - count)
    of_storages = {}
    for address in storages:
        uses = torch._C._storage_Use_Count(address)
        of_storages[address] = uses - users[address], sys.getrefcount(storages[address])
    return spare, of_storages


def _bases_held(view: Tensor) -> list[Tensor]:
    """Return the tensor of which this one is a view, once for each reference that the view has to it.

    There are two if one of them is complex and the other is not: such a view keeps its base for forward-mode
    derivatives apart (variable.h, DifferentiableViewMeta).
    """
    base = base_of(view)
    return [] if base is None else [base] * (1 + (view.is_complex() != base.is_complex()))


@cache
def _references_of_one() -> tuple[_Counts, _Counts]:
    """The spare references of a tensor which one node keeps and nothing else, and of its storage."""
    return undisturbed(_count_references_of_one)


def _count_references_of_one() -> tuple[_Counts, _Counts]:
    with unobserved(), torch.inference_mode(False), torch.enable_grad():
        result = torch.ones((), requires_grad=True) * torch.ones(())
    assert result.grad_fn is not None
    spare, of_storages = _spare_references([slot.tensor for slot in saved_slots(result.grad_fn)])
    ((_, counts),) = spare.values()
    (of_storage,) = of_storages.values()
    return counts, of_storage
