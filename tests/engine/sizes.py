"""The ready models so small that tests can run all of them: their graphs are what counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from tapescope.engine.studies.workloads import WORKLOADS

SMALLER = {"mlp_norm": {"layers": 100}, "resnet50": {"pixels": 32}, "resnet152": {"pixels": 32}}

_LARGEST = ("resnet152", "resnet50", "cyclegan")
LARGEST_SLOW = [pytest.param(name, marks=pytest.mark.slow if name in _LARGEST else []) for name in WORKLOADS]
"""All of them; the largest, whose kinds of nodes others have, too, in `make full` alone."""


def built(name: str, device: str = "cpu") -> tuple[nn.Module, Callable[[], Tensor]]:
    return WORKLOADS[name].build(device=device, **SMALLER.get(name, {}))
