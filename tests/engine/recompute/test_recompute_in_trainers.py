"""Plans made where a trainer calls the model: `ts.recompute`."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tapescope as ts
from tapescope.tests.says import Snapshots, raises

from .test_plan_recompute import Block

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]


class Trainer:
    """Calls a model as transformers' Trainer does: with its own calls, and with batches from which it removes the
    labels."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.calls = 0

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False) -> Any:
        self.calls += 1
        labels = inputs.pop("labels")
        out = model(inputs["x"].contiguous() + 0.0)
        loss = functional.mse_loss(out.float(), labels, reduction="sum") / labels.numel()
        return (loss, {"logits": out}) if return_outputs else loss

    def step(self, inputs: Any, **kwargs: Any) -> tuple[list[Tensor], Any]:
        self.model.zero_grad()
        torch.manual_seed(1)
        made = self.compute_loss(self.model, inputs, **kwargs)
        (made[0] if isinstance(made, tuple) else made).backward()
        return [each.grad.clone() for each in self.model.parameters() if each.grad is not None], made


class RecomputedTrainer(Trainer):
    recomputed = ts.recompute(budget=0.8, seconds=0.2)

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.recomputed = ts.recompute(budget=0.8, seconds=0.2)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return self.recomputed(super().compute_loss, *args, **kwargs)


def batch(size: int = 4) -> dict[str, Tensor]:
    return {"x": torch.randn(size, 48, 32), "labels": torch.randn(size, 48, 32)}


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_trainers_steps_are_recomputed_and_their_gradients_are_the_same(kind: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    plain, trainer = Trainer(model), RecomputedTrainer(model)
    for size in (4, 4, 2):
        inputs = batch(size)
        expected, _ = plain.step(kind(inputs))
        found, _ = trainer.step(kind(inputs))
        assert all(map(torch.equal, found, expected))
        report = trainer.recomputed.report
        assert report.dropped > 0 and report.replayed >= report.dropped and not report.notes
    assert (plan := trainer.recomputed.plan) is not None and plan.peak_bytes < plan.plain_peak_bytes


def test_the_plan_is_made_once_and_not_in_an_evaluation(snapshot: Snapshots) -> None:
    trainer = RecomputedTrainer(nn.Sequential(Block(), Block()))
    with torch.no_grad():
        trainer.compute_loss(trainer.model, batch())
    assert trainer.calls == 1 and trainer.recomputed.plan is None and not trainer.recomputed.report.forwards
    snapshot("recompute", repr(trainer.recomputed))
    trainer.step(batch())
    plan = trainer.recomputed.plan
    assert plan is not None and trainer.calls == 2  # those of planning are put back
    trainer.step(batch())
    assert trainer.calls == 3 and trainer.recomputed.plan is plan


def test_the_loss_is_found_in_what_trainers_give() -> None:
    trainer = RecomputedTrainer(nn.Sequential(Block(), Block()))
    _, made = trainer.step(batch(), return_outputs=True)
    assert isinstance(made, tuple) and trainer.recomputed.plan is not None
    model, x = Block(), torch.randn(2, 48, 32)
    recomputed = ts.recompute(budget=0.9, seconds=0.1)
    made = recomputed(lambda: {"loss": model(x).sum(), "logs": 1})  # as Lightning's training_step may
    assert made["loss"].requires_grad and recomputed.plan is not None
    with raises(TypeError, "make_loss()", None):
        ts.recompute(budget=0.9)(lambda: {"logs": model(x).sum()})


def test_a_plan_made_elsewhere_is_refused_with_what_to_do() -> None:
    model = nn.Sequential(Block(), Block())
    inputs = batch()
    plan = ts.plan_recompute(
        lambda: functional.mse_loss(model(inputs["x"]), inputs["labels"]), 0.8, seconds=0.1, repetitions=1
    )
    with (
        raises(ValueError, "operation 0", "ts.recompute(budget=...)"),
        ts.recompute(plan),
    ):
        Trainer(model).compute_loss(model, dict(inputs))


def test_bad_arguments_are_refused_at_once(snapshot: Snapshots) -> None:
    with raises(ValueError, "budget", "'much'"):
        ts.recompute(budget="much")
    with raises(TypeError, "model", "dict"):
        ts.recompute(budget=0.5, model={})  # type: ignore[arg-type]
    with raises(TypeError, "function", "Tensor", "super().compute_loss") as raised:
        ts.recompute(budget=0.5)(torch.ones(()))  # type: ignore[arg-type]
    snapshot("recompute", raised.value)


class Masked(nn.Module):
    """Makes a mask at its first call, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.mask: Tensor | None = None
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.mask is None:
            self.mask = torch.ones(64, 64).tril()
        for layer in self.layers:
            x = (layer(x) @ self.mask).tanh().exp().sin()
        return x.square().mean()


def test_what_the_first_forward_makes_and_keeps_is_in_no_step_of_the_plan() -> None:
    torch.manual_seed(0)
    model, x = Masked(), torch.randn(256, 64)
    forward = ts.recompute(budget=0.7, seconds=0.3)
    for step in range(1, 4):
        forward(lambda: model(x)).backward()
        assert model.calls == step
        assert forward.report.dropped > 0 and not forward.report.notes


def test_it_takes_a_plan_or_what_to_make_one_from_and_a_block_needs_a_plan(snapshot: Snapshots) -> None:
    model, x = nn.Sequential(Block(), Block()), torch.randn(4, 48, 32)
    plan = ts.plan_recompute(lambda: model(x).sum(), 0.9, seconds=0.1, repetitions=1)
    with raises(ValueError, "budget", "seconds", "ts.plan_recompute") as both:
        ts.recompute(plan, budget=0.5, seconds=1.0)
    with raises(TypeError, "float", "ts.recompute(budget=0.5)"):
        ts.recompute(0.5)  # type: ignore[arg-type]
    with raises(RuntimeError, "ts.recompute(ts.plan_recompute(make_loss, budget))") as none, ts.recompute(budget=0.5):
        raise AssertionError("never entered")
    snapshot("recompute", both.value)
    snapshot("recompute", none.value)
    by_plan = ts.recompute(plan)
    by_plan(lambda: model(x).sum()).backward()
    assert by_plan.report.forwards == 1 and by_plan.plan is plan
