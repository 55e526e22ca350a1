"""Plans for other budgets: they are ordered, can run, and reach their predicted peaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.recompute.planned_recompute import prediction_of
from tapescope.engine.recompute.planned_recompute import replanned as reckoned
from tapescope.engine.recompute.solvers import FoundDrops, Goal, greedy
from tapescope.inspector.text.sizes_and_counts import share_text, size_text
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ..recomputed_programs import gradients, same

MODEL = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32), nn.Tanh()) for _ in range(3)])
X = torch.ones(64, 32)


def make_loss() -> Tensor:
    return MODEL(X).pow(2).mean()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def plan() -> ts.types.PlannedRecompute:
    return ts.plan_recompute(make_loss, 0.7, seconds=0.2, repetitions=1)


def test_each_plan_takes_longer_and_is_lower_than_the_one_before(plan: ts.types.PlannedRecompute) -> None:
    frontier = plan.explore(0.3)
    peaks = [each.peak_bytes for each in frontier.plans]
    seconds = [each.predicted.seconds for each in frontier.plans if each.predicted]
    assert len(peaks) > 2 and peaks == sorted(peaks, reverse=True) and seconds == sorted(seconds)
    assert not frontier.plans[0].dropped and peaks[0] == plan.plain_peak_bytes
    assert all(each.peak_bytes == max(each.predicted.levels) for each in frontier.plans if each.predicted)


def test_a_plan_of_another_budget_runs_with_the_same_gradients_and_no_higher_peak(
    plan: ts.types.PlannedRecompute,
) -> None:
    frontier = plan.explore(0.3)
    leaves = list(MODEL.parameters())
    without = gradients(make_loss, leaves)
    chosen = frontier.plans[-1]
    assert chosen.peak_bytes < plan.peak_bytes or chosen.dropped == plan.dropped
    for _ in range(2):
        assert same(gradients(make_loss, leaves, chosen), without)

    def recomputed() -> Tensor:
        with ts.recompute(chosen):
            return make_loss()

    MODEL.zero_grad()  # new gradients would be freed at once if they were added to existing ones
    timeline = ts.profile(recomputed).timeline
    assert timeline is not None and abs(chosen.peak_bytes - timeline.peak_bytes) <= 0.005 * timeline.peak_bytes


def test_the_cheapest_within_a_budget_is_found_and_what_is_out_of_reach_is_said(
    plan: ts.types.PlannedRecompute, snapshot: Snapshots
) -> None:
    frontier = plan.explore(0.3)
    assert frontier.within(1.0) is frontier.plans[0]
    found = frontier.within(0.8)
    assert found.peak_bytes <= 0.8 * plan.plain_peak_bytes < frontier.plans[frontier.plans.index(found) - 1].peak_bytes
    lowest = frontier.plans[-1].peak_bytes
    with raises(ValueError, "1 B", size_text(lowest - 1), size_text(lowest), share_text(lowest, plan.plain_peak_bytes)):
        frontier.within(1)
    with raises(ValueError, "seconds", -1.0) as raised:
        plan.explore(-1.0)
    snapshot("plan_recompute", raised.value)


def test_the_plan_that_was_explored_is_there_unless_one_is_lower_and_takes_no_longer(
    plan: ts.types.PlannedRecompute,
) -> None:
    frontier = plan.explore(0.3)
    chosen = frontier.plans[frontier.place]
    assert chosen.predicted is not None and plan.predicted is not None
    assert chosen.peak_bytes <= plan.peak_bytes and chosen.predicted.seconds <= plan.predicted.seconds
    assert frontier.asked is None or frontier.plans[frontier.asked] is plan
    assert replace(frontier, plans=(frontier.plans[0], plan)).asked == 1


def _reckoned(plan: ts.types.PlannedRecompute) -> tuple[float, float]:
    return plan.reckoned(plan.dropped, plan.memory.levels_if_dropped(plan.dropped).replay_ns)


def priced(plan: ts.types.PlannedRecompute, times: int) -> ts.types.PlannedRecompute:
    """The plan as if its replays had been measured to take so many times what is reckoned."""
    assert plan.predicted is not None
    replays = times * plan.memory.levels_if_dropped(plan.dropped).replay_ns / 1e9
    return replace(plan, predicted=replace(plan.predicted, replay_seconds=replays))


def test_prices_of_other_plans_go_with_what_was_measured_of_the_one(
    plan: ts.types.PlannedRecompute, snapshot: Snapshots
) -> None:
    once, twice = priced(plan, 1), priced(plan, 2)
    frontier = once.explore(0.3)
    for each in frontier.plans[1:]:
        if each is not once:
            found = FoundDrops(each.dropped, plan.memory.levels_if_dropped(each.dropped), 0, 0.0)
            one, two = prediction_of(each), prediction_of(reckoned(twice, found))
            assert two.replay_seconds == pytest.approx(2 * one.replay_seconds) and one.replay_seconds > 0
            assert two.plain_seconds == one.plain_seconds and two.recording_seconds == one.recording_seconds
            assert two.levels == one.levels
    says(frontier, *frontier.sentences)
    snapshot("plan_recompute", replace(frontier, plans=(frontier.plans[0], once)).sentences[0])


def test_what_was_said_of_the_plan_that_was_explored_is_not_said_of_others(snapshot: Snapshots) -> None:
    least = ts.plan_recompute(make_loss, 1, seconds=0.1, repetitions=1)
    assert not least.met and least.notes
    says(least.notes[0], "1 B")
    others = [each for each in least.explore(0.2).plans if each is not least]
    assert others
    for each in others:
        says_none_of("\n".join(each.sentences), *least.notes)
    alone = ts.plan_recompute(make_loss, 1.0, seconds=0.1, repetitions=1).explore(0.2)
    assert alone.plans[0].left_alone and all(each.left_alone is None for each in alone.plans[1:])
    assert alone.place == alone.asked == 0
    snapshot("plan_recompute", alone.sentences[0])


def test_a_budget_costs_hardly_more_than_a_planner_finds_for_it_alone(plan: ts.types.PlannedRecompute) -> None:
    """The searches go by replays, and the slider by all that a step takes: hence hardly."""
    once = priced(plan, 1)
    frontier = once.explore(0.6)
    for share in (0.95, 0.9, 0.8, 0.7):
        alone = reckoned(once, greedy(plan.memory, Goal(peak_bytes=int(share * plan.plain_peak_bytes))))
        if alone.peak_bytes <= share * plan.plain_peak_bytes:
            taken, enough = (
                prediction_of(each).seconds - prediction_of(each).plain_seconds
                for each in (frontier.within(share), alone)
            )
            assert taken <= 1.1 * enough


def test_a_model_that_nothing_can_be_dropped_of_has_one_plan() -> None:
    weight = torch.ones(4, requires_grad=True)
    frontier = ts.plan_recompute(lambda: weight.sum(), seconds=0.1, repetitions=1).explore(0.1)
    assert len(frontier.plans) == 1 and frontier.place == 0
    assert "1 plan" in repr(frontier) and str(frontier).count("\n") == 1
