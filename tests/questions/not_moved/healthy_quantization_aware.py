"""Quantization-aware training with torch.ao's observers and fake-quantized weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.ao.quantization import DeQuantStub, QuantStub, get_default_qat_qconfig, prepare_qat

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    layers = [QuantStub(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2), DeQuantStub()]
    net = nn.Sequential(*layers).train()
    net.qconfig = get_default_qat_qconfig("x86")
    net = prepare_qat(net)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 3, 6, 6)).sub(1).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 60)
