"""A whole step on the deck's page: three phases, what stands through all of it, and the backward's tasks between."""

from __future__ import annotations

import gzip
import json
import re
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from torch.optim import Adam

import tapescope as ts
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.category_levels import category_levels_at_peak, later_category_levels
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import Snapshots, raises, says
from tapescope.widgets.deck import still_memory_chart as still_memory
from tapescope.widgets.deck.run_player import StepRecording
from tapescope.widgets.deck.step_page_data import step_document
from tapescope.widgets.deck.still_picture import Still


def recorded(accumulate: int = 1) -> ts.record_steps:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = Adam(model.parameters(), foreach=True)
    with ts.record_steps(steps=3) as steps:
        for _ in range(5):
            optimizer.zero_grad()
            for _ in range(accumulate):
                model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
    return steps


def content_of(step: ts.types.TrainingStep) -> dict[str, Any]:
    return json.loads(gzip.decompress(step_document(step).packed()))


def levels(memory: dict[str, Any]) -> list[int]:
    found = [sum(memory["nbytes"][: memory["before"]])]
    for event in memory["events"]:
        found.append(found[-1] + (memory["nbytes"][event] if event >= 0 else -memory["nbytes"][~event]))
    return found


def test_another_policys_tab_says_why_it_has_no_curve_of_a_step(snapshot: Snapshots) -> None:
    own, *others = content_of(recorded()[1])["schedules"]
    assert others and own["memory"] is not None
    for other in others:
        assert other["memory"] is None
        says(other["memory_note"], "ts.compare(make_loss, step=step)")
    snapshot("deck", others[0]["memory_note"])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_page_has_the_steps_own_curve_to_the_byte(accumulate: int) -> None:
    step = recorded(accumulate)[1]
    content = content_of(step)
    memory = content["schedules"][0]["memory"]
    assert [phase["name"] for phase in content["phases"]] == ["forward", "backward", "optimizer"]
    assert all(phase["elapsed_ns"] > 0 for phase in content["phases"])
    assert levels(memory) == list(step.timeline.levels)
    assert memory["before"] == step.timeline.before
    assert memory["nbytes"] == list(step.timeline.nbytes)
    assert memory["step"] is True
    assert memory["peak"] == "", "the page has a legend of its own, whose words it takes"


def test_a_step_on_several_devices_has_its_events_by_place_from_its_beginning() -> None:
    step = recorded()[1]
    timeline = step.run.timeline
    assert timeline is not None
    places = array("q", map(timeline.place_of, range(len(timeline.events))))
    ends = timeline.task_ns[:1] + array("q", [max(timeline.task_ns) + 7]) + timeline.task_ns[2:]
    beside = replace(timeline, event_places=places, task_ns=ends)  # the first task ends last
    plain = step_document(step).content["phases"][-1]["elapsed_ns"]
    vars(step)["run"] = replace(step.run, timeline=beside)
    content = step_document(step).content
    memory = content["schedules"][0]["memory"]
    assert memory["event_places"] == list(places[step.timeline.before :])
    assert content["phases"][-1]["elapsed_ns"] == plain - 7


def test_parameters_and_state_are_what_stands_through_all_of_it() -> None:
    step = recorded()[1]
    timeline = step.run.timeline
    assert timeline is not None
    for category, kinds in ((Category.PARAMETER, ("parameters", "buffers")), (Category.STATE, ("optimizer state",))):
        numbers = {number for number in range(len(timeline)) if timeline.category_at(number) is category}
        assert numbers == {number for number, kind in enumerate(step.timeline.kinds) if kind in kinds}
    rows = content_of(step)["schedules"][0]["memory"]["rows"]
    assert {row["name"] for row in rows} >= {"weight.grad"}
    assert not any("optimizer" in row["name"] for row in rows)


def test_the_backward_in_it_is_that_of_pytorchs_engine_with_modules_and_lines() -> None:
    run = recorded()[1].run
    assert sorted(run.order) == [*range(len(run.graph))]
    assert any(task.source is not None and task.source.file == __file__ for task in run.graph.tasks)
    assert {run.graph.module(task) for task in run.graph.tasks if not task.is_leaf} >= {"0", "2", "4"}


def test_a_step_under_a_policy_says_why_it_has_no_deck(snapshot: Snapshots) -> None:
    with ts.policy("bfs"):
        step = recorded()[1]
    with raises(ValueError, "graph", "policy") as raised:
        step.deck()
    snapshot("deck", raised.value)
    with raises(ValueError, "step 1") as raised:
        recorded()[0].deck()
    snapshot("deck", raised.value)


def test_it_is_a_widget_and_a_page(tmp_path: Path) -> None:
    step = recorded()[1]
    says(repr(step.deck()), "<StepRecording ", "<TrainingStep 1")
    assert step.deck()._still.svg(step.deck().moment())
    page = step.save_html(tmp_path / "step.html").read_text(encoding="utf-8")
    assert "<title>Sequential" in page


def test_the_figure_has_categories_and_phases() -> None:
    pytest.importorskip("plotly")
    step = recorded()[1]
    figure = step.figure("light")
    named = [trace.name for trace in figure.data]
    assert named == ["parameters", "optimizer state", "gradients", "batch", "activations", "temporaries"]
    assert len(figure.layout.shapes) == len(step.timeline.phases)
    scale = 1024 ** (step.peak_bytes >= 1024)
    assert max(map(sum, zip(*(trace.y for trace in figure.data), strict=True))) == pytest.approx(
        step.peak_bytes / scale
    )


def test_the_still_of_a_step_begins_with_what_was_there_and_ends_with_the_optimizer() -> None:
    step = recorded()[1]
    moment = StepRecording(step).moment()
    timeline = step.run.timeline
    assert timeline is not None
    later = later_category_levels(timeline)
    assert list(map(sum, zip(*later.values(), strict=True))) == list(timeline.levels[timeline.starts[-1] :])

    root = ElementTree.fromstring(Still("1f", "a step", step.run.graph).svg(moment))
    svg = "{http://www.w3.org/2000/svg}"
    said = ["".join(text.itertext()) for text in root.iter(f"{svg}text")]
    assert {"forward", "optimizer"} <= set(said)
    peak = category_levels_at_peak(timeline)
    assert timeline.peak_place == len(timeline.order) and sum(peak.values()) == timeline.peak_bytes
    assert {size_text(nbytes) for nbytes in peak.values() if nbytes} <= set(said), "the legend speaks of the peak"
    (line,) = (each.get("d", "") for each in root.iter(f"{svg}path") if each.get("class") == "ts-level")
    first = float(line[1:].split("H")[0].split()[1])
    heights = [float(each) for each in re.findall(r"V([0-9.]+)", line)]
    bottom = still_memory._BOTTOM
    share = step.timeline.levels[0] / timeline.peak_bytes
    assert (bottom - first) / (bottom - min(heights)) == pytest.approx(share, abs=0.01)

    assert timeline.peak_place == len(timeline.order), "foreach Adam takes more than the backward"
    (at_peak,) = (text for text in said if text.startswith("peak"))
    says(at_peak, "33.9 KiB", "optimizer state")
    assert re.search(r"\b\d+ %", at_peak)
    (ring,) = (each for each in root.iter(f"{svg}circle") if each.get("class") == "ts-ring")
    (optimizer,) = (each for each in root.iter(f"{svg}text") if each.text == "optimizer")
    assert abs(float(ring.get("cx", "")) - float(optimizer.get("x", ""))) < 40
    assert "16th" not in said, "it would touch the optimizer's name"
