"""The accuracy of `ts.fits` compared with measured steps, and the time of its search for the largest batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from measure import Effort, Row, repeated

import tapescope as ts
from tapescope.inspector.text.sizes_and_counts import size_text

sys.path.insert(0, str(Path(__file__).parents[1]))  # before the folder that is run in, which has an engine, too

from engine.training.small_models import MODELS, OPTIMIZERS, Gpt, measured

_WORDS, _LENGTH = 50_257, 1_024


def rows(effort: Effort) -> Iterator[Row]:
    for name in ["perceptron"] if effort.tiny else MODELS:
        for optimizer in ("sgd", "adam"):
            yield _off_by(name, optimizer)
    yield _largest_batch(effort)


def _off_by(name: str, optimizer: str) -> Row:
    make_model, make_batch, loss_of = MODELS[name]
    fit = ts.fits(make_model, make_batch, OPTIMIZERS[optimizer], "1GiB", loss_of)
    found = max(measured(make_model, make_batch, OPTIMIZERS[optimizer], loss_of).values())
    off = 100 * abs(fit.peak_bytes / found - 1)
    what = f"ts.fits, {name}, {optimizer}: off by, of {size_text(found)} measured in a step"
    return Row(what, "%", (off,), 0.5)


def _largest_batch(effort: Effort) -> Row:
    """GPT-2 small (12 layers of width 768, 1,024 tokens, 124 million parameters) in 24 GiB, trained with Adam."""
    layers = 1 if effort.tiny else 12

    def tokens(size: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.zeros(size, _LENGTH, dtype=torch.int64) for _ in range(2))

    def gpt() -> Gpt:
        return Gpt(768, layers, _WORDS, _LENGTH, 12)

    def largest() -> int | None:
        return ts.fits(gpt, tokens, OPTIMIZERS["adam, foreach"], "24GiB").largest_batch

    what = f"ts.fits: the largest batch of GPT-2 small in 24 GiB ({largest()}), Adam with foreach"
    return Row(what, "s", repeated(largest, min(effort.repetitions, 3)), 10.0)
