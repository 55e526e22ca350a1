"""The cost of recording whole training steps: a recorded step relative to a plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from measure import Effort, Row, ratios, seconds
from torch.optim import Adam

import tapescope as ts
from tapescope.engine.studies.workloads import workload

_STEPS = 8


def rows(effort: Effort) -> Iterator[Row]:
    """Yield a row for a window of eight steps of a GPT, of which the second is traced task by task."""
    knobs = {"vocabulary": 1000, "context": 64, "width": 128, "batch": 8, "heads": 4, "layers": 1 if effort.tiny else 4}
    model, make_loss = workload("gpt2").build(**knobs)
    optimizer = Adam((each for each in model.parameters() if each.requires_grad), foreach=True)

    def train() -> None:
        optimizer.zero_grad()
        make_loss().backward()
        optimizer.step()

    def steps(around: Callable[[], AbstractContextManager[object]], inside: bool) -> Callable[[], float]:
        def run() -> None:
            for _ in range(_STEPS):
                train()

        def once() -> float:
            if not inside:
                with around():
                    return seconds(run)
            return seconds(lambda: _within(around(), run))

        return once

    train()
    torch.manual_seed(0)
    plain = steps(nullcontext, False)
    recorded = steps(lambda: ts.record_steps(steps=_STEPS), False)
    whole = steps(lambda: ts.record_steps(steps=_STEPS), True)
    values = ratios(recorded, plain, effort.repetitions)
    what = f"ts.record_steps(steps={_STEPS}), GPT"
    yield Row(f"{what}: a step while recorded / a plain one", "×", values, 1.1)
    yield Row(f"{what}: with what is made of it / a plain one", "×", ratios(whole, plain, effort.repetitions))


def _within(context: AbstractContextManager[object], run: Callable[[], None]) -> None:
    with context:
        run()
