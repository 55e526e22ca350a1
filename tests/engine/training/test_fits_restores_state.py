"""`ts.fits` leaves what its functions lead to as it was: no fake tensor stays anywhere."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

import tapescope as ts
from tapescope.tests.says import Snapshots, raises


class Keeps(nn.Module):
    """Changes its attributes and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.memory: Tensor | None = None
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.memory = self.norm(self.first(x))
        y: Tensor = self.last(self.memory)
        return y


def batch(size: int = 3) -> Tensor:
    return torch.randn(size, 4)


def adam(parameters: list[nn.Parameter]) -> Adam:
    return Adam(parameters, 1e-3)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def state_of(model: Keeps, *more: Tensor) -> list[Any]:
    tensors = [*model.parameters(), *model.buffers(), *more]
    return [
        [(id(each.grad), each.requires_grad, each._version, each.detach().clone().tolist()) for each in tensors],
        {name: id(value) for name, value in vars(model).items()},
        [each.training for each in model.modules()],
    ]


def real_with_gradients() -> Keeps:
    model = Keeps()
    loss_of(model, batch()).backward()
    model.last.bias.grad = None
    model.memory, model.first.weight.seen = None, True  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("wrap", [lambda model: model, nn.Sequential, lambda model: nn.Sequential(model, nn.Tanh())])
def test_a_model_that_a_function_returns_is_copied_as_one_that_is_given(wrap: Callable[[Any], nn.Module]) -> None:
    model = real_with_gradients()
    before = state_of(model)
    found = ts.fits(lambda: wrap(model), batch, adam, "1GB", loss_of)
    assert state_of(model) == before
    assert found.phases == ts.fits(lambda: wrap(Keeps()), batch, adam, "1GB", loss_of).phases
    assert found.largest_batch is None or found.largest_batch > 0
    tuple(found.remedies)  # are tried on fakes, too
    assert state_of(model) == before
    loss_of(model, batch()).backward()
    adam(list(model.parameters())).step()
    assert all(type(each.grad) is Tensor for each in model.parameters())


def test_what_the_functions_refer_to_is_left_as_it_was() -> None:
    teacher, weight, x = real_with_gradients(), torch.ones(1, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    count, kept = torch.zeros(1), {"outputs": [], "model": None, "optimizer": None}
    before = state_of(teacher, weight, x, count)

    def make_model() -> nn.Module:
        kept["model"] = Keeps()  # type: ignore[assignment]
        return kept["model"]  # type: ignore[return-value]

    def make_optimizer(parameters: list[nn.Parameter]) -> Adam:
        kept["optimizer"] = adam(parameters)  # type: ignore[assignment]
        return kept["optimizer"]  # type: ignore[return-value]

    def distilled(model: nn.Module, given: Tensor) -> Tensor:
        count.add_(1)
        kept["outputs"].append(model(given))  # type: ignore[attr-defined]
        loss: Tensor = ((model(given) - teacher(given)) * weight).square().mean()
        return loss

    found = ts.fits(make_model, lambda: x, make_optimizer, "1GB", distilled)
    tuple(found.remedies)
    assert state_of(teacher, weight, x, count) == before
    assert kept == {"outputs": [], "model": None, "optimizer": None}


@pytest.mark.parametrize("given", ["a model", "a function"])
def test_functions_that_use_a_real_model_in_place_of_what_they_are_given_are_refused(
    given: str, snapshot: Snapshots
) -> None:
    model = real_with_gradients()
    before = state_of(model)
    make_model = model if given == "a model" else Keeps
    with raises(ValueError, "make_optimizer", "6 parameters") as raised:
        ts.fits(make_model, batch, lambda parameters: adam(list(model.parameters())), "1GB", loss_of)
    if given == "a model":
        snapshot("fits", raised.value)
    with raises(ValueError, "loss_of(model, batch)", "`model`") as raised:
        ts.fits(make_model, batch, adam, "1GB", lambda fake, x: loss_of(model, x))
    if given == "a model":
        snapshot("fits", raised.value)
    assert state_of(model) == before


def test_a_program_that_cannot_run_on_fakes_leaves_nothing_either() -> None:
    model = real_with_gradients()
    before = state_of(model)
    with raises(NotImplementedError, ".item()"):
        ts.fits(lambda: model, batch, adam, "1GB", lambda fake, x: loss_of(fake, x) * fake(x).sum().item())
    assert state_of(model) == before


def test_a_retained_graph_of_the_models_can_still_be_run() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    loss = loss_of(model, batch())
    ts.fits(lambda: model, batch, adam, "1GB", loss_of)
    loss.backward()  # raises where a parameter was modified in the meantime
    assert all(each.grad is not None for each in model.parameters())


def test_one_look_at_all_objects_of_the_process_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, real = [], gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: looks.append(None) or real())
    ts.fits(nn.Linear(4, 1), batch, adam, "1GB", loss_of)
    assert len(looks) == 1
