"""A `with ts.recompute(plan)` that is forgotten, and `ts.policy`."""

from __future__ import annotations

import gc

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import tapescope as ts

from ..recomputed_programs import plan_all


def test_a_recompute_context_that_is_forgotten_takes_its_modes_away_and_nothing_is_dropped() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8)) for _ in range(3)))
    x = torch.randn(512, 8)

    def make_loss() -> Tensor:
        return model(x).square().mean()

    plan = plan_all(make_loss)
    assert plan.dropped, "the plan is to do something"
    modes = _get_current_function_mode_stack(), _get_current_dispatch_mode_stack()
    forgotten = ts.recompute(plan)
    forgotten.__enter__()
    assert modes != (_get_current_function_mode_stack(), _get_current_dispatch_mode_stack())
    del forgotten
    gc.collect()
    assert modes == (_get_current_function_mode_stack(), _get_current_dispatch_mode_stack())
    make_loss().backward()


def test_a_policy_that_is_forgotten_is_no_longer_in_force() -> None:
    backward = torch.autograd.backward
    forgotten = ts.policy("bfs")
    forgotten.__enter__()
    del forgotten
    gc.collect()
    torch.ones(1, requires_grad=True).sum().backward()
    assert torch.autograd.backward is backward
