"""Which bytes the forward allocated in operations that leave no node: of masks and noise, and of leaves it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.nn import Parameter

from ..graph.facts import Facts, Operation
from ..graph.marks import operation_of, tensors_of
from ..torch_internals.tensors import address_below, base_of


def note_births(facts: Facts, result: object, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Notes the bytes of an operation's result that none of its arguments has, or that the forward made before.

    A detached result of an operation with a node, such as the last step of an attack, is among the latter.
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
    """Where the tensor's bytes begin; 0 for one that has none of its own, or is none of torch's two own classes."""
    return address_below(tensor) or 0 if type(tensor) in (Tensor, Parameter) and not tensor.is_sparse else 0
