"""What a loop holds, by what it is for: to the byte, in the steps that are looked at."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tapehead as th
from tapehead.engine.training.held_memory import HELD

pytestmark = pytest.mark.filterwarnings("ignore:th.training")

WEIGHTS = 4 * (4 * 8 + 8 + 8 + 1)


def trained(keep: bool, steps: int = 9) -> th.Training:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    kept = []
    with th.training(model, optimizer) as training:
        for _ in range(steps):
            optimizer.zero_grad()
            out = model(torch.ones(3, 4))
            out.sum().backward()
            optimizer.step()
            if keep:
                kept.append(out)
    return training


def test_bytes_are_those_of_the_loops_own_tensors() -> None:
    training = trained(keep=False)
    assert training.memory.firsts.tolist() == [1, 2, 4, 8]
    held = dict(zip(HELD, training.memory.values[-1].tolist(), strict=True))
    assert held == {
        "parameters": WEIGHTS,
        "optimizer": 2 * WEIGHTS + 4 * 4,  # two moments, and a step of each parameter
        "gradients": WEIGHTS,
        "activations": 4 * (3 * 4 + 3 * 8),  # the input, and what tanh gave
        "earlier": 0,
    }


def test_what_earlier_steps_keep_is_in_it_where_leaks_are_looked_for() -> None:
    training = trained(keep=True)
    earlier = training.memory.values[:, HELD.index("earlier")].tolist()
    leak = next(each for each in training.findings if each.kind == "leak")
    assert earlier[0] == 0 and earlier == sorted(earlier) and 0 < earlier[-1] <= (leak.size or 0)


def test_each_hundredth_step_is_looked_at_and_what_is_seldom_asked_for_costs_no_walk() -> None:
    training = trained(keep=False, steps=205)
    assert training.memory.firsts.tolist() == [1, 2, 4, 8, 16, 32, 64, 100, 128, 200]
