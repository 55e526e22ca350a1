"""What it costs to watch a training loop: a step under th.training over a plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

from measure import Effort, Row, ratios, seconds
from torch.optim import Adam

import tapehead as th
from tapehead.engine.training import training as verbs
from tapehead.engine.training.leaks import Leaks
from tapehead.engine.workloads.ready_workload import Parts
from tapehead.engine.workloads.workloads import workload

_STEPS = 8


def rows(effort: Effort) -> Iterator[Row]:
    """Of a GPT and a ResNet, with all that is watched and with the watch for leaks alone."""
    gpt = {"vocabulary": 1000, "context": 64, "width": 128, "batch": 8, "heads": 4, "layers": 1 if effort.tiny else 4}
    yield from _rows(effort, "GPT", workload("gpt2").build(**gpt), 1.06)
    yield from _rows(effort, "ResNet", workload("resnet50").build(batch=2, pixels=32 if effort.tiny else 64), 1.08)


def _rows(effort: Effort, what: str, built: Parts, goal: float) -> Iterator[Row]:
    model, make_loss = built
    optimizer = Adam([each for each in model.parameters() if each.requires_grad], foreach=True)

    def train() -> None:
        for _ in range(_STEPS):
            optimizer.zero_grad()
            make_loss().backward()
            optimizer.step()

    def steps(around: Callable[[], AbstractContextManager[object]]) -> Callable[[], float]:
        def once() -> float:
            with around():
                return seconds(train)

        return once

    train()
    plain = steps(nullcontext)
    watched = steps(lambda: th.training(model, optimizer))
    yield Row(f"th.training, {what}: a step / a plain one", "×", ratios(watched, plain, effort.repetitions), goal)
    with patch.object(verbs, "PARTS", [Leaks]):
        yield Row(
            f"th.training, {what}: its watch for leaks alone / a plain step",
            "×",
            ratios(watched, plain, effort.repetitions),
            1.02,
        )
