"""Updates with gradients that are not finite, left out by fused optimizers on the device, as with a gradient scaler."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...inspector.torch_internals.modes import unobserved
from .columns import parameters_of


class LeftOutUpdates:
    """Gives fused optimizers the flag `found_inf`, which their kernels read: parameters and state stay as they were
    where it is set, and nobody waits. It is taken back after the step. One that a gradient scaler has set stays.
    """

    def __init__(self) -> None:
        self._is_ours = False

    def begins(self, optimizer: Optimizer) -> bool:
        """Whether this step's update is left out if it is bad: not where the optimizer is not fused."""
        self._is_ours = False
        if getattr(optimizer, "found_inf", None) is not None:
            return True
        fused = any(group.get("fused") for group in optimizer.param_groups)
        if not fused or not getattr(optimizer, "_step_supports_amp_scaling", False):
            return False
        with unobserved():
            flag = _flag_of([each.grad for each in parameters_of(optimizer) if each.grad is not None])
        if flag is not None:
            self._is_ours = True
            optimizer.found_inf = flag  # type: ignore[attr-defined]
        return True

    def ends(self, optimizer: Optimizer) -> None:
        if self._is_ours:
            self._is_ours = False
            del optimizer.found_inf  # type: ignore[attr-defined]


def _flag_of(gradients: list[Tensor]) -> Tensor | None:
    """1 where an element is not finite, else 0; on the device of the first."""
    plain = [each.detach() for each in gradients if each.layout is torch.strided and each.numel()]
    if not plain:
        return None
    home = plain[0].device
    bad = [each.isfinite().all().logical_not_().to(home, torch.float32, non_blocking=True) for each in plain]
    return torch.stack(bad).amax()
