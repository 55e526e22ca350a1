"""The page of a training loop as a widget: which steps open in its place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.engine.training.training_result import Training
from tapescope.tests.says import Snapshots, raises, says


@pytest.fixture(scope="module")
def recorded() -> tuple[Training, ts.record_steps]:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ts.training(model, optimizer) as training, ts.record_steps(3) as steps:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    return training, steps


def test_a_step_that_was_recorded_beside_the_loop_opens_as_its_deck(
    recorded: tuple[Training, ts.record_steps], snapshot: Snapshots
) -> None:
    training, steps = recorded
    page = training.page(steps=steps)
    assert 'data-live="1"' in page._page.content, "the one that was followed, and no other"
    page.open_step(1)
    assert page.deck in page.children
    page._on_message(None, {"leave": True}, [])
    assert page.deck is None and page.children == (page._page,)
    page.open_step(2)
    says(page._error.value, "step 2", 1)
    snapshot("training", page._error.value)


def test_recorded_steps_may_have_other_numbers_in_the_loop(recorded: tuple[Training, ts.record_steps]) -> None:
    training, steps = recorded
    assert 'data-live="4"' in training.page(steps={4: steps[1], 3: steps[0]})._page.content
    with raises(TypeError, "steps", "int", 1, "ts.record_steps"):
        training.page(steps={1: 5})
    with raises(TypeError, "loss_of"):
        training.page(lambda: None)
