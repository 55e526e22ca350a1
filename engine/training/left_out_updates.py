"""Updates with gradients that are not finite, left out by fused optimizers on the device, as with a gradient scaler."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...inspector.torch_internals.optimizer_steps import is_fused, parameters_of


class LeftOutUpdates:
    """Gives fused optimizers the flag `found_inf`, which their kernels read: parameters and state stay as they were
    where it is set, and nobody waits. It is taken back after the step, or before the next one if that step raised. One
    that a gradient scaler has set stays.
    """

    def __init__(self) -> None:
        self._flagged: Optimizer | None = None  # the one that has ours

    def begins(self, optimizer: Optimizer, others: Iterable[Tensor]) -> bool | None:
        """Whether this step's update is left out if an element of its gradients or of these others is not finite.

        Returns:
            False where a gradient scaler goes by the optimizer's own gradients alone; None where it is not fused.
        """
        self.ends()
        if getattr(optimizer, "found_inf", None) is not None:
            return False
        if not is_fused(optimizer) or not getattr(optimizer, "_step_supports_amp_scaling", False):
            return None
        gradients = [each.grad for each in parameters_of(optimizer) if each.grad is not None]
        flag = _flag_of({id(each): each for each in (*gradients, *others)}.values())
        if flag is not None:
            self._flagged = optimizer
            optimizer.found_inf = flag  # type: ignore[attr-defined]
        return True

    def ends(self) -> None:
        optimizer, self._flagged = self._flagged, None
        if optimizer is not None and hasattr(optimizer, "found_inf"):
            del optimizer.found_inf


def _flag_of(tensors: Iterable[Tensor]) -> Tensor | None:
    """1 where an element is not finite, else 0; on the device of the first."""
    plain = [each.detach() for each in tensors if each.layout is torch.strided and each.numel()]
    if not plain:
        return None
    home = plain[0].device
    bad = [each.isfinite().all().logical_not_().to(home, torch.float32, non_blocking=True) for each in plain]
    return torch.stack(bad).amax()
