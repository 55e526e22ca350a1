"""The norm of the gradients that wait for a task, as `clip` bounds it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...inspector.arguments import a_kind
from ...inspector.torch_internals.tensors import computes_itself
from ..trace.statistics import measure


def norm_of(gradients: Sequence[Tensor | None], where: str) -> float:
    """The 2-norm of them all. `where` says in an error whose they are.

    Raises:
        ValueError: there is none, since an element is NaN or infinite.
    """
    norm = 0.0
    for gradient in gradients:
        if gradient is None:
            continue
        if computes_itself(gradient):  # of a DTensor this rank's part has another norm
            raise ValueError(f"a gradient of {where} has no norm to clip: {a_kind(gradient)} computes in its own way")
        found = measure(_summed(gradient), "cheap").read()
        bad = found.unavailable or (found.nan_count and "NaN") or (found.inf_count and "infinite elements")
        if bad:
            raise ValueError(f"a gradient of {where} has no norm to clip: {bad}; replace() or zero() it")
        norm = math.hypot(norm, found.norm or 0.0)
    return norm


def _summed(gradient: Tensor) -> Tensor:
    """The gradient with each element stored once."""
    return gradient.coalesce() if gradient.layout is torch.sparse_coo else gradient
