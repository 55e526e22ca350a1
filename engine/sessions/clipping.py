"""The norm of the gradients that wait for a task, as `clip` bounds it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..trace.statistics import measure


def norm_of(gradients: Sequence[Tensor | None], where: str) -> float:
    """The 2-norm of them all. `where` says in an error whose they are.

    Raises:
        ValueError: there is none, since an element is NaN or infinite.
    """
    norm = 0.0
    for gradient in gradients:
        found = None if gradient is None else measure(_summed(gradient), "cheap").read()
        if found is None:
            continue
        bad = found.unavailable or (found.nan_count and "NaN") or (found.inf_count and "infinite elements")
        if bad:
            raise ValueError(f"a gradient of {where} has no norm to clip: {bad}; replace() or zero() it")
        norm = math.hypot(norm, found.norm or 0.0)
    return norm


def _summed(gradient: Tensor) -> Tensor:
    """The gradient with each element stored once."""
    return gradient.coalesce() if gradient.layout is torch.sparse_coo else gradient
