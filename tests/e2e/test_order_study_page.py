"""The page of a study of orders as a browser shows it: offline, in either theme, on wide and narrow screens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import Page

from tapescope.engine.studies.order_study import order_study
from tapescope.engine.workloads.workloads import workload
from tapescope.tests.says import says

from .tab import Tab

pytestmark = pytest.mark.e2e

BARS = """panel => [...document.querySelectorAll(`[data-drawing=ratios] .subplot.${panel} .barlayer .point path`)]
    .map(bar => bar.getBoundingClientRect()).map(box => [box.left, box.width])"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    linear = replace(workload("linear50"), small={"uses": 50, "width": 64, "batch": 2})
    ensemble = replace(
        workload("ensemble"),
        small={"members": 3, "layers": 3, "batch": 4, "width": 8, "separate_inputs": 0},
        name="<b>&ensemble",
    )
    small = {**workload("two_devices").small, "width": 32, "batch": 8, "far_layers": 3, "near_layers": 3}
    study = order_study([linear, ensemble, replace(workload("two_devices"), small=small)], repetitions=2)
    return study.save_html(tmp_path_factory.mktemp("page") / "page.html").as_uri()


@pytest.fixture(
    params=[pytest.param(("light", 1400), marks=pytest.mark.slow), ("dark", 800)],
    ids=lambda value: f"{value[0]}-{value[1]}",
)
def page(tab: Tab, address: str, request: pytest.FixtureRequest) -> tuple[Page, list[str]]:
    """The page, and what went wrong on it or over the network."""
    scheme, width = request.param
    page = tab.open(color_scheme=scheme, viewport={"width": width, "height": 900})
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda found: trouble.append(found.url) if found.url != address else None)
    page.goto(address)
    page.wait_for_selector("[data-drawing=ratios] .subplot.x2y .barlayer .point")
    return page, trouble


def test_the_page_shows_table_and_bars_and_fetches_nothing(page: tuple[Page, list[str]]) -> None:
    shown, trouble = page
    assert shown.locator("tbody th b").all_text_contents() == ["linear50", "<b>&ensemble", "two_devices"]
    assert shown.locator("thead th b").all_text_contents() == ["bfs", "dfs", "heap"]
    labels = shown.locator("[data-drawing=ratios] .ytick text").all_text_contents()
    assert labels == ["linear50", "<b>&ensemble", "two_devices"], "a name is text"
    peaks = shown.evaluate(BARS, "xy")
    assert len(peaks) == 6 and peaks[0][1] > 40 and max(width for _, width in peaks[1:]) < 2
    assert len(shown.evaluate(BARS, "x2y")) == 6
    assert shown.locator(".subplot.x2y .errorbar").count() == 6
    assert shown.locator("[data-drawing='makespan two_devices'] .barlayer .point").count() > 20
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert trouble == []


def test_hovering_a_bar_tells_all_its_numbers(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    shown.locator(".subplot.xy .barlayer .point path").first.hover(force=True)
    shown.wait_for_selector("[data-drawing=ratios] .hoverlayer text")
    told = " ".join(shown.locator("[data-drawing=ratios] .hoverlayer text").all_text_contents())
    assert told.startswith("bfs on linear50")
    says(told, 51)
