"""Our own SVG as PNG: in the colours of a theme, with text on a machine without fonts, the same everywhere."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.inspector.drawing.svg_style import DARK as GRAPH_DARK
from tapescope.inspector.drawing.svg_style import LIGHT as GRAPH_LIGHT
from tapescope.tests.says import Snapshots, raises
from tapescope.widgets.deck.still_picture import Moment, Still
from tapescope.widgets.pages.png import can_draw_png, png_of
from tapescope.widgets.pages.theme import DARK, LIGHT

from .png_pixels import Pixels, pixels_of

TEXT = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="120" height="20">'
    '<text x="2" y="14" font-family="Inter,system-ui,sans-serif" font-size="11">{}</text></svg>'
)


@pytest.fixture(scope="module")
def graph() -> ts.Graph:
    with ts.capture():
        loss = nn.Linear(3, 2)(torch.ones(4, 3)).sum()
    return ts.graph(loss)


def colours_in(pixels: Pixels) -> set[str]:
    return {f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue, opaque in np.unique(pixels.reshape(-1, 4), axis=0)}


def ink(text: str) -> int:
    """Return the number of pixels that are not empty."""
    return int((pixels_of(png_of(TEXT.format(text)))[..., 3] > 100).sum())


def test_a_picture_has_its_size_and_what_it_is_scaled_by(graph: ts.Graph) -> None:
    svg = graph.to_svg()
    plain, double = (pixels_of(png_of(svg, scale=scale)).shape for scale in (1, 2))
    assert f'width="{plain[1]}' in svg
    assert abs(double[0] - 2 * plain[0]) <= 1 and abs(double[1] - 2 * plain[1]) <= 1


def test_variables_are_the_light_themes_colours(graph: ts.Graph) -> None:
    """resvg does not know variables: what is filled with one would be black."""
    for svg, light, dark in (
        (graph.to_svg(), GRAPH_LIGHT["bg"], GRAPH_DARK["bg"]),
        (Still("1f", "Net", graph).svg(Moment("heap", 0, len(graph), {})), LIGHT["accent"], DARK["accent"]),
    ):
        seen = colours_in(pixels_of(png_of(svg, scale=1)))
        assert light in seen and dark not in seen


def test_a_picture_of_one_theme_is_drawn_in_it(graph: ts.Graph) -> None:
    seen = colours_in(pixels_of(png_of(graph.to_svg(theme="dark"), scale=1)))
    assert GRAPH_DARK["bg"] in seen


def test_text_needs_no_font_of_the_system_and_is_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    resvg = pytest.importorskip("resvg_py")
    true = resvg.svg_to_bytes
    monkeypatch.setattr(resvg, "svg_to_bytes", lambda **given: asked.append(given) or true(**given))
    assert ink("TBackward0 × 4, 12.5 KiB – μs") > 100
    assert asked[-1]["skip_system_fonts"]
    assert ink("層") >= 0
    assert not asked[-1]["skip_system_fonts"]


def test_each_sign_that_the_fonts_are_said_to_have_is_drawn() -> None:
    for sign in "aÄŁω‐–…‰€←↔∑−√∞≈≠≤≥⋯▲▶▸◀◂○●✓":
        assert ink(sign), sign


def test_a_users_words_are_left_as_they_are() -> None:
    """A module may be called `var(--ink)`."""
    svg = TEXT.format("var(--ink) --ink:red;")
    assert png_of(svg) != png_of(TEXT.format("red"))


def test_without_resvg_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots) -> None:
    assert can_draw_png()
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with raises(ModuleNotFoundError, "pip install", "tapescope[notebook]") as raised:
        png_of(TEXT.format("x"))
    snapshot("save_png", raised.value)
