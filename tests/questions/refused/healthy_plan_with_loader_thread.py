"""The batch is made in a pool of threads, the forward is not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def make_loss() -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            x = pool.submit(lambda: torch.ones(6, 4)).result()
        return net(x).square().sum()

    return refused(lambda: ts.plan_recompute(make_loss, budget=0.9))
