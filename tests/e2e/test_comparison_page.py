"""The page of a comparison as a browser shows it: without a network, in either theme, on wide and narrow screens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, expect
from torch import nn

from tapescope.engine.recompute.plan_recompute import plan_recompute
from tapescope.engine.studies.compare import compare
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import says, says_none_of

from .chromium import trouble_of
from .figures import CUT_OR_OVERLAPPING, colour_of, focus, hover, opened
from .tab import Tab

pytestmark = pytest.mark.e2e


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
    return opened(tab, address, scheme, width)


def figure(page: Page, name: str) -> Locator:
    return page.locator(f"[data-figure={name}]")


def test_everything_is_drawn_and_nothing_is_fetched(page: tuple[Page, list[str]]) -> None:
    shown, trouble = page
    assert shown.locator(".plot:visible").count() == 3 and shown.locator(".tree:visible").count() == 1
    assert shown.locator("[role=tab][aria-selected=true]").inner_text().startswith("bfs")
    assert shown.locator("[data-figure=lifetimes-0] g[data-trace] > rect").count() >= 30
    assert trouble == []


@pytest.mark.parametrize("width", [400, 700, 1600])
def test_it_fits_any_width_with_text_of_one_size(tab: Tab, address: str, width: int) -> None:
    shown, trouble = opened(tab, address, "light", width)
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert shown.evaluate(CUT_OR_OVERLAPPING) == []
    heights = shown.evaluate(
        "[...document.querySelectorAll('.plot text')].map(each => each.getBoundingClientRect().height).filter(Boolean)"
    )
    assert len(heights) > 30 and min(heights) >= 11 and max(heights) <= 18
    assert trouble == []


UNNAMED_TILES = """() => [...document.querySelectorAll('.tree:not([hidden] *) i')].filter(tile => {
    const {width, height} = tile.getBoundingClientRect();
    const named = tile.classList.contains('in') ? 64 : 15;  // a lower title bar has no room for a name
    return width > 28 && height > named && !tile.querySelector('s').getClientRects().length;
}).map(tile => tile.textContent)"""


COVERED_NAMES = """() => [...document.querySelectorAll('.tree:not([hidden] *) i')].filter(tile => {
    const name = tile.querySelector('s');
    if (!name.getClientRects().length) return false;
    tile.scrollIntoView({block: 'center'});
    const {left, top} = name.getClientRects()[0];
    return document.elementFromPoint(left + 2, top + 12)?.closest('i') !== tile;
}).map(tile => tile.textContent)"""


def test_what_is_in_a_low_tile_covers_no_name(tab: Tab, tmp_path: Path) -> None:
    comparison = compare(workload("unet").build()[1], "heap", repetitions=1)
    page, _ = opened(tab, comparison.save_html(tmp_path / "page.html").as_uri(), "light", 1420)
    low = page.locator(".tree i.in").evaluate_all("all => all.filter(each => each.offsetHeight < 64).length")
    assert low and page.evaluate(COVERED_NAMES) == []


def test_each_tile_of_the_peak_has_its_name_and_says_what_is_in_it(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    tree = figure(shown, "peak-0")
    assert tree.locator("i").count() >= 5 and shown.evaluate(UNNAMED_TILES) == []
    inner = tree.locator("i:not(.in)").first
    hover(shown, inner)
    says(shown.locator(".tip").inner_text(), "MiB", "made by", "kept:", "freed")


def test_one_goes_into_a_tile_and_out_again(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    tree = figure(shown, "peak-0")
    before = tree.locator("i:visible").count()
    category = tree.locator("i.in").nth(1)
    category.click(position={"x": 20, "y": 6})
    whole = tree.bounding_box()
    assert whole is not None and category.bounding_box() == pytest.approx(whole, abs=1)
    assert tree.locator("i:visible").count() < before
    tree.focus()
    shown.keyboard.press("Escape")
    expect(tree.locator("i:visible")).to_have_count(before)


def test_the_tabs_show_one_policy_each_and_obey_arrow_keys(page: tuple[Page, list[str]]) -> None:
    shown, trouble = page
    shown.locator("[role=tab]", has_text="heap").click()
    assert shown.locator("[role=tabpanel]:visible").count() == 1
    assert "3.0 MiB" in shown.locator("#panel-2").inner_text()
    shown.keyboard.press("ArrowRight")
    assert shown.locator("[role=tab][aria-selected=true]").inner_text().startswith("bfs")
    assert shown.locator("#panel-0").is_visible() and not shown.locator("#panel-2").is_visible()
    assert trouble == []


def test_hovering_says_which_task_and_which_level_of_all_policies(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    hover(shown, figure(shown, "memory").locator(".plot"))
    told = shown.locator(".tip").inner_text()
    says(told, "bfs", "dfs", "heap", "of 104", "MiB")
    assert "Backward0 (linear, workload_models.py:" in told


def test_points_are_reached_with_the_keys(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    focus(shown, "memory")
    for _ in range(4):
        shown.keyboard.press("ArrowRight")
    says(shown.locator(".tip").inner_text(), "3 tasks", "4 of 104")
    shown.keyboard.press("Escape")
    assert not shown.locator(".tip").is_visible()
    focus(shown, "lifetimes-0")
    shown.keyboard.press("ArrowRight")
    says(shown.locator(".tip").inner_text(), "made by", "freed")


def test_a_part_is_seen_larger_and_the_whole_again(page: tuple[Page, list[str]]) -> None:
    shown, trouble = page
    memory = figure(shown, "memory")
    numbers = memory.locator(".ticks text")
    whole = numbers.all_text_contents()
    hover(shown, memory.locator(".plot"), 0.5)
    shown.mouse.down()
    hover(shown, memory.locator(".plot"), 0.75)
    shown.mouse.up()
    seen = [float(text) for text in numbers.all_text_contents()]
    assert 50 <= seen[0] < seen[-1] <= 79 and memory.locator(".reset").is_visible()
    hover(shown, memory.locator(".plot"), 0.98)
    says(shown.locator(".tip").inner_text(), "of 104")
    assert "78 of 104" in shown.locator(".tip").inner_text()
    box = memory.locator(".plot").bounding_box()
    assert box is not None
    shown.mouse.dblclick(box["x"] + 50, box["y"] + 60)
    assert numbers.all_text_contents() == whole and not memory.locator(".reset").is_visible()
    memory.locator(".room").focus()
    shown.keyboard.press("+")
    assert numbers.all_text_contents() != whole
    memory.locator(".reset").click()
    assert numbers.all_text_contents() == whole
    assert trouble == []


def test_a_legend_hides_a_policy_with_the_mark_of_its_peak(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    memory = figure(shown, "memory")
    button = memory.locator(".legend button", has_text="bfs")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert memory.locator("g.off").count() == 2
    hover(shown, memory.locator(".plot"))
    says_none_of(shown.locator(".tip").inner_text(), "bfs")
    button.click()
    assert memory.locator("g.off").count() == 0
    memory.locator(".legend button", has_text="heap").dblclick()
    (left,) = memory.locator(".legend button[aria-pressed=true]").all_inner_texts()
    says(left, "heap", "3.0 MiB")


def test_stacked_categories_come_down_where_one_is_hidden(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    category = figure(shown, "category-0")
    areas = category.locator("g[data-trace] svg[preserveAspectRatio] path:not([stroke])")
    boxes = "all => all.map(each => each.getBBox()).flatMap(box => [box.y, box.height])"  # tenths of pixels
    before = areas.evaluate_all(boxes)
    first = category.locator(".legend button").first
    first.click()
    _, _, *others = areas.evaluate_all(boxes)
    floor = 10 * float(category.locator(".plot").get_attribute("data-bottom") or 0)
    assert max(top + height for top, height in zip(others[::2], others[1::2], strict=True)) == floor
    first.click()
    assert areas.evaluate_all(boxes) == pytest.approx(before, abs=2), "as it was before any script ran"


def test_figures_follow_the_readers_theme_and_are_printed_light(page: tuple[Page, list[str]]) -> None:
    shown, _ = page
    line = figure(shown, "memory").locator("g[data-trace='0'] path")
    found = {}
    for scheme in ("light", "dark"):
        shown.emulate_media(color_scheme=scheme)
        found[scheme] = colour_of(line)
    assert found == {"light": "rgb(194, 59, 16)", "dark": "rgb(255, 127, 85)"}
    shown.emulate_media(color_scheme="dark", media="print")
    assert colour_of(line) == found["light"]
    shown.emulate_media(media="screen")


def test_a_finger_reads_a_point_and_a_tile(browser: Browser, address: str) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 800}, has_touch=True)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    plot = figure(page, "memory").locator(".plot")
    plot.scroll_into_view_if_needed()
    plot.tap()
    says(page.locator(".tip").inner_text(), "bfs", "dfs", "heap", "of 104")
    tree = figure(page, "peak-0")
    category = tree.locator("i.in").nth(1)
    for _ in range(2):
        category.tap(position={"x": 20, "y": 6})
    assert category.bounding_box() == pytest.approx(tree.bounding_box(), abs=1)
    context.close()


def test_without_scripts_all_policies_can_be_read(browser_without_scripts: Page, address: str) -> None:
    browser_without_scripts.goto(address)
    assert browser_without_scripts.locator("[role=tabpanel]:visible").count() == 3
    assert browser_without_scripts.locator(".plot:visible").count() == 7


@pytest.mark.parametrize(("scheme", "width"), [pytest.param("light", 1200, marks=pytest.mark.slow), ("dark", 600)])
def test_a_recomputed_row_is_drawn_as_measured_and_as_predicted(
    tab: Tab, tmp_path: Path, scheme: str, width: int
) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.GELU()) for _ in range(3)])
    x = torch.ones(64, 32)

    def make_loss() -> torch.Tensor:
        return model(x).pow(2).mean()  # type: ignore[no-any-return]

    plan = plan_recompute(make_loss, 0.8, seconds=0.1, repetitions=1)
    comparison = compare(make_loss, "heap", recompute=plan, repetitions=1)
    page = tab.open(color_scheme=scheme, viewport={"width": width, "height": 900})
    trouble = trouble_of(page)
    page.goto(comparison.save_html(tmp_path / "page.html").as_uri())
    drawn = page.locator("[data-figure=recomputed-1]")
    names = ["heap", "heap, recomputed", "heap, predicted", "heap, recomputed, predicted"]
    assert drawn.locator(".legend button").all_inner_texts() == names
    lines = drawn.locator("g[data-trace] path")
    assert lines.count() == 4
    ways = [line.get_attribute("d") for line in lines.all()]
    assert ways[0] != ways[1], "with and without the plan"
    colours = [colour_of(line) for line in lines.all()]
    assert len(set(colours)) == 3 and colours[2] == colours[3]
    assert page.locator("h2", has_text="By module").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.leave()
    assert trouble == []
