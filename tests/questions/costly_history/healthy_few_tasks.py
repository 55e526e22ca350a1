"""A hook refers to a thousand objects, and the graph has three tasks."""

from __future__ import annotations

import torch

from tapescope.tests.questions.asking import warnings_of_history


def case() -> str:
    y, state = torch.ones(4, requires_grad=True).sin(), [[number] for number in range(1000)]
    y.register_hook(lambda gradient: gradient if state else None)
    return warnings_of_history(y.sum())
