"""The page decodes memory to the numbers that `Timeline` has: levels, categories, peaks, and each storage's life."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.engine.memory import simulation
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.memory.timeline import Timeline
from tapescope.engine.planning.simulate import simulate
from tapescope.engine.schedule.policy import AnyPolicy, QueueState
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.graph.graph import Task
from tapescope.widgets.deck.page_data import memory_content


def middle(ready: Sequence[Task], _: QueueState) -> Task:
    """A policy that is none of the known ones."""
    return ready[len(ready) // 2]


POLICIES: tuple[AnyPolicy, ...] = ("heap", "bfs", "dfs", middle)

Decoded = dict[str, Any]
Decode = Callable[[list[Timeline]], list[Decoded]]


@pytest.fixture(scope="module")
def decode(page_sources: Path) -> Decode:
    """Decode memories with the page's own code, in node."""
    script = page_sources / "out" / "decode_memory.mjs"
    esbuild = page_sources / "node_modules" / ".bin" / "esbuild"
    source = page_sources / "tests" / "decode_memory.ts"
    options = ["--bundle", "--platform=node", "--format=esm", "--log-level=warning", f"--outfile={script}"]
    subprocess.run([esbuild, source, *options], check=True)

    def decoded(timelines: list[Timeline]) -> list[Decoded]:
        sent = json.dumps([memory_content(timeline) for timeline in timelines])
        done = subprocess.run(["node", script], input=sent, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return decoded


def assert_equal(timeline: Timeline, found: Decoded) -> None:
    places = len(timeline.order)
    assert found["levels"] == list(timeline.levels)
    assert found["taskLevels"] == [*timeline.task_peaks, timeline.end_bytes]
    peak = found["peak"]
    assert (peak["event"], peak["place"]) == (timeline.peak_event, timeline.peak_place)
    assert peak["bytes"] == timeline.peak_bytes
    for category in Category:
        column = list(timeline.category_levels.get(category, [0] * places))
        at_end = sum(
            timeline.nbytes[number]
            for number in timeline.alive(len(timeline.events))
            if timeline.category_at(number) is category
        )
        assert found["categoryLevels"][category] == [*column, at_end], category
    for storage in timeline:
        assert found["lives"][storage.number] == {"born": storage.born, "freed": storage.died}
    gone = sum(1 for number in timeline.events[: timeline.starts[0]] if number < 0)
    assert found["storages"] == len(timeline) - gone


def assert_bars_show_the_categories(timeline: Timeline, found: Decoded) -> None:
    """At each event of the backward the bar of each living storage has the colour of what it is for just then."""
    times = found["times"]
    for event in range(timeline.starts[0], timeline.starts[-1]):
        place = timeline.place_of(event)
        for number in timeline.alive(event):
            covering = [part for part in found["segments"][number] if part["from"] <= times[event] <= part["to"]]
            expected = timeline.category_at(number, event, place)
            assert covering, f"storage {number} has no bar at event {event}"
            assert covering[-1]["category"] == expected, f"storage {number} at event {event}"


@pytest.mark.parametrize("name", ["linear50", "gpt2", "lstm_cell", "lstm_lm", "recommender", "ensemble", "unet"])
def test_predicted_orders(decode: Decode, name: str) -> None:
    graph = ts.graph(workload(name).build()[1]())
    footprints = dry_run(graph)
    timelines = [simulate(graph, policy, footprints) for policy in POLICIES]
    for timeline, found in zip(timelines, decode(timelines), strict=True):
        assert_equal(timeline, found)


def test_measured_with_the_forward_hooks_and_what_ends_late(decode: Decode) -> None:
    kept: list[Tensor] = []
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
    features = torch.randn(8, 16)

    def make_loss() -> Tensor:
        hidden = model(features)
        hidden.register_hook(kept.append)
        kept.append(hidden)
        return (hidden * hidden.exp()).sum() + hidden.mean()

    timelines = [
        timeline
        for policy in ("heap", "bfs")
        for again in (False, True)
        if (timeline := ts.profile(make_loss, policy, retain_graph=again).timeline) is not None
    ]
    assert len(timelines) == 4
    assert all(timeline.starts[0] > 0 for timeline in timelines), "the forward has no events"
    assert any(timeline.changes for timeline in timelines)
    for timeline, found in zip(timelines, decode(timelines), strict=True):
        assert_equal(timeline, found)
        assert_bars_show_the_categories(timeline, found)
    kept.clear()  # it holds what its hooks are on


def test_a_bar_changes_its_colour_in_the_task_that_does_it(decode: Decode) -> None:
    """Leaves take gradients for their .grad without any event between them."""
    parameters = [torch.ones(8, requires_grad=True) for _ in range(5)]
    loss = torch.stack([parameter * 2 for parameter in parameters]).sum()
    graph = ts.graph(loss)
    timelines = [simulate(graph, policy) for policy in ("heap", "bfs")]
    for timeline, found in zip(timelines, decode(timelines), strict=True):
        assert_equal(timeline, found)
        assert_bars_show_the_categories(timeline, found)
        assert len(timeline.grads) == len(parameters)
        for number, leaf in timeline.grads.items():
            place = timeline.order.index(leaf)
            last = found["segments"][number][-1]
            assert last["category"] == Category.GRADIENT
            assert place <= last["from"] <= place + 1


def test_a_deck_simulates_each_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, ...]] = []
    run = simulation._Simulation.run

    def counted(self: simulation._Simulation, order: Sequence[int]) -> Timeline:
        ran.append(tuple(order))
        return run(self, order)

    monkeypatch.setattr(simulation._Simulation, "run", counted)
    x = torch.randn(4, 8)
    weights = [torch.randn(8, 8, requires_grad=True) for _ in range(4)]
    deck = ts.deck(torch.stack([(x @ weight).relu() for weight in weights]).sum(), history=True)
    deck._asking.ask(lambda: None)
    opened = len(ran)
    assert 3 <= opened <= 4, "the tabs heap, bfs, dfs, lpmf, of which two may have one order"
    known = deck.compare(["heap", "bfs", "dfs", "lpmf"])
    assert len(ran) == opened
    deck.step(count=4)
    deck.back(2)
    deck.switch("bfs")
    deck.run()
    rows = deck.compare_branches().rows
    deck.compare_branches()
    assert len(ran) == len(set(ran)), "each order once"
    graph = deck._live.session.footprints.graph
    for policy, timeline in known.timelines.items():
        alone = simulate(replace(graph), timeline.order, deck._live.session.footprints)
        assert (list(alone.events), list(alone.nbytes), list(alone.changes)) == (
            list(timeline.events),
            list(timeline.nbytes),
            list(timeline.changes),
        ), policy
    assert len(rows) == 2 and all(row.peak_bytes for row in rows)
    deck.close()
