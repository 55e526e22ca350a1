"""The slider through recompute plans in a notebook's output: it moves with the mouse, and follows the theme."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tapescope.inspector.text.sizes_and_counts import size_text

from .lab import Notebook

pytestmark = pytest.mark.e2e

FRONTIER = """
import torch, tapescope as ts
from torch import nn

layers = nn.Sequential(*[nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)])
rows = torch.ones(64, 32)
frontier = ts.plan_recompute(lambda: layers(rows).sum(), 0.8, seconds=0.1, repetitions=1).explore(0.2)
"""
INK = "path => getComputedStyle(path).stroke"


@pytest.fixture
def shown(notebook: Notebook) -> Locator:
    notebook.kernel(FRONTIER)
    notebook.run("frontier")
    shown = notebook.page.locator(".jp-OutputArea .ts-frontier[data-ready]")
    expect(shown).to_be_visible()
    return shown


def test_dragging_the_slider_redraws_the_curve_while_it_moves(notebook: Notebook, shown: Locator) -> None:
    slider, curve = shown.locator("input[type=range]"), shown.locator(".planned")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    mouse, middle = notebook.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + 8, middle)
    mouse.down()
    curves = set()
    for tenth in range(11):
        mouse.move(box["x"] + 8 + (box["width"] - 16) * tenth / 10, middle)
        curves.add(curve.get_attribute("d"))
    mouse.up()
    assert len(curves) > 2, "drawn on the way, not at the end"
    assert slider.input_value() == slider.get_attribute("max")
    lowest = size_text(notebook.value("frontier.plans[-1].peak_bytes"))
    assert shown.locator(".figures b").first.inner_text() == lowest


def test_the_arrow_keys_are_the_sliders(notebook: Notebook, shown: Locator) -> None:
    cells = notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell")
    before = cells.count()
    slider = shown.locator("input[type=range]")
    slider.focus()
    for key, place in (("Home", "0"), ("ArrowRight", "1"), ("ArrowRight", "2"), ("ArrowLeft", "1")):
        notebook.page.keyboard.press(key)
        assert slider.input_value() == place
    expect(cells).to_have_count(before)


@pytest.mark.slow
def test_the_theme_of_jupyterlab_is_followed(notebook: Notebook, shown: Locator) -> None:
    curve = shown.locator(".planned")
    light = [shown.evaluate("root => getComputedStyle(root).backgroundColor"), curve.evaluate(INK)]
    notebook.theme("JupyterLab Dark")
    try:
        expect(shown).to_have_attribute("data-theme", "dark")
        dark = [shown.evaluate("root => getComputedStyle(root).backgroundColor"), curve.evaluate(INK)]
    finally:
        notebook.theme("JupyterLab Light")
    assert all(one != other for one, other in zip(light, dark, strict=True))
    assert shown.evaluate("root => root.scrollWidth <= root.clientWidth")


def test_the_tables_are_not_laid_out_as_jupyterlabs_own(shown: Locator) -> None:
    aligned = "cells => cells.map(cell => getComputedStyle(cell).textAlign)"
    for table in shown.locator(".moving table").all():
        numbers = table.locator("th.number").count()
        sides = table.locator("th").evaluate_all(aligned)
        assert sides.count("right") == numbers < len(sides) and set(sides) == {"left", "right"}
