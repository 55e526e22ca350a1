"""The policy "auto": it saves memory where that is certain, and says why it keeps PyTorch's own order elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.planning import auto_policy as auto
from tapescope.engine.planning import scheduling_problem as problem_module
from tapescope.engine.planning.order_cache import forget_orders
from tapescope.engine.planning.policies import PORTFOLIO, find_policy
from tapescope.engine.planning.policy_orders import order_of, planned_order
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots, says

from ..graph_shapes import SHAPES, chain


@pytest.fixture(autouse=True)
def _nothing_is_known() -> None:
    forget_orders()


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.exp()


def branches(through: Callable[[nn.Module, Tensor], Tensor]) -> tuple[list[Tensor], Tensor]:
    """Towers of different widths over one input, each run through something; the leaves, and the loss."""
    torch.manual_seed(0)
    towers = [nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 16)) for width in (256, 16, 128)]
    x = torch.randn(32, 16, requires_grad=True)
    total = torch.stack([through(tower, x).square().sum() for tower in towers]).sum()
    return [x, *(leaf for tower in towers for leaf in tower.parameters())], total


def reentrant(module: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(module, x, use_reentrant=True)


def non_reentrant(module: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(module, x, use_reentrant=False)


def hooked(module: nn.Module, x: Tensor) -> Tensor:
    made = module(x)
    made.register_hook(lambda gradient: gradient.clone())
    return made


def of_the_users(module: nn.Module, x: Tensor) -> Tensor:
    return Exp.apply(module(x))


UNSURE = {
    non_reentrant: "saved_tensors_hooks",
    reentrant: "reentrant",
    hooked: "hooks",
    of_the_users: "Functions",
}


@pytest.mark.parametrize("through", UNSURE)
def test_where_memory_is_not_known_pytorchs_order_is_kept_and_the_run_says_why(
    through: Any, snapshot: Snapshots
) -> None:
    (expected, plain), (found, loss) = (branches(through) for _ in range(2))
    plain.backward()
    run = ts.backward(loss, policy="auto")
    assert run.policy == "auto: heap"
    says(run.note, UNSURE[through])
    snapshot("backward", run.note)
    assert run.note in repr(run)
    assert list(run.order) == schedule(run.graph, "heap")
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)


@pytest.mark.parametrize("through", [non_reentrant, reentrant])
def test_a_checkpointed_backward_has_the_measured_peak_of_pytorchs(through: Any) -> None:
    own, found = (ts.profile(lambda: branches(through)[1], policy) for policy in ("heap", "auto"))
    assert found.peak_bytes == own.peak_bytes and found.policy == "auto: heap"


@pytest.mark.parametrize(("name", "share"), [("din", 0.9), ("mixture_of_experts", 0.95)])
def test_where_it_is_certain_the_measured_peak_is_lower(name: str, share: float) -> None:
    _, make_loss = workload(name).build()
    with mock.patch.object(auto, "no_hooks", return_value=True):  # whatever other tests have left in the process
        found = ts.compare(make_loss, ["heap", "auto"], repetitions=1)
    assert found["auto"].peak_bytes <= share * found["heap"].peak_bytes


def test_a_saved_run_says_whose_order_it_took_and_why(tmp_path: Path) -> None:
    kept = ts.backward(branches(non_reentrant)[1], policy="auto")
    with mock.patch.object(auto, "_unsure", return_value=""):
        _, make_loss = workload("mixture_of_experts").build()
        left = ts.backward(make_loss(), policy="auto")
    assert left.policy not in ("auto", "auto: heap") and not left.note
    for run in (kept, left):
        loaded = ts.load(run.save(tmp_path / "run.json"))
        assert (loaded.policy, loaded.note) == (run.policy, run.note)
        assert repr(loaded) == repr(run)


@pytest.mark.parametrize("through", [reentrant, non_reentrant, hooked], ids=lambda through: through.__name__)
def test_after_a_measured_run_it_takes_no_order_that_is_an_estimate(through: Any) -> None:
    run = ts.profile(lambda: branches(through)[1])
    assert run.footprints is not None and run.timeline is not None
    plan = ts.plan_order(run.graph, "auto", footprints=run.footprints)
    assert not run.footprints.limits or list(plan.order) == schedule(run.graph, "heap")
    measured = ts.profile(lambda: branches(through)[1], plan.policy).timeline
    assert measured is not None
    assert measured.peak_bytes == plan.best.peak_bytes <= run.timeline.peak_bytes


@pytest.mark.parametrize("tasks", [200, 2_200])
@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_the_shape_no_policy_that_it_asks_is_better_by_more_than_what_is_worth_it(
    shape: str, tasks: int
) -> None:
    problem = Problem(ts.graph(SHAPES[shape](tasks)))
    with mock.patch.object(auto, "no_hooks", return_value=True):  # whatever other tests have left in the process
        order = order_of(find_policy("auto"), problem)
    own, *others = (planned_order(problem, find_policy(name)).peak_bytes for name in PORTFOLIO)
    found = problem.peak_bytes(order)
    assert found <= own
    assert found == min(others) or (found == own and min(others) >= 0.99 * own)


def test_of_a_graph_with_one_order_nothing_is_asked() -> None:
    with mock.patch.object(problem_module, "dry_run", side_effect=AssertionError):
        run = ts.backward(chain(200), policy="auto")
    assert (run.policy, run.note, list(run.order)) == ("auto: heap", "", schedule(run.graph, "heap"))
