"""The cost of watching a training loop: a step under ts.training relative to a plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TypeVar
from unittest.mock import patch

import torch
from measure import Effort, Row, seconds
from torch import nn
from torch.optim import Adam

import tapescope as ts
from tapescope.engine.studies.workloads import workload
from tapescope.engine.training import training as verbs
from tapescope.engine.training.leaks.graph_leaks import Leaks

T = TypeVar("T")
Around = Callable[[], AbstractContextManager[object]]
Built = tuple[nn.Module, Callable[[], torch.Tensor]]

_EVERY = 10  # ts.training's own: of so many steps in a row, one takes what is dear
_SELDOM = 100  # of so many, one counts the memory
# Steps that visit all objects of the process, as 1, 2, 4 and 8 do: a loop of thousands has a dozen.
_LOOK, _LATE_LOOK = 16, 128
_MOST = 8  # of each kind, in turns: two minutes for all of them


def rows(effort: Effort) -> Iterator[Row]:
    """Yield rows for a GPT, a ResNet and an MLP: watched with and without the black box, also with each write recorded,
    and watched for leaks only.

    The steps are those between two visits of all objects; a visit has its own row. The MLP's steps take 2 ms.
    """
    gpt = {"vocabulary": 1000, "context": 64, "width": 128, "batch": 8, "heads": 4, "layers": 1 if effort.tiny else 4}
    yield from _rows(effort, "GPT", workload("gpt2").build(**gpt), (1.03, 1.03))
    resnet = workload("resnet50").build(batch=2, pixels=32 if effort.tiny else 64)
    yield from _rows(effort, "ResNet", resnet, (1.04, 1.04))
    look, steps = (_LOOK, _EVERY) if effort.tiny else (_LATE_LOOK, _SELDOM)
    yield from _rows(effort, "MLP of 9 layers", _mlp(), (1.12, 1.2), look, steps)


def _mlp() -> Built:
    inner = [layer for _ in range(8) for layer in (nn.Linear(128, 128), nn.ReLU())]
    model, x, target, loss = (
        nn.Sequential(*inner, nn.Linear(128, 1)),
        torch.ones(160, 128),
        torch.ones(160, 1),
        nn.MSELoss(),
    )
    return model, lambda: loss(model(x), target)


def _rows(
    effort: Effort, what: str, built: Built, goals: tuple[float, float], look_at: int = _LOOK, measured: int = _EVERY
) -> Iterator[Row]:
    model, make_loss = built
    optimizer = Adam([each for each in model.parameters() if each.requires_grad], foreach=True)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            make_loss().backward()
            optimizer.step()

    def steps(around: Around) -> tuple[float, float]:
        with around():
            train(look_at)
            look = seconds(partial(train, 2))  # the step that visits all objects ends when the next forward begins
            return look, seconds(partial(train, measured)) / measured

    with TemporaryDirectory() as folder:
        box = Path(folder) / "black_box"
        kinds: list[tuple[str, float | None, Around]] = [
            ("findings and norms", goals[0], lambda: ts.training(model, optimizer)),
            ("findings, norms, black box", goals[1], lambda: ts.training(model, optimizer, black_box=box)),
            ("these and writes=True", None, lambda: ts.training(model, optimizer, black_box=box, writes=True)),
            ("the watch for leaks alone", 1.02, lambda: _leaks_alone(lambda: ts.training(model, optimizer))),
        ]
        arounds: list[Around] = [nullcontext, *(around for _, _, around in kinds)]
        plain, *watched = _in_turns([partial(steps, each) for each in arounds], min(effort.repetitions, _MOST))
    usual = median(step for _, step in plain)
    dear = tuple(1000 * (look - 2 * step) for look, step in watched[1])
    yield Row(f"ts.training, {what}: a visit of all objects, in the steps 1, 2, 4, 8, ...", "ms", dear)
    for (name, goal, _), taken in zip(kinds, watched, strict=True):
        # the median of these is the ratio of both medians
        yield Row(f"ts.training, {what}: {name} / a plain step", "×", tuple(step / usual for _, step in taken), goal)


def _in_turns(kinds: list[Callable[[], T]], repetitions: int) -> list[tuple[T, ...]]:
    """The seconds of each kind, taken in turns after a warm-up of each."""
    for each in kinds:
        each()
    return list(zip(*([each() for each in kinds] for _ in range(repetitions)), strict=True))


def _leaks_alone(training: Around) -> AbstractContextManager[object]:
    """Leave only the observer of leaks; the list of observers is read when a training is created."""
    with patch.object(verbs, "PARTS", [Leaks]):
        return training()
