"""The ledger of parameters changes nothing: neither bits, nor torch's functions, nor warnings."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from itertools import starmap
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer

import tapescope as ts
from tapescope.inspector.torch_private.gradient_calls import watching_zero_grad

pytestmark = pytest.mark.filterwarnings("ignore:ts.training")


class Adapter(nn.Module):
    """Both factors are zero, so that a forward is captured and its backward followed."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.norm = nn.Linear(8, 8), nn.LayerNorm(8, dtype=torch.bfloat16)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(self.base(x) + self.up(self.down(x)), 0.2)
        return self.norm(hidden.bfloat16()).float()


def trained(around: Callable[[nn.Module, Optimizer], object]) -> tuple[list[Tensor], Tensor]:
    """Train and return all parameters and the random state."""
    torch.manual_seed(0)
    model = Adapter()
    optimizer = AdamW(model.parameters(), 1e-4, weight_decay=0.0)

    def train() -> None:
        for _ in range(25):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    watch = around(model, optimizer)
    if isinstance(watch, ts.types.Training):
        with watch:
            train()
        assert {each.kind for each in watch.findings} == {"zero gradient", "not moved"}, "all of the ledger has run"
        assert not watch.notes
    else:
        train()
    return [each.detach().clone() for each in model.parameters()], torch.get_rng_state()


def test_a_loop_whose_parameters_are_looked_at_trains_to_the_same_bits() -> None:
    (plain, state), (found, found_state) = trained(lambda *_: None), trained(ts.training)
    assert all(starmap(torch.equal, zip(plain, found, strict=True)))
    assert torch.equal(state, found_state)


def test_zero_grad_keeps_its_signature_while_it_is_watched_and_its_code_afterwards() -> None:
    functions = [inspect.unwrap(each) for each in (Optimizer.zero_grad, nn.Module.zero_grad, clip_grad_norm_)]
    codes = [each.__code__ for each in functions]
    seen: list[object] = []
    model = nn.Linear(2, 1)
    optimizer = AdamW(model.parameters())
    with watching_zero_grad(seen.append):
        assert "set_to_none" in inspect.signature(optimizer.zero_grad).parameters, "Accelerate asks for it"
        with watching_zero_grad(seen.append):
            optimizer.zero_grad()
        model.zero_grad(set_to_none=False)
    optimizer.zero_grad()
    assert [type(each) for each in seen] == [AdamW, AdamW, nn.Linear]
    assert [each.__code__ for each in functions] == codes


def test_torchs_warning_of_an_empty_generator_stands_at_the_users_line() -> None:
    model = nn.Linear(2, 1)
    used_up = (each for each in ())
    with ts.training(model), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        clip_grad_norm_(used_up, 1.0)
    (warned,) = [each for each in found if "generator" in str(each.message)]
    assert Path(warned.filename) == Path(__file__)
