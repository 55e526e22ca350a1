"""The capture is opened in the thread that runs the forward."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import warned


def case() -> str:
    net, x = nn.Linear(4, 2), torch.randn(6, 4)

    def captured() -> torch.Tensor:
        with ts.capture(net):
            return net(x).square().sum()

    def train() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(captured).result().backward()

    return warned(train)
