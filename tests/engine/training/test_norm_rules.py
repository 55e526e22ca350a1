"""Findings from norms: the origin of NaN, exploding and vanishing gradients, jumps of a rate; none for healthy
loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

import tapescope as ts
from tapescope.tests.says import Snapshots, says

pytestmark = pytest.mark.filterwarnings("ignore")


class Chain(nn.Module):
    """Linear layers, one of which may be disturbed: `spoil` is called with the input of the second."""

    def __init__(self, spoil: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.spoil = spoil

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(self.spoil(torch.tanh(self.first(x))))))


def train(
    model: nn.Module,
    steps: int,
    optimizer: torch.optim.Optimizer | None = None,
    each: Callable[[int, torch.optim.Optimizer], None] = lambda step, optimizer: None,
    batch: Callable[[int, Tensor], Tensor] = lambda step, x: x,
) -> ts.types.Training:
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    with ts.training(model, optimizer) as training:
        for step in range(steps):
            x = torch.randn(16, 6, generator=generator)
            each(step, optimizer)
            optimizer.zero_grad()
            functional.mse_loss(model(batch(step, x)), x.sum(1, keepdim=True)).backward()
            optimizer.step()
    return training


def norm_findings(training: ts.types.Training) -> list[ts.types.Finding]:
    assert not training.notes
    return [each for each in training.findings if each.kind in ("norm", "non-finite", "learning rate")]


def test_nan_is_told_with_its_first_module_in_the_backward_and_its_first_step(snapshot: Snapshots) -> None:
    now = [0]

    def spoil(x: Tensor) -> Tensor:
        return x + (x * 0).sqrt() if now[0] == 12 else x  # its gradient is 0 × inf

    def each(step: int, optimizer: torch.optim.Optimizer) -> None:
        now[0] = step

    [found] = norm_findings(train(Chain(spoil), 20, each=each))
    assert (found.kind, found.step, found.module, found.last_step) == ("non-finite", 12, "first", 19)
    says(found, "first", "NaN", "ts.find_nan(make_loss)")
    snapshot("training", found)


def test_what_a_gradient_scaler_leaves_out_is_its_own_affair() -> None:
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model.last.weight.register_hook(lambda gradient: gradient * (float("inf") if training.steps < 5 else 1))
    with ts.training(model, optimizer) as training:
        for _ in range(20):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(4, 6)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert training.norms.skipped.any() and not norm_findings(training)


def test_a_rate_that_jumps_is_told_where_the_loss_rises(snapshot: Snapshots) -> None:
    def each(step: int, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 1.0 if 33 <= step < 37 else 1e-3

    model = nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 1))
    training = train(model, 60, torch.optim.SGD(model.parameters(), lr=1e-3), each)
    [found] = [finding for finding in norm_findings(training) if finding.kind == "learning rate"]
    assert found.step == 33
    says(found, "1,000 times", 0.001, 1, "2 modules")
    snapshot("training", found)


def test_an_explosion_is_told_with_the_module_that_grew_most() -> None:
    scale = [1.0]

    def each(step: int, optimizer: torch.optim.Optimizer) -> None:
        scale[0] = 1e4 if step >= 42 else 1.0

    model = Chain()
    model.second.weight.register_hook(lambda gradient: gradient * scale[0])
    [found] = norm_findings(train(model, 60, torch.optim.SGD(model.parameters(), lr=0.0), each))
    assert (found.kind, found.step, found.module) == ("norm", 42, "second")
    assert "exploded" in str(found)


def test_a_module_that_learns_no_more_is_told(snapshot: Snapshots) -> None:
    dead = [False]

    def each(step: int, optimizer: torch.optim.Optimizer) -> None:
        dead[0] = step >= 60

    model = Chain(lambda x: x.detach() + 0 * x if dead[0] else x)
    [found] = norm_findings(train(model, 100, each=each))
    assert (found.kind, found.module) == ("norm", "first")
    assert found.step >= 60
    says(found, "first", 0)
    snapshot("training", found)


def outlier(step: int, x: Tensor) -> Tensor:
    return 50 * x if step % 37 == 36 else x


SCHEDULES = {
    "none": lambda optimizer: None,
    "linear warm-up from 0": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 30)),
    "constant warm-up": lambda optimizer: lr_scheduler.ConstantLR(optimizer, 0.1, 40),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 25),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=121),
    "steps": lambda optimizer: lr_scheduler.StepLR(optimizer, 30),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("batch", [lambda step, x: x, outlier], ids=["plain", "outliers"])
def test_healthy_loops_have_no_findings(schedule: str, batch: Callable[[int, Tensor], Tensor]) -> None:
    model = Chain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = SCHEDULES[schedule](optimizer)

    def each(step: int, optimizer: torch.optim.Optimizer) -> None:
        if scheduler is not None and step:
            scheduler.step()

    assert not norm_findings(train(model, 120, optimizer, each, batch))


def test_a_loop_that_has_learnt_all_there_is_has_no_findings() -> None:
    model = nn.Sequential(nn.Linear(6, 1))

    def each(step: int, optimizer: torch.optim.Optimizer) -> None:
        if step == 250:  # a batch that does not fit
            with torch.no_grad():
                model[0].weight += 0.01

    assert not norm_findings(train(model, 300, torch.optim.SGD(model.parameters(), lr=0.2), each))


def test_a_healthy_gan_has_no_findings() -> None:
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
    judge = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    makes, judges = torch.optim.Adam(maker.parameters(), 1e-3), torch.optim.Adam(judge.parameters(), 1e-3)
    with ts.training([maker, judge]) as training:
        for _ in range(120):
            for _ in range(2):
                judges.zero_grad()
                fake = maker(torch.randn(16, 4)).detach()
                (functional.softplus(judge(fake)) + functional.softplus(-judge(torch.randn(16, 6)))).mean().backward()
                judges.step()
            makes.zero_grad()
            functional.softplus(-judge(maker(torch.randn(16, 4)))).mean().backward()
            makes.step()
    assert not norm_findings(training)
