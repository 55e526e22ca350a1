"""A recomputation plan of a forward that runs in a pool of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused

FINDS, SAYS = "refused", ("ts.plan_recompute", "thread", "cannot")


def case() -> str:
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(6, 4)

    def make_loss() -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: net(x).square().sum()).result()

    return refused(lambda: ts.plan_recompute(make_loss, budget=0.5))
