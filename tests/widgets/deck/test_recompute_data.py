"""A recomputed backward in the deck's data: live, measured and from a file; its curves are the plan's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory.timeline import Timeline
from tapescope.engine.recompute.planned_recompute import PlannedRecompute
from tapescope.engine.recording.run import Engine, Run
from tapescope.inspector.drawing.annotations import RECOMPUTED, SIGN_TITLES
from tapescope.tests.says import Snapshots, raises, says
from tapescope.widgets.deck.deck import Deck
from tapescope.widgets.deck.recompute_data import FIRST_DROPPED
from tapescope.widgets.deck.run_page_data import run_document
from tapescope.widgets.deck.run_player import Recording

from ..models import ENGINES, deck_on
from ..page_side import Page, unpacked

Content = dict[str, Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
MODEL = nn.Sequential(Block(), Block(), Block())
X = torch.randn(512, 64)


def make_loss() -> Tensor:
    return MODEL(X).square().sum()


def recomputed_loss(plan: ts.types.RecomputePlan) -> Tensor:
    """Return the loss of a forward under a plan. The first forward of a plan recomputes every storage once."""
    MODEL.zero_grad()
    with ts.recompute(plan), ts.capture(MODEL):
        return make_loss()


@pytest.fixture(scope="module")
def plan() -> PlannedRecompute:
    found = ts.plan_recompute(make_loss, 0.6, solver="greedy", seconds=0.2, repetitions=1)
    assert found.dropped
    recomputed_loss(found)
    return found


@pytest.fixture(scope="module")
def run(plan: PlannedRecompute) -> Iterator[Run]:
    MODEL.zero_grad()
    yield ts.profile(lambda: recomputed_loss(plan))
    MODEL.zero_grad()


@pytest.fixture
def loaded(plan: PlannedRecompute, tmp_path: Path) -> ts.types.RecomputePlan:
    return ts.types.RecomputePlan.load(plan.save(tmp_path / "plan.json"))


def curves_of(content: Content, schedule: int = 0) -> dict[str, Content]:
    return {each["name"]: each for each in content["schedules"][schedule].get("curves", ())}


def levels_by_task(curve: Content) -> list[int]:
    """Decode the levels as the page does, see model/recompute_curves.ts."""
    starts, levels = curve["starts"], curve["levels"]
    return [max(levels[first : end + 1]) for first, end in pairwise(starts)]


def assert_is(curve: Content, timeline: Timeline) -> None:
    assert levels_by_task(curve) == list(timeline.task_peaks)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_live_deck_has_the_plans_memory_its_curves_and_what_replays_took(
    page: Page, engine: Engine, plan: PlannedRecompute
) -> None:
    deck = deck_on(recomputed_loss(plan), engine=engine, recompute=plan)
    content = page.open(deck).document
    own, *others = content["schedules"]
    assert own["memory"]["basis"] == plan.timeline.basis
    assert own["memory"]["events"] == list(plan.timeline.events)
    curves = curves_of(content)
    assert_is(curves["plain"], plan.plain)
    assert_is(curves["planned"], plan.timeline)
    for other in others:
        if tuple(other["order"]) != plan.order:
            assert other["memory"] is None and "curves" not in other
            says(other["memory_note"], "heap")
    replays = own["replays"]
    assert sum(replays["ns"]) == pytest.approx(1e9 * plan.predicted.replay_seconds, rel=1e-3)  # type: ignore[union-attr]
    assert min(replays["storage"]) >= FIRST_DROPPED
    assert set(replays["storage"]) <= set(content["saved"]["storage"])
    deck.run()
    planned: dict[int, int] = {}
    for task, count in zip(replays["task"], replays["count"], strict=True):
        planned[task] = planned.get(task, 0) + count
    told: dict[str, list[int]] = {}
    for news in page.told:
        told |= news["replayed"]
    assert {int(task): count for task, (count, _) in told.items()} == planned
    assert all(nanoseconds > 0 for _, nanoseconds in told.values())
    assert unpacked(deck.packed())["replayed"] == told, "a page that opens now hears of it, too"


def test_what_was_taken_back_was_made_again_already(page: Page, plan: PlannedRecompute) -> None:
    deck = deck_on(recomputed_loss(plan), recompute=plan)
    page.open(deck)
    deck.run()
    there = unpacked(deck.packed())["replayed"]
    deck.back(len(deck.order))
    deck.run()
    assert unpacked(deck.packed())["replayed"] == there, "its saved tensors are kept for going back"


def test_another_order_and_retain_graph_are_not_what_was_planned_for(
    plan: PlannedRecompute, snapshot: Snapshots
) -> None:
    for more in ({"policy": "bfs"}, {"retain_graph": True}):
        deck = deck_on(recomputed_loss(plan), recompute=plan, **more)
        own = unpacked(deck.packed())["schedules"][0]
        assert own["memory"] is None and "curves" not in own
        says(own["memory_note"], "heap", "retain_graph")
        assert own["replays"]["task"], "when it is recomputed is known"
        if "policy" in more:
            snapshot("deck", own["memory_note"])
        deck.close()


def test_a_measured_run_has_both_curves_beside_it(run: Run, plan: PlannedRecompute) -> None:
    assert run.timeline is not None
    content = unpacked(Recording(run, recompute=plan).packed())
    assert content["schedules"][0]["memory"]["basis"] == "measured"
    curves = curves_of(content)
    assert levels_by_task(curves["plain"]) == list(plan.plain.task_peaks)
    assert max(levels_by_task(curves["planned"])) == run.peak_bytes, "the prediction is exact"
    saved = content["saved"]
    let_go = {
        (task, content["texts"][slot])
        for task, slot, made_by in zip(saved["task"], saved["slot"], saved["made_by"], strict=True)
        if made_by >= 0
    }
    assert let_go == {pair for each in plan.storages if each.fate == "dropped" for pair in each.saved_by}
    without = unpacked(Recording(run).packed())
    assert "made_by" not in without["saved"] and not curves_of(without)


def test_run_and_plan_may_come_from_files(
    run: Run, plan: PlannedRecompute, loaded: ts.types.RecomputePlan, tmp_path: Path
) -> None:
    read = ts.load(run.save(tmp_path / "run.tape.json"))
    assert not isinstance(loaded, PlannedRecompute)
    content = run_document(read, recompute=loaded).content
    curves = curves_of(content)
    assert_is(curves["plain"], plan.plain)
    assert_is(curves["planned"], plan.timeline)
    assert content["schedules"][0]["replays"] == run_document(run, recompute=plan).content["schedules"][0]["replays"]
    page = run.save_html(tmp_path / "run.html", recompute=loaded)
    assert page.stat().st_size > 10_000


def test_the_picture_of_a_plan_has_a_sign_at_each_task_that_lets_go(plan: PlannedRecompute, tmp_path: Path) -> None:
    picture = plan.save_svg(tmp_path / "plan.svg", fold="none", theme="dark").read_text(encoding="utf-8")
    letting_go = {task for each in plan.storages if each.fate == "dropped" for task, _ in each.saved_by}
    assert picture.count("data-signs=") == len(letting_go)
    assert f"{SIGN_TITLES[RECOMPUTED]}</text>" in picture


def test_a_plain_run_of_a_model_that_reshapes_takes_the_plan_of_its_recomputed_one() -> None:
    weight = nn.Parameter(torch.randn(64, 64))

    def make_loss() -> Tensor:
        h = (torch.ones(64, 64) @ weight).tanh().exp().view(8, 8, 64)
        return h.transpose(0, 1).reshape(64, 64)[:32].reshape(-1).sin().sum()

    plan = ts.plan_recompute(make_loss, 1, seconds=0.1, repetitions=1)
    assert plan.dropped and {"ReshapeAliasBackward0", "ViewBackward0"} & {task.name for task in plan.plain.graph.tasks}
    run_document(ts.profile(make_loss), recompute=plan)


def test_outside_of_a_notebook_a_plan_of_another_forward_is_refused_too(plan: PlannedRecompute) -> None:
    with raises(ValueError, "recompute", "plan"):
        ts.debug(nn.Linear(2, 2)(torch.ones(1, 2)).sum(), recompute=plan)


def test_a_plan_of_another_forward_is_refused(run: Run, plan: PlannedRecompute, snapshot: Snapshots) -> None:
    other = ts.backward(nn.Linear(2, 2)(torch.ones(1, 2)).sum())
    with raises(ValueError, "recompute", "plan") as raised:
        run_document(other, recompute=plan)
    snapshot("deck", raised.value)
    with raises(ValueError, "recompute") as raised:
        deck_on(make_loss(), recompute=plan)
    snapshot("deck", raised.value)
    with raises(TypeError, "recompute") as wrong_type:
        run_document(run, recompute="plan.json")  # type: ignore[arg-type]
    snapshot("deck", wrong_type.value)


def test_without_a_plan_nothing_is_known_but_what_went(plan: PlannedRecompute, snapshot: Snapshots) -> None:
    deck: Deck = deck_on(recomputed_loss(plan))
    content = unpacked(deck.packed())
    assert any(made_by >= 0 for made_by in content["saved"]["made_by"])
    assert not curves_of(content) and "replays" not in content["schedules"][0]
    estimate = content["schedules"][0]["memory"]["estimates"][1]
    says(estimate, "ts.recompute", "ts.debug(loss, recompute=plan)")
    snapshot("deck", estimate)
    deck.close()
