"""Reasons why a task turns a gradient into zeros, looked up in the node's saved tensors before they are freed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.torch_internals.modes import unobserved
from ...inspector.torch_internals.saved import saved_numbers, saved_slots
from ...inspector.torch_internals.tensors import computes_itself

_Kept = Mapping[str, Tensor | float]
"""A node's saved values, by name."""


Cause = Literal["dead", "outside", "masked", "zero factor", "flat", "overwritten", "padding_idx", "ignore_index"]
"""Names a reason why a task returns zeros."""


@dataclass(frozen=True, slots=True)
class ZeroReason:
    """A reason why all of an output may be zero.

    Attributes:
        cause: its name.
        everywhere: the sentence where no element passes the gradient on.
        where: the sentence where no element with a non-zero gradient passes it on; None: the gradient and the saved
            tensor do not have the same elements, as in a product of matrices.
        stops: from the node's saved values the mask of elements that pass nothing on; None: no element ever does.
    """

    cause: Cause
    everywhere: str
    where: str | None = None
    stops: Callable[[_Kept], Tensor | bool] | None = None


def reason_of(name: str, output: int) -> ZeroReason | None:
    """Return the possible reason for an output of a node, by its short name."""
    return _REASONS.get((name, output))


def passing(reason: ZeroReason, node: Node, gradient: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return two masks: the elements that pass a gradient on, and those of them with a non-zero gradient here.

    None if that is not known, as for a tensor that a checkpoint packed.
    """
    assert reason.stops is not None
    with unobserved():
        kept: dict[str, Tensor | float] = {**saved_numbers(node)}
        for slot in saved_slots(node):
            kept[slot.name] = slot.tensor
        if not all(map(_is_plain, (gradient, *(each for each in kept.values() if isinstance(each, Tensor))))):
            return None
        try:
            stops = reason.stops(kept)
        except KeyError:
            return None
        if not isinstance(stops, Tensor):
            return None
        through = ~stops
        return through, through if reason.where is None else through & (gradient != 0)


def _is_plain(tensor: Tensor) -> bool:
    """Whether it can be looked at element by element."""
    if computes_itself(tensor) or tensor.is_quantized or tensor.is_nested:
        return False
    return tensor.layout is torch.strided and tensor.device.type != "meta"


def _not_positive(kept: _Kept) -> Tensor | bool:
    return kept["result"] <= 0


def _clamped(kept: _Kept) -> Tensor | bool:
    below, above = kept.get("min"), kept.get("max")
    outside: Tensor | bool = False
    if below is not None:
        outside = outside | (kept["self"] < below)
    return outside if above is None else outside | (kept["self"] > above)


def _beyond(kept: _Kept) -> Tensor | bool:
    return (kept["self"] <= kept["min_val"]) | (kept["self"] >= kept["max_val"])


def _beyond_three(kept: _Kept) -> Tensor | bool:  # Hardsigmoid's slope ends there
    return (kept["self"] <= -3) | (kept["self"] >= 3)


def _below_threshold(kept: _Kept) -> Tensor | bool:
    return kept["self"] <= kept["threshold"]


def _set(slot: str) -> Callable[[_Kept], Tensor | bool]:
    return lambda kept: kept[slot] != 0


def _unset(slot: str) -> Callable[[_Kept], Tensor | bool]:
    return lambda kept: kept[slot] == 0


def _equal(slot: str, number: str) -> Callable[[_Kept], Tensor | bool]:
    return lambda kept: kept[slot] == kept[number]


def _elements(cause: Cause, what: str, more: str = "") -> tuple[Cause, str, str]:
    return cause, f"every element {what}{more}", f"every element with a non-zero gradient {what}"


_DEAD = _elements("dead", "was zero or below", " (a dead ReLU)")
_OUTSIDE = _elements("outside", "was outside the range in which it passes gradients")
_MASKED = _elements("masked", "was masked")
_FACTOR = "the other factor is all zero"
_FACTOR_THERE = "the other factor is zero wherever the gradient is not"
_FLAT = ZeroReason("flat", "its derivative is zero everywhere")
_OVERWRITTEN = ZeroReason("overwritten", "the value was overwritten")
_PADDING = ZeroReason("padding_idx", "every index was the padding_idx", None, _equal("indices", "padding_idx"))
_IGNORED = ZeroReason("ignore_index", "every target was the ignore_index", None, _equal("target", "ignore_index"))

_REASONS = {
    ("Relu", 0): ZeroReason(*_DEAD, _not_positive),
    **{(name, 0): ZeroReason(*_OUTSIDE, _clamped) for name in ("Clamp", "ClampMin", "ClampMax")},
    ("Hardtanh", 0): ZeroReason(*_OUTSIDE, _beyond),
    ("Hardsigmoid", 0): ZeroReason(*_OUTSIDE, _beyond_three),
    ("Threshold", 0): ZeroReason(*_OUTSIDE, _below_threshold),
    ("MaskedFill", 0): ZeroReason(*_MASKED, _set("mask")),
    ("MaskedScatter", 0): ZeroReason(*_MASKED, _set("mask")),
    ("Where", 0): ZeroReason(*_MASKED, _unset("condition")),
    ("Where", 1): ZeroReason(*_MASKED, _set("condition")),
    ("NativeDropout", 0): ZeroReason(*_MASKED, _unset("result1")),
    ("Mul", 0): ZeroReason("zero factor", _FACTOR, _FACTOR_THERE, _unset("other")),
    ("Mul", 1): ZeroReason("zero factor", _FACTOR, _FACTOR_THERE, _unset("self")),
    **{
        (name, output): ZeroReason("zero factor", _FACTOR, None, _unset(slot))
        for name, factors in {
            "Mm": {0: "mat2", 1: "self"},
            "Bmm": {0: "mat2", 1: "self"},
            "Addmm": {1: "mat2", 2: "mat1"},
            "Baddbmm": {1: "batch2", 2: "batch1"},
            "Mv": {0: "vec", 1: "self"},
            "Addmv": {1: "vec", 2: "mat"},
            "Dot": {0: "tensor", 1: "self"},
            "Convolution": {0: "weight", 1: "input"},
        }.items()
        for output, slot in factors.items()
    },
    ("Embedding", 0): ZeroReason(
        "padding_idx", "every index was the padding_idx", None, _equal("indices", "padding_idx")
    ),
    ("NllLoss", 0): ZeroReason(
        "ignore_index", "every target was the ignore_index", None, _equal("target", "ignore_index")
    ),
    ("NllLoss2D", 0): ZeroReason(
        "ignore_index", "every target was the ignore_index", None, _equal("target", "ignore_index")
    ),
    **{(name, 0): _FLAT for name in ("Round", "Floor", "Ceil", "Trunc", "Sign", "Sgn")},
    **{(name, 0): _OVERWRITTEN for name in ("Zero", "Fill", "CopyBackwards")},
}
"""Maps (short name of a node, number of its output) to the reason why that output may be zero.

A bias has no entry: its gradient is a sum, and nothing is multiplied with it.
"""
