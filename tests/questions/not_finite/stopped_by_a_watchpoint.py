"""watch("nan") says the same as find_nan."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = "not finite", ("log", "torch.where(mask, x, 1).log()")


def case() -> str:
    x = nn.Parameter(torch.tensor([0.0, 1.0]))
    with ts.capture():
        y = x.clone().log()  # named
        loss = torch.where(x > 0, y, torch.zeros(2)).sum()
    with ts.debug(loss) as session:
        session.watch("nan")
        session.run()
        return "" if session.stopped is None else session.stopped.text
