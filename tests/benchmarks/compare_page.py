"""The page of a comparison of four policies: its size, and how long it takes to write."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from measure import Effort, Row, seconds
from torch import nn

import tapescope as ts
from tapescope.engine.studies.workloads import workload

_POLICIES = ("bfs", "dfs", "heap", "lpmf")
_MOST_KB = 700.0


def rows(effort: Effort) -> Iterator[Row]:
    layers = 8 if effort.tiny else 800
    programs = {
        "6 linears": lambda: _chain(6),
        "ResNet-50": workload("resnet50" if not effort.tiny else "mnist").build,
        f"{layers} linears": lambda: _chain(layers),
    }
    for name, build in programs.items():
        _, make_loss = build()
        comparison = ts.compare(make_loss, _POLICIES, repetitions=1)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            took = tuple(1e3 * seconds(lambda: comparison.save_html(path)) for _ in range(min(effort.repetitions, 5)))
            what = f"page of four policies, {name} ({len(comparison.graph):,} tasks)"
            yield Row(f"{what}: its size", "kB", (path.stat().st_size / 1e3,), _MOST_KB)
            yield Row(f"{what}: to write", "ms", took)


def _chain(layers: int) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model, x = nn.Sequential(*[nn.Linear(64, 64) for _ in range(layers)]), torch.ones(32, 64)
    return model, lambda: model(x).sum()
