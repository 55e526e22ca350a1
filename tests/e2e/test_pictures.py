"""The pictures as a browser draws them: its fonts, not our table of widths, decide whether a label fits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page

import tapescope as ts
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.inspector.graph.graph import Fold

from .tab import Tab

pytestmark = pytest.mark.e2e

LABELS_OUTSIDE = """() => [...document.querySelectorAll('[data-task], .ts-stub, .ts-card, .ts-box')].flatMap(group => {
    const box = group.querySelector('rect').getBoundingClientRect();
    return [...group.querySelectorAll(':scope > text')].filter(text => {
        const label = text.getBoundingClientRect();
        return label.left < box.left || label.right > box.right || label.top < box.top || label.bottom > box.bottom;
    }).map(text => text.textContent);
})"""


def graph_of(name: str) -> ts.Graph:
    _, make_loss = WORKLOADS[name].build()
    with ts.capture():
        loss = make_loss()
    return ts.graph(loss)


def open_picture(tab: Tab, svg: str, scheme: Literal["light", "dark"] = "light") -> tuple[Page, list[str]]:
    """A page with the picture, and what went wrong or over the network on it."""
    page = tab.open(color_scheme=scheme)
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: trouble.append(request.url))
    page.set_content(f"<body style='margin:0'>{svg}</body>")
    return page, trouble


QUICK = ("resnet50", "lstm_cell", "unet", "recommender", "ensemble")


@pytest.mark.parametrize("fold", ["repeats", "none", 0])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in WORKLOADS if name != "mlp_norm"],
)
def test_every_label_fits_its_box(tab: Tab, name: str, fold: Fold) -> None:
    page, trouble = open_picture(tab, graph_of(name).to_svg(fold=fold))
    assert page.locator("[data-task], .ts-card").count() > 0
    assert page.evaluate(LABELS_OUTSIDE) == []
    tab.leave()
    assert trouble == []


def test_the_theme_follows_the_reader_and_can_be_forced(tab: Tab) -> None:
    graph = graph_of("unet")
    backgrounds = {}
    for theme in ("auto", "light", "dark"):
        for scheme in ("light", "dark"):
            page, _ = open_picture(tab, graph.to_svg(theme=theme), scheme)
            backgrounds[theme, scheme] = page.evaluate("getComputedStyle(document.querySelector('.ts-page')).fill")
    light, dark = backgrounds["auto", "light"], backgrounds["auto", "dark"]
    assert light != dark
    assert backgrounds["light", "dark"] == backgrounds["light", "light"] == light
    assert backgrounds["dark", "light"] == backgrounds["dark", "dark"] == dark


def test_a_picture_opened_as_a_file_is_drawn(tab: Tab, tmp_path: Path) -> None:
    path = graph_of("linear50").save_svg(tmp_path / "backward.svg")
    page = tab.open()
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.tagName") == "svg"
    assert page.locator("[data-task]").count() > 100
