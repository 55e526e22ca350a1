"""The live page of a training loop: a kept step is opened as a deck in the page's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapehead as th

pytestmark = pytest.mark.filterwarnings("ignore:th.training")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = model(*batch).sum() * float("nan")
    return loss


def test_a_kept_step_opens_in_the_pages_place_and_goes_again(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with th.training(model, optimizer, black_box=tmp_path) as training:
        for number in range(3):
            optimizer.zero_grad()
            (model(torch.ones(2, 4)).sum() * (float("nan") if number == 1 else 1)).backward()
            optimizer.step()
    page = training.page(make_model, loss_of)
    (shown,) = page.children
    page.open_step(1)
    assert page.deck is not None and page.children[-1] is page.deck and page.deck.position == 0
    assert shown.layout.display == "none", "it keeps what is chosen in it"
    page.deck.run()
    deck = page.deck
    page.close_deck()
    assert page.children == (shown,) and deck.status == "closed" and shown.layout.display == ""
    page.open_step(2)
    assert page.deck is None and "step 2 is not kept; kept: 1" in page.children[0].value
    with pytest.raises(TypeError, match="make_model"):
        training.page(3, loss_of)
