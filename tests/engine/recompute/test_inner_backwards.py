"""Losses that differentiate in their forward: what that backward reads is there again afterwards, so it is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.tests.says import Snapshots, raises

Step = tuple[nn.Module, Callable[[], Tensor]]


def wgan_gp() -> Step:
    """The critic's loss with a gradient penalty (Gulrajani et al., 2017)."""
    wide = [nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()]
    critic = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), *wide, nn.Linear(128, 1))
    real, fake, between = torch.randn(256, 32), torch.randn(256, 32), torch.rand(256, 1)

    def make_loss() -> Tensor:
        mixed = (between * real + (1 - between) * fake).requires_grad_()
        (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        return critic(fake).mean() - critic(real).mean() + 10 * (gradient.norm(2, 1) - 1).square().mean()

    return critic, make_loss


def maml() -> Step:
    """Three steps of the inner loop, all differentiated (Finn et al., 2017)."""
    weights = nn.ParameterList([0.1 * torch.randn(64, 128), 0.1 * torch.randn(128, 128), 0.1 * torch.randn(128, 1)])
    x, y = torch.randn(256, 64), torch.randn(256, 1)

    def loss_of(weights: list[Tensor]) -> Tensor:
        first, second, last = weights
        return (((x @ first).tanh() @ second).tanh() @ last - y).square().mean()

    def make_loss() -> Tensor:
        fast = list(weights)
        for _ in range(3):
            gradients = torch.autograd.grad(loss_of(fast), fast, create_graph=True)
            fast = [weight - 0.1 * gradient for weight, gradient in zip(fast, gradients, strict=True)]
        return loss_of(fast)

    return weights, make_loss


@pytest.mark.parametrize("make", [wgan_gp, maml])
def test_the_recomputed_peak_is_predicted_to_the_byte(make: Callable[[], Step], snapshot: Snapshots) -> None:
    torch.manual_seed(0)
    model, make_loss = make()
    plan = ts.plan_recompute(make_loss, 0.5, seconds=0.5)
    reasons = {each.obstacle for each in plan.program.saved if each.obstacle is not None}
    snapshot("plan_recompute", "\n".join(sorted(reasons)))
    model.zero_grad(set_to_none=True)

    def recomputed() -> Tensor:
        with ts.recompute(plan):
            return make_loss()

    assert ts.profile(recomputed).peak_bytes == plan.peak_bytes
    assert bool(plan.dropped) is (make is wgan_gp), "in MAML the inner loop reads all but little"


def test_a_graph_mostly_made_by_an_inner_backward_is_not_taken_for_one_of_another_thread() -> None:
    w = torch.randn(4, requires_grad=True)

    def make_loss() -> Tensor:
        (slope,) = torch.autograd.grad(w.sin().prod(), w, create_graph=True)
        (product,) = torch.autograd.grad(slope.sum(), w, create_graph=True)
        return product.square().sum()

    with raises(ValueError, "prod()"):
        ts.plan_recompute(make_loss, 0.5, progress=False)
