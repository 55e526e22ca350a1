"""A functional call puts other tensors in the place of the model's parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "functional_call", ("weight", "place")


def case() -> str:
    net = nn.Linear(4, 1)
    weights = {name: each.detach().clone().requires_grad_() for name, each in net.named_parameters()}
    return unused(lambda: functional_call(net, weights, torch.randn(3, 4)).sum(), net)  # named
