"""Another thread runs a teacher while this one captures the student."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import warned


def case() -> str:
    teacher, student, x = nn.Linear(4, 2), nn.Linear(4, 2), torch.randn(6, 4)

    def train() -> None:
        with ThreadPoolExecutor(1) as pool, ts.capture(student):
            wanted = pool.submit(lambda: teacher(x).detach())
            (student(x) - wanted.result()).square().sum().backward()

    return warned(train)
