"""Numbers that an accelerator is still at work on, fetched without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor


class LateTensor:
    """A tensor on its way to the CPU: its copy is asked for now, and read when it has come."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.Event | None = None
        if tensor.device.type == "cpu":
            self._copy = tensor
            return
        pinned = tensor.device.type == "cuda"
        self._copy = torch.empty_like(tensor, device="cpu", pin_memory=pinned)
        self._copy.copy_(tensor, non_blocking=True)
        self._event = torch.Event(tensor.device)
        self._event.record()

    @property
    def comes_later(self) -> bool:
        """Whether its values are another device's, which may still be at work on them."""
        return self._event is not None

    def has_come(self) -> bool:
        return self._event is None or self._event.query()

    def read(self) -> Tensor:
        """Its values on the CPU; where they have not come yet, this waits."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy
