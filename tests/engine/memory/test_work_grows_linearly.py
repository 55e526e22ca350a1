"""The work of predictions and measurements grows linearly with the tasks, counted in Python's instructions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import tapescope as ts


def instructions(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def chain(length: int, kept: list[Tensor] | None) -> Tensor:
    value = torch.ones(2, requires_grad=True)
    for _ in range(length):
        value = torch.tanh(value)
        if kept is not None:
            value.retain_grad()
            kept.append(value)
    return value.sum()


def profiled(length: int) -> Callable[[], object]:
    return lambda: ts.profile(lambda: chain(length, None))


def dry(length: int) -> Callable[[], object]:
    kept: list[Tensor] = []
    graph = ts.graph(chain(length, kept))
    return lambda: (ts.orders.dry_run(graph), kept)


@pytest.mark.heavy
@pytest.mark.parametrize("verb", [profiled, dry], ids=["ts.profile", "ts.orders.dry_run of retained gradients"])
def test_work_grows_with_the_tasks_and_not_with_their_square(verb: Callable[[int], Callable[[], object]]) -> None:
    instructions(verb(20))  # what is done once
    few, many = (instructions(verb(length)) for length in (150, 600))
    assert many < 5 * few
