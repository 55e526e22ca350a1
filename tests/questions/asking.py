"""Ask a verb about a small program."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import tapescope as ts


def watched(
    model: nn.Module | Sequence[nn.Module] | None,
    optimizer: Optimizer | Sequence[Optimizer] | None,
    step: Callable[[int], Any],
    steps: int = 8,
) -> ts.types.Training:
    """Run `step(number)` so many times under `ts.training`, and return what it found."""
    with ts.training(model, optimizer) as training:
        for number in range(steps):
            step(number)
    return training


def not_finite(make_loss: Callable[[], Tensor]) -> str:
    """Return the first sentence of `ts.find_nan`; "" if all values are finite."""
    report = ts.find_nan(make_loss)
    return report.sentences[0] if report else ""


def differences(one: Callable[[], Tensor], other: Callable[[], Tensor]) -> str:
    """Return the sentence of `ts.diff` about a factor, or about a sum that lacks a gradient; "" if there is none."""
    runs = []
    for make_loss in (one, other):
        with ts.capture():
            loss = make_loss()
        runs.append(ts.backward(loss, trace="cheap"))
    first = ts.diff(*runs).sentences[0]
    return "" if first.startswith(("run_a and run_b run", "The orders differ")) else first


def faults_of(make_loss: Callable[[], Tensor], second: bool | None = None) -> str:
    """Return the first lines of `session.check` for the tasks that are wrong or have warnings."""
    with ts.capture(keep_inputs=True):
        loss = make_loss()
    with ts.debug(loss) as session:
        checks = [session.check(task, second=second) for task in session.graph.tasks if not task.is_leaf]
    return " ".join(check.lines[0] for check in checks if check.ok is False or check.warnings)


def refused(verb: Callable[[], Any]) -> str:
    """Return the message with which a verb is refused; "" if it runs."""
    try:
        verb()
    except (NotImplementedError, RuntimeError) as error:
        return str(error)
    return ""


def warned(verb: Callable[[], Any]) -> str:
    """Return the warnings that a verb gives."""
    with catch_warnings(record=True) as caught:
        simplefilter("always")
        verb()
    return " ".join(str(each.message) for each in caught)


def without_gradient(model: nn.Module, make_loss: Callable[[], Tensor]) -> str:
    """Return the report of `ts.find_unused` on a model's parameters; "" if each has a gradient."""
    report = ts.find_unused(make_loss, model)
    return str(report) if report else ""


def warnings_of_history(loss: Tensor) -> str:
    """Return the warnings of a session that keeps a history."""
    return warned(lambda: ts.debug(loss, history=True).close())


def leave_process_group() -> None:
    """Destroy the process group, when its threads are idle.

    The last reference to the group may be that of a DistributedDataParallel's Reducer. Gloo then joins the group's
    threads while Python's lock is held, and a thread that is about to free the last all-reduce waits for that lock.
    """
    time.sleep(0.2)
    torch.distributed.destroy_process_group()
