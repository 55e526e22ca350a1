"""An encoder and a decoder share a tied weight, and each has an optimizer of its own."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "stepped twice", ("0.weight", "Adam.step()", "AdamW.step()")


def case() -> ts.types.Training:
    embed, out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    out.weight = embed.weight
    optimizers = [torch.optim.Adam(embed.parameters(), 1e-3), torch.optim.AdamW(out.parameters(), 1e-3)]

    def step(_: int) -> None:
        tokens = torch.randint(9, (5,))
        nn.functional.cross_entropy(out(embed(tokens)), tokens).backward()
        for each in optimizers:
            each.step()
        for each in optimizers:
            each.zero_grad()

    return watched(nn.ModuleList([embed, out]), optimizers, step)
