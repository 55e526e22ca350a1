"""Note the storages that a forward allocates in operations without a node: masks, noise, leaves, kept tensors.

`inspector/graph/forward_allocations.py` reads these notes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.nn import Parameter

from ..graph.facts import Facts, Operation
from ..graph.marks import operation_of, tensors_of
from ..torch_internals.sequence_numbers import sequence_nr
from ..torch_internals.tensors import FollowedStorage, address_below, base_of


def note_allocations(
    facts: Facts, result: object, args: Sequence[object], kwargs: Mapping[str, object], *, is_new: bool = True
) -> None:
    """Note the storage of a result that occupies new bytes, or bytes that the forward allocated before.

    The second kind is, for example, the detached result of an operation with a node: the last step of an attack. Memory
    that torch did not allocate, such as that of a NumPy array, is not noted.

    Args:
        facts: those of the capture.
        result: what the operation returned.
        args, kwargs: what it was called with.
        is_new: whether a result on none of the arguments' bytes is on new ones. An attribute's (`.grad`) was there.
    """
    for made in (result,) if isinstance(result, Tensor) else tensors_of(result):
        address = _address(made)
        if not address or (address in facts.allocations and facts.allocations[address][0].alive):
            continue
        owners = [each for each in (*tensors_of(args), *tensors_of(kwargs)) if _address(each) == address]
        is_born = any(_made_here(facts, each) for each in owners) if owners else is_new
        if is_born and made.untyped_storage().resizable():
            facts.allocations[address] = FollowedStorage(made), sequence_nr()


def _made_here(facts: Facts, owner: Tensor) -> bool:
    """Whether an operation of this capture made the tensor's bytes, with a node and not in place."""
    whole = base_of(owner)
    node = (owner if whole is None else whole).grad_fn
    operation = None if node is None else operation_of(node)
    return isinstance(operation, Operation) and operation.facts is facts and not operation.writes_in_place


def _address(tensor: Tensor) -> int:
    """The address of the tensor's bytes; 0 for a tensor without bytes of its own, and for subclasses."""
    return address_below(tensor) or 0 if type(tensor) in (Tensor, Parameter) and not tensor.is_sparse else 0
