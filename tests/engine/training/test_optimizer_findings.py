"""What optimizers say of themselves is told where it is one, and not of schedules that are as they should be."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, OneCycleLR

import tapehead as th

pytestmark = pytest.mark.filterwarnings("ignore:th.training")


def test_steps_that_a_scaler_leaves_out_are_counted() -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with th.training(model, optimizer) as training:
        for factor in (1.0, torch.inf, 1.0, torch.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 3)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    (found,) = [each for each in training.findings if each.kind == "skipped"]
    assert (found.step, found.last_step) == (1, 3)
    assert found.sentence.startswith("2 steps of SGD left out by the gradient scaler")


def rates_found(rates: list[float]) -> list[th.Finding]:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), 0.1)
    with th.training(model, optimizer) as training:
        for rate in rates:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            model(torch.zeros(2, 3)).sum().backward()
            optimizer.step()
    return [each for each in training.findings if each.kind == "learning rate"]


def test_a_rate_that_jumps_is_told_of() -> None:
    (found,) = rates_found([0.001, 0.001, 0.1, 0.1])
    assert found.step == 2 and "has jumped to 0.1; it had been 0.001 at most" in found.sentence


def schedule(name: str) -> list[float]:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], 0.1)
    made = {
        "warm-up": lambda: LambdaLR(optimizer, lambda step: min(step / 10, 1.0)),
        "one cycle": lambda: OneCycleLR(optimizer, 0.1, total_steps=31),
        "restarts": lambda: CosineAnnealingWarmRestarts(optimizer, 10),
    }
    scheduler = made[name]()
    rates = []
    for _ in range(30):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("name", ["warm-up", "one cycle", "restarts"])
def test_a_schedule_is_none(name: str) -> None:
    assert not rates_found(schedule(name))
