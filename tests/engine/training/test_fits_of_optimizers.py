"""Predictions of steps with every optimizer, compared with the allocator's events."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import tapescope as ts
from tapescope.engine.memory.estimates import direction_of
from tapescope.tests.says import raises, says

from .package_optimizers import Lamb, Lion, ScheduleFree, Shampoo
from .small_models import MODELS, cross_entropy, measured, pairs

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]

_OTHERS = {"LBFGS", "SparseAdam", "Muon"}  # refused, for sparse gradients, and for matrices


def of_torch() -> Iterator[tuple[type[Optimizer], dict[str, bool]]]:
    """Each of torch's optimizers with each implementation."""
    for name, kind in sorted(vars(torch.optim).items()):
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer and name not in _OTHERS:
            known = inspect.signature(kind).parameters
            yield kind, {}
            yield from ((kind, {way: True}) for way in ("foreach", "fused") if way in known)


def expect_as_measured(make_model: Any, make_optimizer: Any, make_batch: Any = pairs) -> ts.types.Fit:
    fit = ts.fits(make_model, make_batch, make_optimizer, "1GiB", cross_entropy)
    wanted = measured(make_model, make_batch, make_optimizer, cross_entropy)
    assert {each.phase: each.nbytes for each in fit.phases} == wanted
    return fit


@pytest.mark.parametrize(("kind", "options"), list(of_torch()))
def test_each_optimizer_of_torch_takes_what_was_measured(kind: type[Optimizer], options: dict[str, bool]) -> None:
    fit = expect_as_measured(MODELS["perceptron"][0], lambda parameters: kind(parameters, **options))
    assert len(fit.estimates) == (kind.__name__ == "Adafactor"), "which reads norms"


def matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 256, bias=False), nn.ReLU(), nn.Linear(256, 8, bias=False))


def test_muon_takes_what_was_measured() -> None:
    assert expect_as_measured(matrices, torch.optim.Muon).estimates == ()


@pytest.mark.parametrize("kind", [Lion, ScheduleFree])
def test_optimizers_of_packages_take_what_was_measured(kind: type[Optimizer]) -> None:
    assert expect_as_measured(MODELS["perceptron"][0], kind).estimates == ()


def adafactor(parameters: list[nn.Parameter]) -> Optimizer:
    found = pytest.importorskip("transformers.optimization").Adafactor
    made: Optimizer = found(parameters)
    return made


@pytest.mark.parametrize("make_optimizer", [Lamb, adafactor])
def test_values_that_an_optimizer_reads_are_assumed(make_optimizer: Any) -> None:
    make_model = MODELS["perceptron"][0]
    fit = ts.fits(make_model, pairs, make_optimizer, "1GiB", cross_entropy)
    wanted = measured(make_model, pairs, make_optimizer, cross_entropy)
    assert {each.phase: each.nbytes for each in fit.phases} == pytest.approx(wanted, rel=1e-4)
    (estimate,) = fit.estimates
    says(fit, estimate)
    says(estimate, "Lamb" if make_optimizer is Lamb else "Adafactor", ".item()", 1)


def test_a_kernel_that_is_not_run_alone_makes_the_step_an_estimate() -> None:
    fit = ts.fits(matrices, pairs, Shampoo, "1GiB", cross_entropy)
    wanted = measured(matrices, pairs, Shampoo, cross_entropy)
    (estimate,) = fit.estimates
    says(estimate, "_linalg_eigh")
    assert direction_of(fit.estimates) == "at least" and fit.peak_bytes <= max(wanted.values())
    assert fit.peak_bytes == pytest.approx(max(wanted.values()), rel=0.3)


def test_a_value_outside_of_the_optimizer_is_not_assumed() -> None:
    def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = cross_entropy(model, batch)
        return loss * loss.item()

    with raises(NotImplementedError, ".item()"):
        ts.fits(MODELS["perceptron"][0], pairs, torch.optim.Adafactor, "1GiB", loss_of)


class Sized(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        ranks = [each.grad.abs().argmax() for each in self.param_groups[0]["params"]]
        torch.empty(max(int(rank) for rank in ranks))
        super().step()


def test_an_integer_on_which_a_shape_may_depend_is_not_assumed() -> None:
    with raises(NotImplementedError, ".item()"):
        ts.fits(MODELS["perceptron"][0], pairs, lambda parameters: Sized(parameters, 0.1), "1GiB", cross_entropy)
