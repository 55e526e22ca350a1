"""Creation times on a page: the inspector's words, the strip over the forward, and the graph's colours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

import tapescope as ts
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.text.durations import time_text
from tapescope.tests.says import says
from tapescope.widgets.deck.page_data import Document, schedule_content
from tapescope.widgets.deck.save_deck import save_page

from .shown import ShownDeck
from .tab import Tab

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def captured() -> ts.Run:
    return ts.profile(workload("gpt2").build(layers=2)[1], trace="cheap")


@pytest.fixture(scope="module")
def with_times(captured: ts.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured.save_html(tmp_path_factory.mktemp("created") / "run.html")


@pytest.fixture(scope="module")
def without_times(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = ts.graph(workload("linear50").build()[1]())
    document = Document(graph, "no capture", "direct")
    document.content["schedules"].append(schedule_content(graph, ts.orders.POLICIES["heap"], ts.simulate(graph).order))
    return save_page(document.packed(), tmp_path_factory.mktemp("bare") / "deck.html", "no capture")


@pytest.fixture
def page(tab: Tab) -> Page:
    return tab.open(viewport={"width": 1400, "height": 900})


def opened(page: Page, path: Path) -> ShownDeck:
    page.goto(path.as_uri())
    return ShownDeck(page)


def strip_of(deck: ShownDeck) -> Locator:
    return deck.root.get_by_role("slider", name="creation times")


def by_creation(run: ts.Run) -> list[tuple[int, int]]:
    """Return the times since the first node, and the ids, of the tasks whose creation was recorded, earliest first."""
    found = sorted((task.created_ns, task.id) for task in run.graph.tasks if task.created_ns is not None)
    return [(ns - found[0][0], task) for ns, task in found]


def test_the_inspector_says_when_a_task_was_created(page: Page, captured: ts.Run, with_times: Path) -> None:
    deck = opened(page, with_times)
    task = captured.graph.tasks[captured.order[0]]
    ns = next(ns for ns, each in by_creation(captured) if each == task.id)
    says(deck.inspector.inner_text(), f"created {time_text(ns)}", "first node", f"#{task.id}")
    leaf = next(place for place, each in enumerate(captured.order) if captured.graph.tasks[each].is_leaf)
    deck.scrub(leaf)
    expect(deck.inspector).to_contain_text(f"created #{captured.order[leaf]}")


def test_the_strip_selects_by_click_and_by_keys_in_the_order_of_creation(
    page: Page, captured: ts.Run, with_times: Path
) -> None:
    deck, created = opened(page, with_times), by_creation(captured)
    strip = strip_of(deck)
    box = strip.bounding_box()
    assert box is not None
    last = [task for ns, task in created if ns == created[-1][0]]
    for task in (*last, last[0]):  # tasks of one operation may have one time
        strip.click(position={"x": box["width"] - 2, "y": 8})
        expect(deck.inspector).to_have_attribute("data-task", str(task))
    strip.click(position={"x": 2, "y": 8})
    expect(deck.inspector).to_have_attribute("data-task", str(created[0][1]))
    t = deck.data("t")
    for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", len(created) - 1), ("Home", 0)):
        page.keyboard.press(key)
        expect(deck.inspector).to_have_attribute("data-task", str(created[place][1]))
        expect(strip).to_have_attribute("aria-valuenow", str(place + 1))
        expect(strip).to_have_attribute("aria-valuetext", re.compile(rf"#{created[place][1]}$"))
    assert deck.data("t") == t, "these keys do not step"


def test_the_pointer_over_the_strip_names_the_nearest_task(page: Page, captured: ts.Run, with_times: Path) -> None:
    deck, created = opened(page, with_times), by_creation(captured)
    strip = strip_of(deck)
    ns, task = created[len(created) // 2]
    box = strip.bounding_box()
    assert box is not None
    strip.hover(position={"x": 2 + (box["width"] - 4) * ns / created[-1][0], "y": 8})
    tip = deck.root.locator(".frame > .tip.on")
    expect(tip).to_contain_text("first node")
    shown = re.search(r"#(\d+)", tip.inner_text())
    assert shown is not None
    pixel_ns = created[-1][0] / (box["width"] - 4)
    found = next(ns for ns, each in created if each == int(shown[1]))
    assert abs(found - ns) <= pixel_ns
    page.mouse.move(1, 1)
    expect(tip).to_have_count(0)
    assert task


def picture(deck: ShownDeck) -> str:
    deck.rests()
    found: str = deck.root.locator(".view > canvas").first.evaluate("canvas => canvas.toDataURL()")
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_graph_is_coloured_by_creation_and_back(page: Page, with_times: Path, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    deck = opened(page, with_times)
    button, plain = deck.root.get_by_role("button", name="colour by creation"), picture(deck)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    coloured = picture(deck)
    assert coloured != plain
    deck.key("n")
    expect(button).to_have_attribute("aria-pressed", "false")
    page.mouse.move(1, 1)
    assert picture(deck) == plain


def test_a_graph_without_times_says_so_and_shows_no_strip(page: Page, without_times: Path) -> None:
    deck = opened(page, without_times)
    expect(strip_of(deck)).to_have_count(0)
    says(deck.inspector.inner_text(), "created #")
    button = deck.root.get_by_role("button", name="colour by creation")
    expect(button).to_have_attribute("aria-disabled", "true")
    says(button.get_attribute("title"), "ts.capture()")
    deck.key("n")
    expect(button).to_have_attribute("aria-pressed", "false")
