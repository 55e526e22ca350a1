"""A moving average of the weights is a copy of the model that gets no gradient."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()
        average.update_parameters(net)

    return watched(nn.ModuleDict({"net": net, "average": average}), optimizer, step, 30)
