"""A functional call with tensors that were computed from the parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from tapescope.tests.questions.reading import unused


def case() -> str:
    net = nn.Linear(4, 1)
    weights = {name: each * 1.0 for name, each in net.named_parameters()}
    return unused(lambda: functional_call(net, weights, torch.randn(3, 4)).sum(), net)
