"""The appearance of pages: names are cut where they say least, and print shows the same as the screen."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page, expect
from torch import nn

import tapescope as ts
from tapescope.engine.studies.workloads import workload

from .shown import ShownDeck
from .tab import Tab

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    _, make_loss = workload("gpt2").build(layers=4)
    return ts.profile(make_loss).save_html(tmp_path_factory.mktemp("looks") / "gpt.html")


@pytest.fixture
def page(tab: Tab) -> Page:
    return tab.open(viewport={"width": 1000, "height": 700})


def test_a_path_keeps_its_end(page: Page, gpt: Path) -> None:
    page.set_viewport_size({"width": 580, "height": 900})
    page.goto(gpt.as_uri())
    deck = ShownDeck(page)
    deck.scrub(75)
    deck.rests()
    paths = deck.root.locator(".row .end").evaluate_all(
        """all => all.filter(each => {
            each.firstChild.prepend('a.module.with.a.long.path.');
            return each.scrollWidth > each.clientWidth;
        }).map(each => {
            const [outer, inner] = [each, each.firstChild].map(found => found.getBoundingClientRect());
            return Math.abs(outer.right - inner.right);
        })"""
    )
    assert paths and max(paths) < 8


def test_lifetimes_whose_paths_end_alike_are_told_apart_where_there_is_less_room(page: Page, tmp_path: Path) -> None:
    names = ("encoder", "decoder")
    model = nn.Sequential(OrderedDict((name, nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0)) for name in names))
    run = ts.profile(lambda: model(torch.ones(8, 8, 16)).sum())
    page.set_viewport_size({"width": 916, "height": 900})
    page.goto(run.save_html(tmp_path / "alike.html").as_uri())
    deck = ShownDeck(page)
    paths = deck.root.locator(".lives .m").evaluate_all(
        "all => all.map(each => [each.innerText, each.scrollWidth > each.clientWidth])"
    )
    assert {"encoder…self_attn", "decoder…self_attn"} < {path for path, _ in paths}
    assert not any(is_cut for _, is_cut in paths)


def test_peaks_stand_with_the_policies_as_far_as_there_is_room(page: Page, gpt: Path) -> None:
    page.set_viewport_size({"width": 1600, "height": 800})
    page.goto(gpt.as_uri())
    deck = ShownDeck(page)
    tabs = deck.root.get_by_role("tablist", name="policy")
    peaks = tabs.locator("i:visible")
    expect(peaks).to_have_count(4)
    deck.root.locator(".brand span").evaluate("name => { name.textContent = 'WhisperForConditionalGeneration'; }")
    for width in (1420, 1300, 1240):
        page.set_viewport_size({"width": width, "height": 800})
        expect(peaks).not_to_have_count(4)
        assert tabs.evaluate("list => list.scrollWidth <= list.clientWidth")


def test_below_1200_pixels_peaks_stand_with_the_policies_and_a_search_covers_none(page: Page, gpt: Path) -> None:
    page.set_viewport_size({"width": 1010, "height": 760})
    page.goto(gpt.as_uri())
    deck = ShownDeck(page)
    tabs = deck.root.get_by_role("tablist", name="policy")
    expect(tabs.locator("i:visible")).not_to_have_count(0)
    deck.key("/")  # the field is an icon until it has the focus
    boxes = [deck.root.locator(each).bounding_box() for each in (".policies", ".search .field")]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    assert boxes[1]["width"] >= 264


def test_a_sentence_about_the_peak_wraps_where_it_is_too_long_for_a_line(page: Page, gpt: Path) -> None:
    for width, lines in ((1600, 1), (600, 2)):
        page.set_viewport_size({"width": width, "height": 760})
        page.goto(gpt.as_uri())
        deck = ShownDeck(page)
        peak = deck.root.locator(".peak")
        height = peak.bounding_box()["height"]
        assert (height > 20) == (lines == 2)
        assert peak.evaluate("each => each.scrollHeight <= each.clientHeight + 1"), "nothing is cut"


def test_on_paper_is_what_is_on_the_screen(page: Page, gpt: Path) -> None:
    page.set_viewport_size({"width": 1420, "height": 900})
    page.goto(gpt.as_uri())
    deck = ShownDeck(page)
    box = deck.root.bounding_box()
    assert box is not None
    paper = page.pdf(prefer_css_page_size=True, print_background=True)
    sizes = re.findall(rb"/MediaBox\s*\[\s*0\s+0\s+([\d.]+)\s+([\d.]+)", paper)
    assert len(sizes) == 1
    points = [0.75 * box["width"], 0.75 * box["height"]]
    assert [float(each) for each in sizes[0]] == pytest.approx(points, abs=2)
    assert deck.evaluate("root => root.style.width") == ""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A comparison, a loop and a recompute frontier as pages."""
    folder = tmp_path_factory.mktemp("family")
    model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)])
    x = torch.ones(8, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ts.training(model, optimizer) as training:
        for _ in range(40):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    frontier = ts.plan_recompute(lambda: model(x).sum(), 0.8, seconds=0.1, repetitions=1).explore(0.2)
    return {
        "compare": ts.compare(lambda: model(x).sum()).save_html(folder / "compare.html"),
        "loop": training.save_html(folder / "loop.html"),
        "frontier": frontier.save_html(folder / "frontier.html"),
    }


@pytest.mark.parametrize("name", ["compare", "loop", "frontier"])
def test_other_pages_are_printed_at_their_width(page: Page, pages: dict[str, Path], name: str) -> None:
    page.set_viewport_size({"width": 1420, "height": 900})
    page.goto(pages[name].as_uri())
    frame = page.locator("main, .ts-loop, .ts-frontier").first
    box = frame.bounding_box()
    assert box is not None and box["width"] > 1200
    paper = page.pdf(prefer_css_page_size=True, print_background=True)
    sizes = re.findall(rb"/MediaBox\s*\[\s*0\s+0\s+([\d.]+)\s+([\d.]+)", paper)
    widths = {float(width) for width, _ in sizes}
    assert len(widths) == 1
    assert widths.pop() == pytest.approx(0.75 * (box["width"] + 16), abs=2)
    if name == "loop":
        assert len(sizes) == 1


@pytest.mark.parametrize("name", ["compare", "loop", "frontier"])
def test_all_pages_have_the_logo_and_the_choice_of_theme(
    page: Page, gpt: Path, pages: dict[str, Path], name: str
) -> None:
    logo = """each => [...each.querySelectorAll('circle, path')].map(
        part => part.getAttribute('d') ?? part.getAttribute('r'))"""
    page.goto(gpt.as_uri())
    deck = page.locator(".brand svg").evaluate(logo)
    page.goto(pages[name].as_uri())
    header = page.locator("header")
    assert header.locator("> svg").evaluate(logo) == deck
    theme = header.get_by_role("button", name=re.compile("^theme"))
    ink = "() => getComputedStyle(document.querySelector('main, .ts-loop, .ts-frontier')).getPropertyValue('--ink')"
    found = []
    for _ in range(3):  # light, dark, and that of the page again
        theme.click()
        found.append(page.evaluate(ink))
    assert found[0] == found[2] != found[1]
