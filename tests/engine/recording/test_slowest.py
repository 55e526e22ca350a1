"""The slowest operations, modules and tasks are those of the recorded times."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.tests.says import raises, says


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(0.05)
        return gradient.clone()


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Sleep.apply(x)  # type: ignore[no-any-return]


def make_loss() -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Slow(), nn.Tanh())
    return model(torch.ones(2, 8)).sum()


def test_what_sleeps_is_the_slowest() -> None:
    run = ts.profile(make_loss)
    slowest = run.slowest(2)
    says(slowest, "SleepBackward", "module 1", "test_slowest.py", len(run.order))
    assert slowest.operations[0].name == "SleepBackward" and slowest.operations[0].tasks == 1
    assert slowest.operations[0].elapsed_ns >= 50_000_000
    assert sum(each.elapsed_ns for each in slowest.operations) == slowest.elapsed_ns
    assert sum(each.tasks for each in slowest.operations) == len(run.order)
    assert len(slowest.tasks) == 2 and len(slowest.cells) == 1 + 3 * 2


def test_a_trace_has_the_tasks_that_have_run() -> None:
    with ts.debug(make_loss(), trace="cheap") as session:
        session.break_at("Sleep")
        session.run()
        assert session.trace is not None
        assert {each.name for each in session.trace.slowest().operations} == {"SumBackward0", "TanhBackward0"}
        session.run()
        says(session.trace.slowest(), "SleepBackward")


def test_times_that_were_not_recorded_are_asked_for() -> None:
    with raises(ValueError, 'trace="cheap"', "ts.profile"):
        ts.backward(make_loss()).slowest()
    with pytest.raises(ValueError, match="count"):
        ts.profile(make_loss).slowest(0)
