"""A plan is applied in this thread, and the forward runs in a pool of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import warned

FINDS, SAYS = "refused", ("ts.recompute", "another thread", "open the block there")


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))
    x = torch.randn(256, 4)
    plan = ts.plan_recompute(lambda: net(x).square().sum(), budget=0.6)

    def train() -> None:
        with ThreadPoolExecutor(1) as pool:
            with ts.recompute(plan):
                loss = pool.submit(lambda: net(x).square().sum()).result()
            loss.backward()

    return warned(train)
