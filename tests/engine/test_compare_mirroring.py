"""Mirrored forwards beside plain ones in a comparison: measured, and as their plan predicts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tapehead as th

MODEL = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.GELU(), nn.Dropout(0.1)) for _ in range(3)])
X = torch.ones(64, 32)


def make_loss() -> Tensor:
    return MODEL(X).reshape(32, 64).pow(2).mean()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def plan() -> th.PlannedMirror:
    return th.plan_mirror(make_loss, 0.8, seconds=0.2, repetitions=1)


def test_each_policy_has_a_row_without_and_one_with_the_plan(plan: th.PlannedMirror) -> None:
    comparison = th.compare(make_loss, ["bfs", "heap"], mirroring=plan, repetitions=1)
    assert [row.policy for row in comparison.rows] == ["bfs", "bfs, mirrored", "heap", "heap, mirrored"]
    plain, mirrored = comparison["heap"], comparison["heap, mirrored"]
    assert plain.plan is None and plain.predicted_bytes == plain.peak_bytes == plan.plain_peak_bytes
    assert mirrored.plan is plan and mirrored.peak_bytes < plain.peak_bytes
    assert mirrored.predicted is plan.timeline and mirrored.calibrated_by == "th.plan_mirror"
    assert mirrored.predicted_bytes == pytest.approx(mirrored.peak_bytes, rel=0.01)
    assert "not what recording takes" in comparison.sentences[-1]
    assert "heap, mirrored" in comparison._repr_html_() and len(comparison.figure().data) == 8


def test_a_plan_predicts_only_the_order_and_the_rule_that_it_is_for(plan: th.PlannedMirror) -> None:
    comparison = th.compare(make_loss, "heap", mirroring=[plan], accumulate=("inplace", "list"), repetitions=1)
    assert [row.policy for row in comparison.rows] == ["heap, mirrored", "heap, list, mirrored"]
    assert comparison.rows[0].predicted is plan.timeline and comparison.rows[1].predicted is None


def test_several_plans_have_a_number_each(plan: th.PlannedMirror) -> None:
    plans = plan.explore(0.1).plans
    comparison = th.compare(make_loss, "heap", mirroring=[None, plans[0], plans[-1]], repetitions=1)
    assert [row.policy for row in comparison.rows] == ["heap", "heap, mirrored 1", "heap, mirrored 2"]
    assert comparison.rows[0].peak_bytes == comparison.rows[1].peak_bytes > comparison.rows[2].peak_bytes


def test_what_is_no_plan_or_for_another_forward_is_refused(plan: th.PlannedMirror) -> None:
    with pytest.raises(TypeError, match="mirroring is a plan, such as th.plan_mirror makes, or several, not 'plan'"):
        th.compare(make_loss, "heap", mirroring="plan")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mirroring= is empty"):
        th.compare(make_loss, "heap", mirroring=[])
    with pytest.raises(ValueError, match="a plan is there twice"):
        th.compare(make_loss, "heap", mirroring=[plan, plan])
    other = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match="the plan is for another forward"):
        th.compare(lambda: other.exp().sum(), "heap", mirroring=plan)
