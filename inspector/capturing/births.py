"""Notes what a forward allocates in operations that make no node: masks, noise, and leaves that it makes.

`inspector/graph/births.py` reads these notes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.nn import Parameter

from ..graph.facts import Facts, Operation
from ..graph.marks import operation_of, tensors_of
from ..torch_internals.tensors import address_below, base_of


def note_births(facts: Facts, result: object, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Notes the address of a result that is on new bytes, or on bytes that the forward made before.

    The second kind is, for example, the detached result of an operation with a node: the last step of an attack.
    """
    for made in (result,) if isinstance(result, Tensor) else tensors_of(result):
        address = _address(made)
        if not address or address in facts.births:
            continue
        owners = [each for each in (*tensors_of(args), *tensors_of(kwargs)) if _address(each) == address]
        if not owners or any(_made_here(facts, each) for each in owners):
            facts.births.add(address)


def _made_here(facts: Facts, owner: Tensor) -> bool:
    """Whether an operation of this capture with a node, which did not write in place, made the tensor's bytes."""
    whole = base_of(owner)
    node = (owner if whole is None else whole).grad_fn
    operation = None if node is None else operation_of(node)
    return isinstance(operation, Operation) and operation.facts is facts and not operation.writes_in_place


def _address(tensor: Tensor) -> int:
    """The address of the tensor's bytes; 0 for a tensor without bytes of its own, and for subclasses."""
    return address_below(tensor) or 0 if type(tensor) in (Tensor, Parameter) and not tensor.is_sparse else 0
