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


def replayed_arguments(operator: Operator, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return its arguments for a replay: a batch norm in training gives the same result without running statistics."""
    if operator in _BATCH_NORMS and args[_TRAINING]:
        return (*args[:3], None, None, *args[_TRAINING:])
    return args


def filled_like(operator: Operator, view: View, device: torch.device) -> Tensor:
    """Return what an operator that reads no content, such as `zeros_like`, returns for this view and device."""
    made = torch.empty_strided(view.shape, view.strides, dtype=view.dtype, device=device)
    value = _LIKE[schema_name(operator).removeprefix("aten::")]
    return made if value is None else made.fill_(value)


def allocates_only(name: str) -> bool:
    """Return whether the operator of this name (`aten.empty_like.default`) only allocates its result."""
    return name.startswith("aten.") and name.split(".")[1] in _EMPTY


class Traits(NamedTuple):
    """The traits of an operator.

    Attributes:
        may_write: some calls write to an argument.
        writes_first: it writes to its first argument only.
        reads_nothing: the result does not depend on any argument's content (`zeros_like`); `filled_like` makes an equal
            one.
        leaves_empty: the result is uninitialized (`empty_like`).
        moves_storage: it changes a tensor's storage or shape in place: `set_`, `resize_`, `t_`.
        is_random: it may draw random numbers.
        is_opaque: it is known not to support a replay (the fused layers of an LSTM).
        is_inexact: its result on an accelerator may differ between runs (`index_add`).
        is_batch_norm: it is one of the batch norms, which write their running statistics.
    """

    may_write: bool
    writes_first: bool
    reads_nothing: bool
    leaves_empty: bool
    moves_storage: bool
    is_random: bool
    is_opaque: bool
    is_inexact: bool
    is_batch_norm: bool


@cache
def traits_of(operator: Operator) -> Traits:
    """Return the traits of an operator."""
    is_batch_norm = operator in _BATCH_NORMS
    name = schema_name(operator).removeprefix("aten::") if operator.namespace == "aten" else ""
    return Traits(
        may_write=bool(any(schema_writes(operator)) or is_batch_norm),
        writes_first=schema_writes(operator) == ((0,), ()) and takes_tensor_first(operator),
        reads_nothing=name in _LIKE,
        leaves_empty=name in _EMPTY,
        moves_storage=torch.Tag.inplace_view in operator.tags,
        is_random=torch.Tag.nondeterministic_seeded in operator.tags,
        is_opaque=name in _OPAQUE,
        is_inexact=torch.Tag.nondeterministic_bitwise in operator.tags,
        is_batch_norm=is_batch_norm,
    )
