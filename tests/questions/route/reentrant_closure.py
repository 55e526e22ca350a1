"""A reentrant checkpoint of a function whose features come from a frozen encoder under no_grad."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "reentrant checkpoint", ("body.weight", "use_reentrant=False")


def case() -> str:
    encoder, net = (
        nn.Linear(4, 4).requires_grad_(False),
        nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)}),
    )

    def features(x: torch.Tensor) -> torch.Tensor:
        return net["body"](x).relu()

    def make_loss() -> torch.Tensor:
        hidden = checkpoint(features, encoder(torch.randn(3, 4)), use_reentrant=True)  # named
        return net["head"](hidden).mean()

    return unused(make_loss, net)
