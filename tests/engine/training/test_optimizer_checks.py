"""Facts that optimizers report themselves are passed on."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

import tapescope as ts
from tapescope.tests.says import Snapshots, says

pytestmark = pytest.mark.filterwarnings("ignore:ts.training")


def test_steps_that_a_scaler_leaves_out_are_counted(snapshot: Snapshots) -> None:
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with ts.training(model, optimizer) as training:
        for factor in (1.0, torch.inf, 1.0, torch.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 3)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    (found,) = [each for each in training.findings if each.kind == "skipped"]
    assert (found.step, found.last_step) == (1, 3)
    says(found, "2 steps", "SGD", "ts.find_nan")
    snapshot("training", found)
