"""Recompute plans made on fake tensors equal those of the real model, without its memory; their times are estimates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import tapescope as ts
from tapescope.engine.memory import kernel_workspaces as kernel_runs
from tapescope.engine.memory import operator_times
from tapescope.tests.says import Snapshots, raises, says

from .test_plan_recompute import Block

MakeLoss = Callable[[], Tensor]
Made = tuple[nn.Module, Tensor]

pytestmark = pytest.mark.usefixtures("one_thread")


def perceptron() -> Made:
    layers = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
    return nn.Sequential(*layers), torch.randn(256, 64)


def convolutions() -> Made:
    layers: list[nn.Module] = []
    for channels in (3, 8, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers), torch.randn(4, 3, 32, 32)


def blocks() -> Made:
    return nn.Sequential(*[Block() for _ in range(3)]), torch.randn(4, 48, 32)


def loss_of(made: Made) -> MakeLoss:
    model, x = made
    return lambda: model(x).pow(2).mean()


def fake(make: Callable[[], Made]) -> MakeLoss:
    with FakeTensorMode():
        return loss_of(make())


@pytest.mark.parametrize("make", [perceptron, convolutions, blocks])
def test_a_plan_made_on_fake_tensors_recomputes_the_real_model(make: Callable[[], Made]) -> None:
    plan = ts.plan_recompute(fake(make), 0.7, seconds=0.5)
    assert plan.dropped

    made = make()
    make_loss = loss_of(made)
    assert plan.fits(ts.record_forward(make_loss, 1))
    leaves = list(made[0].parameters())
    buffers = [each.clone() for each in made[0].buffers()]

    def step(recomputed: bool) -> list[Tensor]:
        torch.manual_seed(0)
        for buffer, before in zip(made[0].buffers(), buffers, strict=True):
            buffer.copy_(before)
        if recomputed:
            with ts.recompute(plan) as context:
                loss = make_loss()
            assert not context.report.banned
        else:
            loss = make_loss()
        return [*torch.autograd.grad(loss, leaves), *(each.clone() for each in made[0].buffers())]

    assert all(map(torch.equal, step(False), step(True)))

    def recomputed() -> Tensor:
        with ts.recompute(plan):
            return make_loss()

    real = ts.plan_recompute(make_loss, 0.7, seconds=0.1)
    assert ts.profile(make_loss).peak_bytes == plan.plain_peak_bytes == real.plain_peak_bytes
    assert real.memory.levels_if_dropped(plan.dropped).peak_bytes == plan.peak_bytes < plan.plain_peak_bytes
    made[0].zero_grad()  # the measurement above has filled .grad, and what is there before a backward counts to no peak
    assert ts.profile(recomputed).peak_bytes == pytest.approx(plan.peak_bytes, rel=1e-3)


def test_its_times_are_called_estimates_wherever_they_stand(snapshot: Snapshots) -> None:
    plan = ts.plan_recompute(fake(perceptron), 0.7, seconds=0.2)
    says("; ".join(plan.estimates), "ts.recompute")
    snapshot("plan_recompute", "\n".join(plan.estimates))
    frontier = plan.explore(0.5)
    for said in (str(plan), plan._repr_html_(), str(frontier)):
        assert all(each in said for each in plan.estimates)
    assert plan.predicted is not None and plan.predicted.plain_seconds > 0
    assert ts.plan_recompute(loss_of(perceptron()), 0.7, seconds=0.2).estimates == ()


def test_the_mode_may_be_open_and_nothing_is_left_behind() -> None:
    with FakeTensorMode():
        model, x = perceptron()
        before = torch.random.get_rng_state()
        plan = ts.plan_recompute(lambda: model(x + torch.zeros(64)).pow(2).mean(), 0.7, seconds=0.2)
    assert plan.met
    assert all(each.grad is None for each in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), torch.default_generator.get_state()), before


def test_what_can_not_be_run_alone_is_kept_and_said(monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots) -> None:
    monkeypatch.setattr(operator_times, "_ALONE", operator_times._ALONE - {"native_layer_norm"})
    plan = ts.plan_recompute(fake(perceptron), 0.5, seconds=0.2)
    norms = [each for each in plan.storages if each.operation == "aten.native_layer_norm.default"]
    assert norms and not any(each.is_dropped for each in norms)
    assert any("native_layer_norm ×4" in each for each in plan.estimates)
    assert "not recomputable" in {each.because for each in plan.why("0.0")}
    says(plan.why("0.0"), "aten.native_layer_norm.default")
    snapshot("plan_recompute", plan.why("0.0"))


def test_what_does_not_fit_into_memory_is_not_run(monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots) -> None:
    monkeypatch.setattr(kernel_runs, "MOST_BYTES", 100)
    plan = ts.plan_recompute(fake(perceptron), 0.5, seconds=0.2)
    assert not plan.dropped
    snapshot("plan_recompute", plan.estimates[-1])


def test_other_operators_are_timed_once_for_all_equal_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    taken = operator_times._taken

    def counted(operator: object, *others: object) -> object:
        called.append(str(operator))
        return taken(operator, *others)

    monkeypatch.setattr(operator_times, "_taken", counted)
    ts.plan_recompute(fake(perceptron), 0.7, seconds=0.1)
    assert called.count("aten.gelu.default") == 1 and called.count("aten.addmm.default") == 2


def test_meta_tensors_are_refused(snapshot: Snapshots) -> None:
    with torch.device("meta"):
        make_loss = loss_of(perceptron())
    with raises(ValueError, "make_loss()", "meta") as raised:
        ts.plan_recompute(make_loss)
    snapshot("plan_recompute", raised.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch ends the process where it has no CUDA at all")
def test_fake_tensors_of_an_accelerator_are_refused() -> None:
    with FakeTensorMode():
        weight = torch.empty(4, 4, device="cuda", requires_grad=True)
    with raises(NotImplementedError, "make_loss()", "cuda:0"):
        ts.plan_recompute(lambda: (weight * 2).sin().sum())


def test_workloads_are_built_without_memory() -> None:
    with FakeTensorMode():
        model, make_loss = ts.workload("resnet50").build(pixels=32)
    assert {type(each.data) for each in model.parameters()} == {FakeTensor}
    assert ts.simulate(ts.graph(make_loss())).peak_bytes > sum(each.nbytes for each in model.parameters())
