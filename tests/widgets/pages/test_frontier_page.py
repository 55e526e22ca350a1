"""Plans under a slider as HTML: all of them inside, their names text, a table where no script runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.engine.recompute.planned_recompute import PlanFrontier
from tapescope.tests.says import Snapshots, raises
from tapescope.widgets.pages.frontier_page import frontier_html


@pytest.fixture(scope="module")
def frontier() -> PlanFrontier:
    layers = nn.ModuleDict({"</script><b>": nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Tanh())})
    model, x = layers["</script><b>"], torch.ones(32, 16)
    return ts.plan_recompute(lambda: layers["</script><b>"](model(x)).sum(), 0.8, seconds=0.1, repetitions=1).explore(
        0.1
    )


def content(html: str) -> dict[str, object]:
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', html)
    return json.loads(found)  # type: ignore[no-any-return]


def test_every_plan_is_inside_with_its_curve_and_what_it_does(frontier: PlanFrontier) -> None:
    data = content(frontier._repr_html_())
    plans = data["plans"]
    assert isinstance(plans, list) and len(plans) == len(frontier.plans) > 1
    for shown, plan in zip(plans, frontier.plans, strict=True):
        assert shown["levels"] == list(plan.timeline.task_peaks) and shown["peak"] == plan.peak_bytes
        assert dict(shown["totals"])["d"] == plan.dropped_bytes
        assert sum(nbytes for _, nbytes in shown["replays"]) == plan.dropped_bytes
        assert shown["fates"].count("d") == sum(each.fate == "dropped" for each in plan.storages)
        assert shown["cells"] == plan.cells
        assert all(note in shown["sentences"] for note in plan.notes)
    assert data["notes"] == frontier.sentences and data["asked"] == frontier.asked


def test_names_of_modules_are_text(frontier: PlanFrontier) -> None:
    html = frontier._repr_html_()
    assert html.count("</script>") == 2 and "<b>.0" not in html


def test_without_a_script_the_plans_are_a_table(frontier: PlanFrontier) -> None:
    assert frontier._repr_html_().count("<tr>") == 1 + len(frontier.plans)


def test_a_measured_curve_of_another_graph_is_refused(
    frontier: PlanFrontier, tmp_path: Path, snapshot: Snapshots
) -> None:
    other = torch.ones(3, requires_grad=True)
    measured = ts.profile(lambda: other.sum()).timeline
    assert measured is not None
    with raises(ValueError, "'mine'", "2 tasks") as raised:
        frontier.save_html(tmp_path / "page.html", measured={"mine": measured})
    assert not (tmp_path / "page.html").exists()
    snapshot("plan_recompute", raised.value)
    assert content(frontier_html(frontier, {"again": frontier.plans[0].timeline}))["measured"]
