"""The slider through recompute plans, as a browser shows it: offline, in either theme, without a kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page
from torch import nn

import tapescope as ts
from tapescope.engine.recompute.planned_recompute import PlanFrontier
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import says

from .tab import Tab
from .theme_around import expect_theme_of_the_page_around

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def frontier() -> PlanFrontier:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)])
    x = torch.ones(64, 32)
    return ts.plan_recompute(lambda: model(x).sum(), 0.8, seconds=0.1, repetitions=1).explore(0.2)


@pytest.fixture(params=[("light", 1400), ("dark", 700)], ids=lambda value: f"{value[0]}-{value[1]}")
def page(tab: Tab, frontier: PlanFrontier, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Page, list[str]]:
    """The page, and what went wrong on it or over the network."""
    scheme, width = request.param
    address = frontier.save_html(
        tmp_path / "page.html", "<b>&mine", {"<i>measured": frontier.explored.timeline}
    ).as_uri()
    page = tab.open(color_scheme=scheme, viewport={"width": width, "height": 900})
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda found: trouble.append(found.url) if found.url != address else None)
    page.goto(address)
    page.wait_for_selector(".ts-frontier[data-ready] .planned")
    return page, trouble


def test_the_slider_redraws_curve_figures_and_tables(page: tuple[Page, list[str]], frontier: PlanFrontier) -> None:
    shown, trouble = page
    slider = shown.locator("input[type=range]")
    slider.focus()
    shown.keyboard.press("Home")
    peak, fates = shown.locator(".figures b").first, shown.locator(".moving .fate")
    assert "100 %" in shown.locator(".figures").inner_text() and shown.locator(".recomputed").count() == 0
    assert shown.locator(".planned").get_attribute("d") == shown.locator(".plain").get_attribute("d")
    nothing_dropped = fates.all_text_contents()
    before, seen = peak.inner_text(), set()
    for _ in frontier.plans[1:]:
        shown.keyboard.press("ArrowRight")
        seen.add(shown.locator(".planned").get_attribute("d"))
    assert len(seen) == len(frontier.plans) - 1, "a curve for each plan"
    assert peak.inner_text() != before and shown.locator(".recomputed").count() > 0
    assert set(fates.all_text_contents()) - set(nothing_dropped), "some are dropped"
    says(shown.locator(".said").inner_text(), *(size_text(frontier.plans[each].peak_bytes) for each in (0, -1)))
    shown.locator(".dot").first.click()
    assert slider.input_value() == "0"
    assert shown.locator("h1").inner_text() == "<b>&mine" and "<i>measured" in shown.locator(".key").first.inner_text()
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert trouble == []


def test_hovering_the_curve_tells_the_task_and_its_levels(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    shown.locator(".charts svg").first.hover()
    told = shown.locator(".told").inner_text()
    assert "Backward0" in told and len(re.findall(r"\d [KM]?i?B\b", told)) == 3


OVERLAPS = """() => [...document.querySelectorAll('.charts svg')].flatMap(svg => {
    const texts = [...svg.querySelectorAll('text:not(.strong)')];
    const boxes = texts.map(text => [text.textContent, text.getBoundingClientRect()]);
    return boxes.flatMap(([name, box], at) => boxes.slice(at + 1)
        .filter(([, other]) => box.left < other.right && other.left < box.right && box.top < other.bottom
            && other.top < box.bottom)
        .map(([other]) => `${name} on ${other}`));
})"""


@pytest.mark.parametrize("width", [1600, 1000, 600, 340])
def test_no_label_lies_on_another_and_none_is_cut(tab: Tab, frontier: PlanFrontier, tmp_path: Path, width: int) -> None:
    shown = tab.open(viewport={"width": width, "height": 900})
    shown.goto(frontier.save_html(tmp_path / "page.html").as_uri())
    shown.wait_for_selector(".ts-frontier[data-ready] .planned")
    for key in ("Home", "End"):
        shown.locator("input[type=range]").press(key)
        assert shown.evaluate(OVERLAPS) == []
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    slider = shown.locator("input[type=range]").bounding_box()
    assert slider is not None and slider["width"] > 200, "long enough to choose one of many plans"
    edges = shown.evaluate("""() => [...document.querySelectorAll('.charts svg')].map(svg => {
        const box = svg.getBoundingClientRect(), section = svg.closest('section').getBoundingClientRect();
        const texts = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect());
        return texts.every(text => text.left >= section.left && text.right <= section.right);
    })""")
    assert edges == [True, True]


def test_the_theme_is_that_of_the_page_around(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    expect_theme_of_the_page_around(shown, ".ts-frontier")
