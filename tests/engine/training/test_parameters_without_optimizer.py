"""The parameters that have gradients, compared with those that optimizers hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

import tapescope as ts
from tapescope.tests.says import Snapshots, says

pytestmark = pytest.mark.filterwarnings("ignore:ts.training")


def train(model: nn.Module, *optimizers: Optimizer) -> ts.types.Training:
    with ts.training() as training:
        for _ in range(4):
            model(torch.randn(2, 4)).sum().backward()
            for each in optimizers:
                each.step()
                each.zero_grad()
    return training


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def test_a_head_that_was_replaced_after_the_optimizer_was_made_is_held_by_none(snapshot: Snapshots) -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    model[1] = nn.Linear(4, 4)
    before = model[1].weight.clone()
    training = train(model, optimizer)
    stray, idle = sorted(training.findings, key=lambda each: each.kind)
    assert stray.kind == "never stepped"
    says(stray, "1.weight", "1.bias", "requires_grad_(False)")
    snapshot("training", stray)
    assert torch.equal(model[1].weight, before) and stray.tensor == "1.weight"
    assert idle.kind == "without gradient" and not idle.certain, "a later step may do so"
    says(idle, "SGD", "2 parameters", "ts.find_unused(make_loss, model)")
    snapshot("training", idle)
    assert not training.notes


def test_frozen_tied_and_shared_out_parameters_are_as_they_should_be() -> None:
    model = net()
    model[0].requires_grad_(False)
    assert train(model, SGD(model.parameters(), 0.1)).findings == []
    tied = net()
    tied[1].weight = tied[0].weight
    assert train(tied, SGD(tied.parameters(), 0.1)).findings == []
    both = net()
    assert train(both, SGD(both[0].parameters(), 0.1), SGD(both[1].parameters(), 0.1)).findings == []


def test_steps_without_any_gradient_are_told(snapshot: Snapshots) -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with ts.training(model, optimizer) as training:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum()  # no backward
            optimizer.step()
    (found,) = training.findings
    assert found.kind == "without gradient" and found.tensor is None and not found.certain
    says(found, "SGD", "backward()", "zero_grad()", "no_grad()")
    snapshot("training", found)


def test_a_missing_gradient_is_said_for_all_steps_until_there_is_one() -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)

    def train(steps: int, uses_all: int) -> ts.types.Finding:
        with ts.training(model, optimizer) as training:
            for step in range(steps):
                optimizer.zero_grad()
                (model if step >= uses_all else model[0])(torch.randn(2, 4)).sum().backward()
                optimizer.step()
        (found,) = [each for each in training.findings if each.kind == "without gradient"]
        return found

    found = train(30, 30)
    says(found, "1.weight", "30 steps")
    assert (found.step, found.last_step) == (2, 29)
    found = train(60, 45)
    assert found.last_step is not None and 2 < found.last_step < 45, (
        "from the next list of all parameters on, it has one"
    )
    says(found, f"first {found.last_step + 1} steps")
