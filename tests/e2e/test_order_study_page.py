"""The page of a study of orders as a browser shows it: offline, in either theme, on wide and narrow screens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import Page

from tapescope.engine.studies.order_study import order_study
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import says

from .figures import CUT_OR_OVERLAPPING, hover, opened
from .tab import Tab

pytestmark = pytest.mark.e2e

BARS = """axis => [...document.querySelectorAll(`[data-figure=ratios] [data-axis=${axis}] g > rect`)]
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
    return opened(tab, address, *request.param)


def test_the_page_shows_table_and_bars_and_fetches_nothing(page: tuple[Page, list[str]]) -> None:
    shown, trouble = page
    assert shown.locator("tbody th b").all_text_contents() == ["linear50", "<b>&ensemble", "two_devices"]
    assert shown.locator("thead th b").all_text_contents() == ["bfs", "dfs", "heap"]
    labels = shown.locator("[data-figure=ratios] .plot > text").all_text_contents()
    assert labels[:3] == ["linear50", "<b>&ensemble", "two_devices"], "a name is text"
    peaks = shown.evaluate(BARS, "x")
    assert len(peaks) == 6 and peaks[0][1] > 40 and max(width for _, width in peaks[1:]) < 2
    assert len(shown.evaluate(BARS, "x2")) == 6
    assert shown.locator("[data-axis=x2] g > line").count() == 3 * 6, "a whisker, and its two ends"
    assert shown.locator("[data-figure='makespan two_devices'] g > rect").count() > 20
    assert shown.evaluate(CUT_OR_OVERLAPPING) == []
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert trouble == []


def test_hovering_a_bar_tells_all_its_numbers(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    hover(shown, shown.locator("[data-figure=ratios] [data-axis=x] g > rect").first)
    says(shown.locator(".tip").inner_text(), "bfs", "linear50", "longest queue 51")
