"""Peaks predicted without a backward, without and with what kernels take for themselves, beside the measured ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import torch
from measure import Effort, Row
from torch import Tensor

import tapescope as ts
from tapescope.engine.memory import kernel_workspaces as kernel_runs
from tapescope.engine.memory.timeline import Timeline
from tapescope.engine.studies.workloads import WORKLOADS

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from convnext import small_convnext


def rows(effort: Effort) -> Iterator[Row]:
    for name in ["linear50"] if effort.tiny else WORKLOADS:
        model, make_loss = WORKLOADS[name].build()
        yield _row(name, model, make_loss)
    if not effort.tiny:
        yield _row("convnext", *_convnext())


def _convnext() -> tuple[torch.nn.Module, Callable[[], Tensor]]:
    model, pictures = small_convnext(), torch.randn(4, 3, 64, 64)
    return model, lambda: model(pictures).square().mean()


def _row(name: str, model: torch.nn.Module, make_loss: Callable[[], Tensor]) -> Row:
    loss = make_loss()
    graph = ts.graph(loss)
    with patch.multiple(kernel_runs, _found={}, MOST_BYTES=-1):
        without, _ = _predicted(graph)
        _, before = _predicted(graph)  # the first one of a process loads what fake tensors need
    found, seconds = _predicted(graph)
    del loss
    model.zero_grad(set_to_none=True)
    measured = ts.profile(make_loss).peak_bytes
    assert measured is not None
    said = f"estimate: {found.estimates[-1].split(': ')[1]}" if found.estimates else "not called an estimate"
    return Row(
        f"{name}: {measured / 2**20:.2f} MiB measured; dry run without kernels / with",
        "×",
        outcome=f"{_off(without, measured)} / {_off(found, measured)}, {said}; {seconds - before:+.2f} s for kernels",
    )


def _predicted(graph: ts.Graph) -> tuple[Timeline, float]:
    began = perf_counter()
    return ts.simulate(graph), perf_counter() - began


def _off(timeline: Timeline, measured: int) -> str:
    return f"{timeline.peak_bytes / measured - 1:+.2%}"
