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

from measure import Effort, Row, seconds
from torch.optim import Adam

import tapescope as ts
from tapescope.engine.studies.ready_workload import Parts
from tapescope.engine.studies.workloads import workload
from tapescope.engine.training import training as verbs
from tapescope.engine.training.leaks.graph_leaks import Leaks

T = TypeVar("T")
Around = Callable[[], AbstractContextManager[object]]

_EVERY = 10  # ts.training's own: of so many steps in a row, one takes what is dear
_LOOK = 16  # a step that visits all objects of the process, as 1, 2, 4 and 8 do: a loop of thousands has a dozen
_MOST = 8  # of each kind, in turns: two minutes for all of them


def rows(effort: Effort) -> Iterator[Row]:
    """Yield rows for a GPT and a ResNet: watched completely, also with each write recorded, and watched for leaks only.

    The steps are those between two visits of all objects; a visit has its own row.
    """
    gpt = {"vocabulary": 1000, "context": 64, "width": 128, "batch": 8, "heads": 4, "layers": 1 if effort.tiny else 4}
    yield from _rows(effort, "GPT", workload("gpt2").build(**gpt), 1.06)
    yield from _rows(effort, "ResNet", workload("resnet50").build(batch=2, pixels=32 if effort.tiny else 64), 1.08)


def _rows(effort: Effort, what: str, built: Parts, goal: float) -> Iterator[Row]:
    model, make_loss = built
    optimizer = Adam([each for each in model.parameters() if each.requires_grad], foreach=True)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            make_loss().backward()
            optimizer.step()

    def steps(around: Around) -> tuple[float, float]:
        with around():
            train(_LOOK)
            look = seconds(partial(train, 1))
            return look, seconds(partial(train, _EVERY))

    with TemporaryDirectory() as folder:
        box = Path(folder) / "black_box"
        plain, *watched = _in_turns(
            [
                partial(steps, around)
                for around in (
                    nullcontext,
                    lambda: ts.training(model, optimizer, black_box=box),
                    lambda: ts.training(model, optimizer, black_box=box, writes=True),
                    lambda: _leaks_alone(lambda: ts.training(model, optimizer)),
                )
            ],
            min(effort.repetitions, _MOST),
        )
    usual = median(every for _, every in plain)
    dear = tuple(1000 * (look - every / _EVERY) for look, every in watched[0])
    yield Row(f"ts.training, {what}: a visit of all objects, in the steps 1, 2, 4, 8, ...", "ms", dear)
    for name, goal_of_it, taken in zip(
        ("findings, norms, black box", "these and writes=True", "the watch for leaks alone"),
        (goal, None, 1.02),
        watched,
        strict=True,
    ):
        # the median of these is the ratio of both medians
        yield Row(
            f"ts.training, {what}: {name} / a plain step", "×", tuple(every / usual for _, every in taken), goal_of_it
        )


def _in_turns(kinds: list[Callable[[], T]], repetitions: int) -> list[tuple[T, ...]]:
    """The seconds of each kind, taken in turns after a warm-up of each."""
    for each in kinds:
        each()
    return list(zip(*([each() for each in kinds] for _ in range(repetitions)), strict=True))


def _leaks_alone(training: Around) -> AbstractContextManager[object]:
    """Leave only the observer of leaks; the list of observers is read when a training is created."""
    with patch.object(verbs, "PARTS", [Leaks]):
        return training()
