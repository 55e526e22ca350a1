"""Loops of Trainers that nobody here wrote are left in peace: nothing is found, and they train as without."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn

import tapescope as ts

from ..trainer_loops import LOOPS, Train


def started(train: Train, folder: Path, steps: int, **options: Any) -> tuple[ts.types.Training, nn.Module]:
    training = ts.training(**options).start()
    try:
        return training, train(folder, steps)
    finally:
        training.stop()


def around(train: Train, folder: Path, steps: int, **options: Any) -> tuple[ts.types.Training, nn.Module]:
    with ts.training(**options) as training:
        model = train(folder, steps)
    return training, model


Way = Callable[..., tuple[ts.types.Training, nn.Module]]


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", [started, around])
@pytest.mark.parametrize("loop", LOOPS)
def test_two_hundred_steps_of_a_trainer_are_as_without_and_nothing_is_found(
    loop: str, way: Way, tmp_path: Path
) -> None:
    expect_as_without(LOOPS[loop], way, 200, tmp_path)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loop", ["transformers", "lightning", "accelerate"])
def test_some_steps_of_a_trainer_are_as_without_and_nothing_is_found(loop: str, tmp_path: Path) -> None:
    expect_as_without(LOOPS[loop], around, 6, tmp_path)


def expect_as_without(train: Train, way: Way, steps: int, folder: Path) -> None:
    expected = train(folder / "plain", steps)
    options = {"black_box": folder / "box"} if way is around else {}
    training, found = way(train, folder / "watched", steps, **options)
    assert training.steps == steps
    assert [str(each) for each in training.findings] == [] and not training.notes
    for (name, one), other in zip(expected.state_dict().items(), found.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    kept = [ref(each) for each in found.parameters()]
    del expected, one, other, found
    gc.collect()  # Trainers are cycles themselves
    assert training.steps and not [each for each in kept if each() is not None]
