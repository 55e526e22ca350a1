"""Mirrored forwards beside plain ones in a comparison: measured, and as their plan predicts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.execution.accumulation_rule import Accumulation
from tapescope.engine.recompute.module_table import HEADINGS
from tapescope.engine.studies.comparison import MIRRORED
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import Snapshots, raises, says, says_none_of
from tapescope.widgets.pages.comparison_page import page_html

MODEL = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.GELU(), nn.Dropout(0.1)) for _ in range(3)])
X = torch.ones(64, 32)


def make_loss() -> Tensor:
    return MODEL(X).reshape(32, 64).pow(2).mean()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def plan() -> ts.types.PlannedRecompute:
    return ts.plan_recompute(make_loss, 0.8, seconds=0.2, repetitions=1)


def test_each_policy_has_a_row_without_and_one_with_the_plan(
    plan: ts.types.PlannedRecompute, snapshot: Snapshots
) -> None:
    comparison = ts.compare(make_loss, ["bfs", "heap"], recompute=plan, repetitions=1)
    assert [row.policy for row in comparison.rows] == ["bfs", f"bfs{MIRRORED}", "heap", f"heap{MIRRORED}"]
    plain, mirrored = comparison["heap"], comparison[f"heap{MIRRORED}"]
    assert plain.plan is None and plain.predicted_bytes == plain.peak_bytes == plan.plain_peak_bytes
    assert mirrored.plan is plan and mirrored.peak_bytes < plain.peak_bytes
    assert mirrored.predicted is plan.timeline and mirrored.calibrated_by == "ts.plan_recompute"
    assert mirrored.predicted_bytes == pytest.approx(mirrored.peak_bytes, rel=0.01)
    snapshot("compare", comparison.sentences[-1])
    assert f"heap{MIRRORED}" in comparison._repr_html_() and len(comparison.figure().data) == 8


def test_the_forward_of_each_row_has_its_own_peak(plan: ts.types.PlannedRecompute) -> None:
    comparison = ts.compare(make_loss, "heap", recompute=plan, repetitions=1)
    plain, mirrored = (row.timeline.forward_peak_bytes for row in comparison.rows)
    assert plain is not None and mirrored is not None and plain > mirrored
    higher = [row.policy for row in comparison.rows if (row.timeline.forward_peak_bytes or 0) > row.peak_bytes]
    peaks = {row.policy: size_text(row.timeline.forward_peak_bytes or 0) for row in comparison.rows}
    told = [each for each in comparison.sentences for policy in higher if peaks[policy] in each]
    assert len(told) == len(higher) and all(size_text(plain) not in each for each in told if MIRRORED in each)


def test_what_is_let_go_of_and_runs_again_is_said(plan: ts.types.PlannedRecompute) -> None:
    comparison = ts.compare(make_loss, "heap", recompute=[plan], repetitions=1)
    (said,) = (each for each in comparison.sentences if each.startswith(f"heap{MIRRORED}: "))
    again = len({each.made_by for each in plan.storages if each.is_dropped})
    says(said, size_text(plan.dropped_bytes), again)


def test_alone_the_plain_row_is_predicted_by_the_plan_too(plan: ts.types.PlannedRecompute, snapshot: Snapshots) -> None:
    comparison = ts.compare(make_loss, "heap", recompute=plan, repetitions=1)
    plain, mirrored = comparison.rows
    assert plain.predicted is plan.plain and plain.calibrated_by == "ts.plan_recompute"
    assert comparison.without(mirrored) is plain and comparison.without(plain) is None
    measured = [row.timeline.task_peaks for row in comparison.rows]
    drawn = comparison.mirrored_figure(f"heap{MIRRORED}").data
    assert [line.name for line in drawn[:2]] == [plain.policy, mirrored.policy]
    for line, row in zip(drawn[2:], comparison.rows, strict=True):
        says(line.name, row.policy)
    assert len({line.name for line in drawn}) == 4
    for line, levels in zip(drawn, [*measured, plan.plain.task_peaks, plan.timeline.task_peaks], strict=True):
        assert [round(level * 1024) for level in line.y[:-1]] == list(levels)
    with raises(ValueError, "'heap'", f"heap{MIRRORED}") as raised:
        comparison.mirrored_figure("heap")
    snapshot("compare", raised.value)


def test_a_plan_that_was_loaded_predicts_the_same(plan: ts.types.PlannedRecompute, tmp_path: Path) -> None:
    loaded = ts.types.RecomputePlan.load(plan.save(tmp_path / "plan.json"))
    comparison = ts.compare(make_loss, ["heap", "bfs"], recompute=[loaded], repetitions=1)
    heap, bfs = comparison.rows
    assert heap.predicted is None and heap.predicted_levels == loaded.predicted.levels  # type: ignore[union-attr]
    assert heap.predicted_bytes == plan.peak_bytes and heap.calibrated_by == "ts.plan_recompute"
    assert bfs.predicted_bytes is None and not bfs.predicted_levels
    assert len(comparison.mirrored_figure(f"heap{MIRRORED}").data) == 2
    assert len(comparison.mirrored_figure(f"bfs{MIRRORED}").data) == 1


def test_the_page_has_the_curves_and_the_modules_of_each_plan(plan: ts.types.PlannedRecompute) -> None:
    comparison = ts.compare(make_loss, ["heap", "bfs"], recompute=plan, repetitions=1)
    page = page_html(comparison, "title")
    assert page.count('data-figure="mirrored-') == 2
    heading = next(each for each in page.split("<h2>")[1:] if HEADINGS[1] in each).partition("</h2>")[0]
    assert page.count(f"<h2>{heading}</h2>") == 1, "one table for one plan"
    assert all(row[0] in page for row in plan.cells[1:])


def test_a_plan_predicts_only_the_order_and_the_rule_that_it_is_for(plan: ts.types.PlannedRecompute) -> None:
    comparison = ts.compare(make_loss, "heap", recompute=[plan], accumulate=("inplace", "list"), repetitions=1)
    assert [row.policy for row in comparison.rows] == [
        f"heap{MIRRORED}",
        f"{Accumulation('list').of('heap')}{MIRRORED}",
    ]
    assert comparison.rows[0].predicted is plan.timeline and comparison.rows[1].predicted is None


def test_several_plans_have_a_number_each(plan: ts.types.PlannedRecompute, snapshot: Snapshots) -> None:
    plans = plan.explore(0.1).plans
    comparison = ts.compare(make_loss, "heap", recompute=[None, plans[0], plans[-1]], repetitions=1)
    assert [row.policy for row in comparison.rows] == ["heap", f"heap{MIRRORED} 1", f"heap{MIRRORED} 2"]
    (said,) = [each for each in comparison.sentences if each.startswith(f"heap{MIRRORED} 1:")]
    says_none_of(said, size_text(0))
    snapshot("compare", said)
    assert comparison.rows[0].peak_bytes == comparison.rows[1].peak_bytes > comparison.rows[2].peak_bytes


def test_what_is_no_plan_or_for_another_forward_is_refused(
    plan: ts.types.PlannedRecompute, snapshot: Snapshots
) -> None:
    with raises(TypeError, "recompute", "ts.plan_recompute", "'plan'") as none:
        ts.compare(make_loss, "heap", recompute="plan")  # type: ignore[arg-type]
    with raises(ValueError, "recompute") as empty:
        ts.compare(make_loss, "heap", recompute=[])
    with raises(ValueError, "recompute", None) as twice:
        ts.compare(make_loss, "heap", recompute=[plan, plan])
    other = torch.ones(3, requires_grad=True)
    with raises(ValueError, "operation 0", "aten.exp.default"):
        ts.compare(lambda: other.exp().sum(), "heap", recompute=plan)
    for error in (none, empty, twice):
        snapshot("compare", error.value)
