"""A program of a user's among the ready ones: for what measures workloads by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from .ready_workload import Parts, Size, Workload


@dataclass(frozen=True, slots=True)
class OwnProgram(Workload):
    """A user's function that makes the loss. It has one size, its own, and its tensors are where it makes them."""

    make_loss: Callable[[], Tensor] = field(kw_only=True, repr=False)

    def build(
        self,
        size: Size = "small",
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        **knobs: int,
    ) -> tuple[nn.Module, Callable[[], Tensor]]:
        """An empty module, and the function as it is: size, seed, device and dtype are its own doing.

        Raises:
            ValueError: a knob; it has none.
        """
        self.refuse_knobs(knobs)
        return nn.Module(), self.make_loss

    def refuse_knobs(self, knobs: Mapping[str, int]) -> None:
        """Raises ValueError if there are any: it has none."""
        for knob in knobs:
            raise ValueError(f"{self.name} is a function of yours: it has no knob {knob!r}")


def own_program(make_loss: Callable[[], Tensor], name: str, title: str | None = None) -> OwnProgram:
    """A user's function as a workload.

    Args:
        make_loss: runs the forward and returns the loss.
        name: what tables call it.
        title: what it is, in words.
    """

    def checked() -> Tensor:
        loss = make_loss()
        if isinstance(loss, Tensor) and not loss.requires_grad:
            raise ValueError(
                f"{name} makes a loss without a graph: was it computed under torch.no_grad(), detached, or does no "
                "input of it require grad?"
            )
        return loss

    return OwnProgram(name, title or "your own function", "", _has_no_parts, {}, {}, make_loss=checked)


def _has_no_parts() -> Parts:
    raise ValueError("a function of yours is no model with its data: it can only be called")
