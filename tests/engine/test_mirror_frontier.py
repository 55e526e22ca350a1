"""What other budgets would buy: plans that are ordered, can be run, and are as low as they say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tapehead as th

from .mirroring import gradients, same

MODEL = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32), nn.Tanh()) for _ in range(3)])
X = torch.ones(64, 32)


def make_loss() -> Tensor:
    return MODEL(X).pow(2).mean()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def plan() -> th.PlannedMirror:
    return th.plan_mirror(make_loss, 0.7, seconds=0.2, repetitions=1)


def test_each_plan_takes_longer_and_is_lower_than_the_one_before(plan: th.PlannedMirror) -> None:
    frontier = plan.explore(0.3)
    peaks = [each.peak_bytes for each in frontier.plans]
    seconds = [each.predicted.seconds for each in frontier.plans if each.predicted]
    assert len(peaks) > 2 and peaks == sorted(peaks, reverse=True) and seconds == sorted(seconds)
    assert not frontier.plans[0].dropped and peaks[0] == plan.plain_peak_bytes
    assert all(each.peak_bytes == max(each.predicted.levels) for each in frontier.plans if each.predicted)


def test_a_plan_of_another_budget_runs_with_the_same_gradients_and_no_higher_peak(plan: th.PlannedMirror) -> None:
    frontier = plan.explore(0.3)
    leaves = list(MODEL.parameters())
    without = gradients(make_loss, leaves)
    chosen = frontier.plans[-1]
    assert chosen.peak_bytes < plan.peak_bytes or chosen.dropped == plan.dropped
    for _ in range(2):
        assert same(gradients(make_loss, leaves, chosen), without)

    def mirrored() -> Tensor:
        with th.mirror(chosen):
            return make_loss()

    MODEL.zero_grad()  # what is added to gradients that are there would be freed at once
    timeline = th.profile(mirrored).timeline
    assert timeline is not None and abs(chosen.peak_bytes - timeline.peak_bytes) <= 0.005 * timeline.peak_bytes


def test_the_cheapest_within_a_budget_is_found_and_what_is_out_of_reach_is_said(plan: th.PlannedMirror) -> None:
    frontier = plan.explore(0.3)
    assert frontier.within(1.0) is frontier.plans[0]
    found = frontier.within(0.8)
    assert found.peak_bytes <= 0.8 * plan.plain_peak_bytes < frontier.plans[frontier.plans.index(found) - 1].peak_bytes
    with pytest.raises(ValueError, match=r"no plan has a peak within 1 B: the lowest one has .* of the plain one"):
        frontier.within(1)
    with pytest.raises(ValueError, match="seconds is how long to search"):
        plan.explore(-1.0)


def test_a_model_that_nothing_can_be_dropped_of_has_one_plan() -> None:
    weight = torch.ones(4, requires_grad=True)
    frontier = th.plan_mirror(lambda: weight.sum(), seconds=0.1, repetitions=1).explore(0.1)
    assert len(frontier.plans) == 1 and frontier.place == 0
    assert "1 plan" in repr(frontier) and str(frontier).count("\n") == 1
