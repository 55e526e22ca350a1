"""A meta-learning step computes the loss with updated copies that were detached."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "functional_call", ("0.weight",)


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def make_loss() -> torch.Tensor:
        fast = {name: (each.detach() - 0.1).requires_grad_() for name, each in net.named_parameters()}
        return functional_call(net, fast, torch.randn(3, 4)).square().mean()  # named

    return unused(make_loss, net)
