"""The page of a comparison as a browser shows it: without a network, in either theme, on wide and narrow screens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page
from torch import nn

from tapescope.engine.mirroring.plan_recompute import plan_recompute
from tapescope.engine.studies.compare import compare
from tapescope.engine.workloads.workloads import workload
from tapescope.tests.says import says

from .chromium import trouble_of
from .tab import Tab

pytestmark = pytest.mark.e2e

OVERLAPS = """() => {
    const boxes = [...document.querySelectorAll('.figure:not([hidden] *) .annotation-text')]
        .map(text => [text.textContent, text.getBoundingClientRect(), text.closest('.figure').getBoundingClientRect()]);
    return boxes.flatMap(([name, box, figure], index) => [
        ...(box.right > figure.right + 1 || box.left < figure.left - 1 ? [name + ' is cut'] : []),
        ...boxes.slice(index + 1).filter(([, other]) =>
            box.left < other.right && other.left < box.right && box.top + 2 < other.bottom && other.top + 2 < box.bottom
        ).map(([other]) => name + ' overlaps ' + other),
    ]);
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    comparison = compare(workload("linear50").build()[1])
    return comparison.save_html(tmp_path_factory.mktemp("page") / "page.html").as_uri()


@pytest.fixture(
    params=[("light", 1280), pytest.param(("dark", 700), marks=pytest.mark.slow)],
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
    page.wait_for_selector("#panel-0 [data-drawing=lifetimes-0] .barlayer .point")
    return page, trouble


def test_everything_is_drawn_and_nothing_is_fetched(page: tuple[Page, list[str]]) -> None:
    shown, trouble = page
    assert shown.locator(".figure .main-svg").count() >= 4
    assert shown.locator("[role=tab][aria-selected=true]").inner_text().startswith("bfs")
    assert shown.evaluate(OVERLAPS) == []
    buttons = shown.locator(".modebar-btn").evaluate_all("all => all.map(each => each.dataset.title)")
    assert set(buttons) == {"Zoom", "Pan", "Reset axes"}, "none that leads to a server"
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert trouble == []


UNNAMED_TILES = """() => [...document.querySelectorAll('.figure:not([hidden] *) .treemaplayer .slice')].filter(tile => {
    const area = tile.querySelector('path').getBoundingClientRect();
    const text = tile.querySelector('.slicetext')?.getBoundingClientRect();
    return area.width > 8 && area.height > 8 && !(text?.width > 0);
}).map(tile => tile.textContent || 'a tile without a text')"""


def test_each_tile_of_the_peak_has_its_name(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    shown.wait_for_selector("#panel-0 .treemaplayer .slice .slicetext")
    shown.wait_for_function(f"({UNNAMED_TILES})().length === 0")
    assert shown.locator("#panel-0 .treemaplayer .slice").count() >= 5
    assert shown.evaluate(UNNAMED_TILES) == []


def test_the_tabs_show_one_policy_each_and_obey_arrow_keys(page: tuple[Page, list[str]]) -> None:
    shown, trouble = page
    shown.locator("[role=tab]", has_text="heap").click()
    shown.wait_for_selector("#panel-2 [data-drawing=lifetimes-2] .barlayer .point")
    assert shown.locator("[role=tabpanel]:visible").count() == 1
    assert "3.0 MiB" in shown.locator("#panel-2").inner_text()
    shown.keyboard.press("ArrowRight")
    assert shown.locator("[role=tab][aria-selected=true]").inner_text().startswith("bfs")
    assert shown.locator("#panel-0").is_visible() and not shown.locator("#panel-2").is_visible()
    assert trouble == []


def test_hovering_says_which_task_and_which_level(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    plot = shown.locator("[data-drawing=memory] .nsewdrag").bounding_box()
    assert plot is not None
    shown.mouse.move(plot["x"] + plot["width"] * 0.5, plot["y"] + plot["height"] * 0.5)
    shown.wait_for_selector("[data-drawing=memory] .hoverlayer text")
    told = " ".join(shown.locator("[data-drawing=memory] .hoverlayer text").all_text_contents())
    says(told, 104, "linear", "workload_models.py:", "MiB")
    assert "Backward0 (" in told


def test_figures_follow_the_readers_theme(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    colour = "getComputedStyle(document.querySelector('[data-drawing=memory] .main-svg')).backgroundColor"
    found = {}
    for scheme in ("light", "dark"):
        shown.emulate_media(color_scheme=scheme)
        shown.wait_for_function(f"{colour} === getComputedStyle(document.querySelector('main')).backgroundColor")
        found[scheme] = shown.evaluate(colour)
    assert found == {"light": "rgb(255, 255, 255)", "dark": "rgb(24, 25, 29)"}


@pytest.mark.parametrize(("scheme", "width"), [pytest.param("light", 1200, marks=pytest.mark.slow), ("dark", 600)])
def test_a_mirrored_row_is_drawn_as_measured_and_as_predicted(
    tab: Tab, tmp_path: Path, scheme: str, width: int
) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.GELU()) for _ in range(3)])
    x = torch.ones(64, 32)

    def make_loss() -> torch.Tensor:
        return model(x).pow(2).mean()  # type: ignore[no-any-return]

    plan = plan_recompute(make_loss, 0.8, seconds=0.1, repetitions=1)
    comparison = compare(make_loss, "heap", recompute=plan, repetitions=1)
    page = tab.open(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
    trouble = trouble_of(page)
    page.goto(comparison.save_html(tmp_path / "page.html").as_uri())
    figure = page.locator("[data-drawing=mirrored-1]")
    figure.locator(".legendtext").first.wait_for()
    names = ["heap", "heap, mirrored", "heap, predicted", "heap, mirrored, predicted"]
    assert figure.locator(".legendtext").all_text_contents() == names
    lines = figure.locator(".scatterlayer .js-line")
    assert lines.count() == 4
    ways = [line.get_attribute("d") for line in lines.all()]
    assert ways[0] != ways[1], "with and without the plan"
    colours = lines.evaluate_all("all => all.map(each => getComputedStyle(each).stroke)")
    assert len(set(colours)) == 3 and colours[2] == colours[3]
    assert page.locator("h2", has_text="By module").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.leave()
    assert trouble == []
