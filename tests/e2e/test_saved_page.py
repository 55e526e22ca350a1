"""A saved deck as a browser opens it from disk: it plays without a kernel, and asks for nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

import tapescope as ts
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.planning.policies import find_policy
from tapescope.engine.planning.simulate import simulate
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots, says
from tapescope.widgets.deck.page_data import Document, schedule_content
from tapescope.widgets.deck.save_deck import save_page

from .chromium import trouble_of
from .tab import Tab

pytestmark = pytest.mark.e2e

TITLE = "<script>document.title='taken'</script>"
BYTES = "row => Number(row.dataset.bytes)"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with ts.capture():
        loss = workload("linear50").build()[1]()
    graph = ts.graph(loss)
    document = Document(graph, TITLE, "direct")
    footprints = dry_run(graph)
    for policy in ("bfs", "heap"):
        timeline = simulate(graph, policy, footprints)
        document.content["schedules"].append(
            schedule_content(graph, find_policy(policy), timeline.order, timeline=timeline)
        )
    return save_page(document.packed(), tmp_path_factory.mktemp("deck") / "deck.html", TITLE)


SIZE = {"width": 1400, "height": 1200}


@contextmanager
def nothing_goes_wrong(page: Page, saved: Path) -> Iterator[Page]:
    """Opens the file, which may not ask for another one."""
    trouble = trouble_of(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(saved.as_uri())
    yield page
    assert trouble == []
    assert {url for url in asked if not url.startswith("blob:")} == {saved.as_uri()}


@pytest.fixture
def page(tab: Tab, saved: Path) -> Iterator[Page]:
    with nothing_goes_wrong(tab.open(viewport=SIZE), saved) as page:
        yield page


def test_it_plays_and_scrubs(page: Page) -> None:
    deck = page.locator(".tapescope-deck .deck")
    expect(deck).to_have_attribute("data-policy", "bfs")
    expect(deck).to_have_attribute("data-t", "0")
    deck.focus()
    page.keyboard.press("ArrowRight")
    expect(deck).to_have_attribute("data-t", "1")
    page.locator("input.position").fill("54")
    expect(deck).to_have_attribute("data-t", "54")
    assert page.title() == f"{TITLE} · tapescope"


def test_memory_and_lifetimes_follow_the_cursor(page: Page) -> None:
    slider = page.locator("input.position")
    buffers = page.locator(".lg [data-category=buffer]")
    slider.fill("53")
    peak = int(buffers.get_attribute("data-bytes") or 0)
    says(slider.get_attribute("aria-valuetext"), "54th", 104)
    assert peak > 50 * 2**20
    said = page.locator(".time canvas[role=img]").get_attribute("aria-label") or ""
    says(said, "104 tasks", "51.0 MiB", "54th")
    slider.fill("1")
    assert buffers.evaluate(BYTES) < peak / 10
    rows = page.locator(".lives li")
    assert 3 <= rows.count() <= 12
    first = rows.first.bounding_box()
    box = page.locator(".time").bounding_box()
    assert first is not None and box is not None
    middle = {"x": box["width"] / 2, "y": first["y"] + first["height"] / 2 - box["y"]}
    page.locator(".time").hover(position=middle)
    expect(page.locator(".memory .tot")).to_have_attribute("title", re.compile("[0-9]+[a-z]{2} task"))
    expect(page.locator(".time .tip.on")).to_contain_text("50 × AddmmBackward0")
    page.locator(".time").click(position=middle)
    at = int(page.locator(".deck").get_attribute("data-t") or 0)
    assert abs(at - 104 / 2) < 10, "a click shows the task that is under the pointer"


def test_without_javascript_it_says_so(browser: Browser, saved: Path) -> None:
    with (
        closing(browser.new_page(viewport=SIZE, java_script_enabled=False)) as blank,
        nothing_goes_wrong(blank, saved) as page,
    ):
        expect(page.get_by_text("JavaScript")).to_be_visible()


@pytest.mark.parametrize("missing", ["DecompressionStream", "Array.prototype.toSorted"])
def test_an_old_browser_is_told(browser: Browser, saved: Path, missing: str) -> None:
    with closing(browser.new_page(viewport=SIZE)) as blank, nothing_goes_wrong(blank, saved) as page:
        expect(page.locator("#said")).to_be_hidden()
        page.add_init_script(f"delete {missing}")
        page.reload()
        expect(page.locator("#said")).to_contain_text("Chrome 110")


@pytest.mark.parametrize("share", [0.1, 0.6, 0.9999])
def test_a_file_that_was_cut_off_says_so(tab: Tab, saved: Path, tmp_path: Path, share: float) -> None:
    content = saved.read_bytes()
    cut = tmp_path / "cut.html"
    cut.write_bytes(content[: int(share * (len(content) - 200))])
    page = tab.open(viewport=SIZE)
    page.goto(cut.as_uri())
    expect(page.locator("#said")).to_be_visible()
    expect(page.locator("#said")).to_contain_text("incomplete")


def test_without_statistics_a_gradient_is_not_said_to_be_empty(tab: Tab, tmp_path: Path, snapshot: Snapshots) -> None:
    with ts.capture():
        loss = workload("linear50").build()[1]()
    path = tmp_path / "deck.html"
    ts.backward(loss, trace="off").save_html(path)
    page = tab.open(viewport=SIZE)
    page.goto(path.as_uri())
    snapshot("page", page.locator("[data-gradient='in 0']").inner_text())
    expect(page.locator("[data-part='gradients-in']")).to_contain_text(re.compile('trace="full".*ts.profile'))


@pytest.mark.parametrize("trace", [None, "full"])
def test_where_gradients_were_not_recorded_the_inspector_says_what_records_them(
    tab: Tab, tmp_path: Path, trace: Literal["full"] | None
) -> None:
    path = tmp_path / "deck.html"
    ts.profile(workload("linear50").build()[1], trace=trace).save_html(path)
    page = tab.open(viewport=SIZE)
    page.goto(path.as_uri())
    gradients = page.locator("[data-part='gradients-in']")
    expect(gradients).to_contain_text("norm" if trace else "4 B")
    expect(gradients.get_by_text('trace="full"')).to_have_count(0 if trace else 1)
