"""The hooks of two parts of a graph share nested dictionaries."""

from __future__ import annotations

import torch

from tapescope.tests.questions.asking import warnings_of_history

FINDS, SAYS = "costly history", ("history", "hooks", "keep_history()")


def case() -> str:
    settings = {part: {number: {"scale": [1.0], "name": str(number)} for number in range(1000)} for part in ("a", "b")}

    def scaled(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * settings["a"][0]["scale"][0]

    x = torch.ones(4, requires_grad=True)
    y, z = x.sin(), x.cos()
    for _ in range(800):
        y, z = y.sin(), z.cos()
        y.register_hook(scaled)
        z.register_hook(scaled)
    return warnings_of_history((y + z).sum())
