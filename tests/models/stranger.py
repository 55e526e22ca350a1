"""A third-party model that tapescope is tested with, and its loss."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy
import torch
from torch import Tensor, nn

_SEED = 0


@dataclass(frozen=True, eq=False)
class Stranger:
    """A model and its loss, which is the same each time for equal states of the model and of the generators.

    Attributes:
        model: small, randomly initialised, in training mode.
        make_loss: runs the forward.
        first: the values of parameters and buffers as they were first.
    """

    model: nn.Module
    make_loss: Callable[[], Tensor]
    first: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tensors = self.model.state_dict(keep_vars=True)
        object.__setattr__(self, "first", {name: each.detach().clone() for name, each in tensors.items()})

    def put_back(self) -> None:
        """Everything is as at first: values, no .grad, generators."""
        with torch.no_grad():
            for name, each in self.model.state_dict(keep_vars=True).items():
                if each.dtype is not torch.uint8 and not torch.equal(each, self.first[name]):
                    each.copy_(self.first[name])
        for parameter in self.model.parameters():
            parameter.grad = None
        seed()

    def step(self) -> None:
        """From the start to where each parameter has its .grad."""
        self.put_back()
        self.make_loss().backward()

    def after_a_step(self) -> None:
        """The same, with all chance as at the start: the next step leaves out the same layers."""
        self.step()
        seed()

    def gradients(self) -> dict[str, Tensor | None]:
        """A copy of what is in .grad, by the names of the parameters that require one."""
        return {
            name: None if each.grad is None else each.grad.detach().clone()
            for name, each in self.model.named_parameters()
            if each.requires_grad
        }


def seed() -> None:
    """Seed all random number generators."""
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    numpy.random.seed(_SEED)
