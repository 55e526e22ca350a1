"""Losses that a gradient scaler multiplies, seen in any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler

Scaled = Callable[[Tensor, Tensor, Tensor], None]
"""Gets a loss, what the scaler made of it, and the scale, which is the scaler's own tensor."""


@contextmanager
def watching_scales(scaled: Scaled) -> Iterator[None]:
    """Calls `scaled` where a scaler that is enabled has multiplied one tensor; of several at once nothing is told."""
    original = GradScaler.scale
    ended = False

    @wraps(original)
    def following(scaler: Any, outputs: Any) -> Any:
        result = original(scaler, outputs)
        scale = scaler._scale
        if not ended and scale is not None and isinstance(outputs, Tensor) and result is not outputs:
            scaled(outputs, result, scale)
        return result

    GradScaler.scale = following  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ended = True
        if GradScaler.scale is following:
            GradScaler.scale = original  # type: ignore[method-assign]


_DOOR = "scale"


def watch_scales(told: Callable[[Tensor], None]) -> Callable[[], None]:
    """Call `told` with the factor each time a gradient scaler scales a loss. Returns a function that ends that."""
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
