"""Side effects of ATen operators that matter for a recomputation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..graph.node_metadata import tensors_of
from ..torch_private.operators import Operator, schema_name, schema_writes, takes_tensor_first
from ..torch_private.tensors import View

_aten = torch.ops.aten

_BATCH_NORMS = (_aten.native_batch_norm.default, _aten.cudnn_batch_norm.default, _aten.miopen_batch_norm.default)
"""Operators that write their running statistics (arguments 3 and 4) in training, although their schemas omit it."""
_TRAINING = 5  # the position of the argument `training`

_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")

_LIKE = {
    "empty_like": None,
    "new_empty": None,
    "new_empty_strided": None,
    "zeros_like": 0,
    "new_zeros": 0,
    "ones_like": 1,
    "new_ones": 1,
}
"""Operators that fill a new tensor with a constant. They read only their argument's shape, dtype and device."""

_OPAQUE = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
"""Fused operators with internal state, which return more if gradients are enabled."""


def written_by(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the arguments that a call writes to."""
    positions, names = schema_writes(operator)
    if positions or names:
        found: list[Any] = [args[each] for each in positions if each < len(args)]
        found += [kwargs[each] for each in names if each in kwargs]
        return list(tensors_of(found))
    if operator in _BATCH_NORMS and args[_TRAINING]:
        return list(tensors_of(args[3:5]))
    return []


def may_write(operator: Operator) -> bool:
    """Return whether some call of the operator writes to an argument."""
    return bool(any(schema_writes(operator)) or operator in _BATCH_NORMS)


def replayed_arguments(operator: Operator, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return its arguments for a replay: a batch norm in training gives the same result without running statistics."""
    if operator in _BATCH_NORMS and args[_TRAINING]:
        return (*args[:3], None, None, *args[_TRAINING:])
    return args


@cache
def reads_nothing(operator: Operator) -> bool:
    """Return whether the result depends on no argument's content (`zeros_like`); `filled_like` makes an equal one."""
    return operator.namespace == "aten" and _name(operator) in _LIKE


def filled_like(operator: Operator, view: View, device: torch.device) -> Tensor:
    """Return an equal result of an operator that reads no content, given one result."""
    made = torch.empty_strided(view.shape, view.strides, dtype=view.dtype, device=device)
    value = _LIKE[_name(operator)]
    return made if value is None else made.fill_(value)


@cache
def is_random(operator: Operator) -> bool:
    """Return whether the operator may draw random numbers."""
    return torch.Tag.nondeterministic_seeded in operator.tags


@cache
def leaves_empty(operator: Operator) -> bool:
    """Return whether its result is uninitialized."""
    return operator.namespace == "aten" and _name(operator) in _EMPTY


def allocates_only(name: str) -> bool:
    """Return whether the operator of this name (`aten.empty_like.default`) only allocates its result."""
    return name.startswith("aten.") and name.split(".")[1] in _EMPTY


@cache
def is_opaque(operator: Operator) -> bool:
    """Return whether the operator is known not to support a replay (the fused layers of an LSTM)."""
    return operator.namespace == "aten" and _name(operator) in _OPAQUE


class Traits(NamedTuple):
    """The traits of an operator that each call needs; see the functions of the same names.

    Attributes:
        writes_first: it writes to its first argument only.
    """

    may_write: bool
    writes_first: bool
    reads_nothing: bool
    is_random: bool
    is_batch_norm: bool


@cache
def traits_of(operator: Operator) -> Traits:
    """Return the traits of an operator."""
    writes_first = schema_writes(operator) == ((0,), ()) and takes_tensor_first(operator)
    return Traits(
        may_write(operator), writes_first, reads_nothing(operator), is_random(operator), operator in _BATCH_NORMS
    )


def _name(operator: Operator) -> str:
    return schema_name(operator).removeprefix("aten::")


@cache
def moves_storage(operator: Operator) -> bool:
    """Return whether it changes a tensor's storage or shape in place: `set_`, `resize_`, `t_`."""
    return torch.Tag.inplace_view in operator.tags


@cache
def is_inexact(operator: Operator) -> bool:
    """Return whether its result on an accelerator may differ between runs (`index_add`)."""
    return torch.Tag.nondeterministic_bitwise in operator.tags
