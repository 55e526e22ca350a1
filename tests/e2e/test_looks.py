"""What is seen of a page: names cut where they say least, and on paper what is on the screen."""

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
    page.set_viewport_size({"width": 1420, "height": 900})
    page.goto(gpt.as_uri())
    deck = ShownDeck(page)
    deck.scrub(75)
    deck.rests()
    paths = deck.root.locator(".row .end").evaluate_all(
        """all => all.filter(each => each.scrollWidth > each.clientWidth).map(each => {
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
