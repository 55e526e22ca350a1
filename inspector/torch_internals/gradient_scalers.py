"""Losses that a gradient scaler multiplies, seen in any thread: then gradients can be told without the scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler

_DOOR = "scale"


def watch_scales(told: Callable[[Tensor], None]) -> Callable[[], None]:
    """Meanwhile `told` is given what a scaler multiplies with, each time that it does. Returns what ends that."""
    original = getattr(GradScaler, _DOOR)
    ended = False

    @wraps(original)
    def scale(scaler: GradScaler, outputs: Any) -> Any:
        result = original(scaler, outputs)
        if not ended and scaler.is_enabled() and scaler._scale is not None:
            told(scaler._scale)
        return result

    def end() -> None:
        nonlocal ended
        ended = True
        if getattr(GradScaler, _DOOR) is scale:
            setattr(GradScaler, _DOOR, original)

    setattr(GradScaler, _DOOR, scale)
    return end
