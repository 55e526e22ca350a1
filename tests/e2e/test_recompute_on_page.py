"""A recomputed forward in the deck: its dropped tensors and the tasks that recompute them, in words, signs and
milliseconds; and the memory predicted by its plan beside the measured one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
import torch
from playwright.sync_api import Page, expect
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.recompute.planned_recompute import PlannedRecompute
from tapescope.engine.recompute.record_forward import record_forward
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import Snapshots
from tapescope.widgets.deck.page_data import Document, schedule_content
from tapescope.widgets.deck.save_deck import page_html

from .chromium import trouble_of
from .shown import ShownDeck
from .tab import Tab

pytestmark = pytest.mark.e2e


def test_inspector_and_queue_say_what_is_made_again(tab: Tab, tmp_path: Path, snapshot: Snapshots) -> None:
    first, second, x = nn.Linear(64, 64), nn.Linear(64, 64), torch.ones(256, 64)

    def make_loss() -> Tensor:
        return nn.functional.gelu(first(x)).sum() + nn.functional.gelu(second(x)).sum()

    program = record_forward(make_loss, 1)
    plan = ts.types.RecomputePlan.of(program, [each.number for each in program.saved if each.obstacle is None])
    for _ in range(2):
        with ts.recompute(plan):
            loss = make_loss()
    graph = ts.graph(loss)
    order = schedule(graph, "bfs")
    document = Document(graph, "planned", "direct")
    document.content["schedules"] = [schedule_content(graph, ts.orders.POLICIES["bfs"], order)]
    document.content["position"] = len(order)
    path = tmp_path / "deck.html"
    path.write_text(page_html(document.packed(), "planned"), encoding="utf-8")
    page = tab.open(viewport={"width": 1400, "height": 900})
    trouble = trouble_of(page)
    page.goto(path.as_uri())
    deck = ShownDeck(page)
    earlier, later = (task for task in order if graph.tasks[task].name == "GeluBackward0")
    deck.scrub(order.index(earlier))
    expect(page.locator(".now")).to_contain_text(re.compile(r"\d[a-z]+ 1\b(?! [KM])"))
    again = page.locator(f".queue li[data-task='{later}'] .again")
    expect(again).to_contain_text(re.compile(r"\b1\b"))
    snapshot("page", again.inner_text())
    deck.activate(deck.task(later))
    expect(deck.inspector).to_contain_text(re.compile(r"\bby addmm\b"))
    expect(deck.inspector).to_contain_text("64 KiB")
    tab.leave()
    assert trouble == []


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Played(NamedTuple):
    """A recomputed run, measured, and the page that plays it."""

    plan: PlannedRecompute
    run: ts.Run
    path: Path


NAME = "<b>blocks & co</b>"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Return the page of a model whose module has tags in its name."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    model.add_module(NAME, Block())
    x = torch.randn(512, 64)

    def make_loss() -> Tensor:
        return model(x).square().sum()

    plan = ts.plan_recompute(make_loss, 0.6, solver="greedy", seconds=0.2, repetitions=1)

    def recomputed() -> Tensor:
        with ts.recompute(plan), ts.capture(model):
            return make_loss()

    recomputed()
    model.zero_grad()
    run = ts.profile(recomputed)
    path = tmp_path_factory.mktemp("planned") / "run.html"
    return Played(plan, run, run.save_html(path, recompute=plan))


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, tab: Tab, played: Played) -> Iterator[Page]:
    page = tab.open(viewport={"width": 1400, "height": 1000}, color_scheme=request.param)
    trouble = trouble_of(page)
    page.goto(played.path.as_uri())
    yield page
    tab.leave()
    assert trouble == []


def test_the_legend_reads_the_plans_curves_beside_what_was_measured(
    page: Page, played: Played, snapshot: Snapshots
) -> None:
    deck = ShownDeck(page)
    plan, run = played.plan, played.run
    assert run.timeline is not None
    plain, recomputed = (deck.root.locator(f".lg [data-curve={name}]") for name in ("plain", "planned"))
    titles = [each.get_attribute("title") for each in (plain, recomputed)]
    assert all(titles) and titles[0] != titles[1]
    snapshot("page", "\n".join(map(str, titles)))
    for place in (0, run.timeline.peak_place, len(run.order) - 1):
        deck.scrub(place)
        expect(plain.locator("b")).to_have_text(size_text(plan.plain.task_peaks[place]))
        expect(recomputed.locator("b")).to_have_text(size_text(plan.timeline.task_peaks[place]))
        expect(deck.root.locator(".memory .tot")).to_have_attribute("data-bytes", str(run.timeline.task_peaks[place]))
    chart = deck.root.locator(".time canvas[role=img]")
    words = f"without the plan {size_text(plan.plain_peak_bytes)}; as planned {size_text(plan.peak_bytes)}"
    expect(chart).to_have_attribute("aria-label", re.compile(re.escape(words)))


def test_the_pointer_reads_the_curves_at_its_own_task(page: Page, played: Played) -> None:
    deck = ShownDeck(page)
    deck.scrub(0)
    box = deck.root.locator(".time").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    total = deck.root.locator(".memory .tot")
    said = re.compile("([0-9]+)[a-z]{2} task")
    expect(total).to_have_attribute("title", said)
    task = int(said.search(total.get_attribute("title") or "")[1])  # type: ignore[index]
    assert 1 < task < len(played.run.order)
    level = played.plan.plain.task_peaks[task - 1]
    expect(deck.root.locator(".lg [data-curve=plain]")).to_have_attribute("data-bytes", str(level))


def test_signs_stand_at_tasks_in_the_strip_and_in_the_saved_picture(page: Page, played: Played) -> None:
    deck = ShownDeck(page)
    dropped = [each for each in played.plan.storages if each.fate == "dropped"]
    expect(deck.root.locator(".key [data-sign='dropped']")).to_be_visible()
    again = deck.root.locator(".key [data-sign=recomputed]")
    expect(again).to_be_visible()
    task = dropped[-1].saved_by[0][0]
    deck.scrub(played.run.order.index(task))
    expect(deck.task(task)).to_contain_text(re.compile(r"\b1 saved tensor, 128 KiB"))
    with page.expect_download() as download:
        deck.save_picture("svg whole")
    picture = ElementTree.parse(download.value.path()).getroot()
    namespace = "{http://www.w3.org/2000/svg}"
    titles = [each.text or "" for each in picture.iter(f"{namespace}title")]
    assert any(re.search(r"\b1 saved tensor, 128 KiB", title) for title in titles)
    assert any(re.search(r"\b\d+ tensors?, .* ms ", title) for title in titles)
    texts = ["".join(each.itertext()) for each in picture.iter(f"{namespace}text")]
    legend = {deck.root.locator(f".key [data-sign='{sign}']").inner_text() for sign in ("dropped", "recomputed")}
    assert legend <= set(texts)
    assert any(NAME in text for text in texts), "names are text"


def test_the_queue_and_the_inspector_say_what_a_replay_takes(page: Page, played: Played) -> None:
    deck = ShownDeck(page)
    row = deck.root.locator(".now")
    places = [place for place, task in enumerate(played.run.order) if task in {*_replaying(played)}]
    assert places
    deck.scrub(places[0])
    expect(row).to_contain_text(re.compile(r"\d[a-z]+ \d+\b.* [\d.]+ ms"))
    expect(deck.inspector).to_contain_text(re.compile(r"planned [\d.]+ ms"))
    expect(deck.inspector).to_contain_text(re.compile(r"\bby \w+.* [\d.]+ ms"))


def _replaying(played: Played) -> Iterator[int]:
    there: set[int] = set()
    dropped = {each.number: each for each in played.plan.storages if each.fate == "dropped"}
    for task in played.run.order:
        wanted = {number for number, each in dropped.items() if task in {keeper for keeper, _ in each.saved_by}}
        if wanted - there:
            yield task
        there |= wanted


@pytest.mark.parametrize("width", [1600, 700, 400])
def test_nothing_sticks_out_of_a_deck_of_any_width(width: int, tab: Tab, played: Played) -> None:
    page = tab.open(viewport={"width": width, "height": 1000})
    page.goto(played.path.as_uri())
    deck = ShownDeck(page)
    for name in (".graph .key", ".lg"):
        inside = deck.root.locator(name).evaluate("each => each.scrollWidth <= each.clientWidth + 1")
        assert inside, name
    tools = deck.root.locator(".graph .tools").bounding_box()
    assert tools is not None and tools["x"] + tools["width"] <= width
    expect(deck.root.locator(".key [data-sign=recomputed]")).to_be_visible()
