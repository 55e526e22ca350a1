"""The forward runs in a pool of threads, and the capture is open in this one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import warned

FINDS, SAYS = "refused", ("ts.capture", "Linear", "another thread", "ts.capture()")


def case() -> str:
    net, x = nn.Linear(4, 2), torch.randn(6, 4)

    def train() -> None:
        with ThreadPoolExecutor(1) as pool:
            with ts.capture(net):
                loss = pool.submit(lambda: net(x).square().sum()).result()
            loss.backward()

    return warned(train)
