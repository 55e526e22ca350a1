"""Figures of saved pages: curves, bars and boxes are where plotly would put them, at any width."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tapescope.tests.says import raises
from tapescope.widgets.pages.figure_html import Figures, area_of, path_of
from tapescope.widgets.pages.theme import LATER

AXES = {"xaxis": {"range": [0, 4], "title": {"text": "task"}}, "yaxis": {"range": [0, 10], "ticksuffix": " KiB"}}
LAYOUT = {"height": 200, "margin": {"l": 64, "r": 100, "t": 40, "b": 40}, "hovermode": "closest", **AXES}


def root_of(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html)


def corners(path: str) -> list[tuple[int, int]]:
    """The points of a path that moves by numbers alone."""
    found: list[tuple[int, int]] = []
    x = y = 0
    for letter, numbers in re.findall(r"([MhvlV])([-\d ]+)", path):
        first, *others = map(int, numbers.split())
        if letter == "V":
            y = first
        elif letter == "v":
            y += first
        elif letter == "M":
            x, y = first, others[0]
        else:
            x, y = x + first, y + (others[0] if others else 0)
        found.append((x, y))
    return found


def level_at(points: list[tuple[int, int]], x: float) -> int:
    """The level of steps through these points."""
    return next(y for (start, y), (stop, _) in pairwise(points) if start <= x < stop)


heights = some.lists(some.integers(0, 50), min_size=2, max_size=20)


@given(heights)
def test_a_path_of_steps_has_the_level_of_each_point(levels: list[int]) -> None:
    points = [(3 * place, level) for place, level in enumerate(levels)]
    drawn = corners(path_of(points, steps=True))
    assert drawn[0] == points[0] and drawn[-1] == points[-1]
    for (x, level), _ in pairwise(points):
        assert level_at(drawn, x + 1) == level


@given(heights, some.data())
def test_an_area_goes_along_its_points_and_back_along_its_floor(tops: list[int], data: some.DataObject) -> None:
    floors = data.draw(some.lists(some.integers(0, 50), min_size=len(tops), max_size=len(tops)))
    tops[-1], floors[-1] = tops[-2], floors[-2]  # as the end of a curve of ours
    points, floor = ([(3 * place, y) for place, y in enumerate(each)] for each in (tops, floors))
    there, _, back = area_of(points, floor, steps=True).partition("V")
    level, *rest = re.split(r"(?=[hvz])", back)
    x, y = points[-1][0], int(level)
    under = []
    for move in rest:
        if move.startswith("h"):
            under.append((x + int(move[1:]), x, y))
            x += int(move[1:])
        elif move.startswith("v"):
            y += int(move[1:])
    for (x, expected), _ in pairwise(floor):
        assert [y for start, stop, y in under if start <= x + 1 < stop] == [expected]
    for (x, expected), _ in pairwise(points):
        assert level_at(corners(there), x + 1) == expected


def test_bars_and_words_are_in_percent_of_the_plot_and_need_no_script() -> None:
    bars = {"type": "bar", "orientation": "h", "name": "a &lt;b&gt;", "x": [1, 2], "base": [0, 2], "y": [5, 5]}
    told = {"customdata": ["one<br>more", "two"], "hovertemplate": "%{customdata}<extra></extra>"}
    note = {"xref": "paper", "x": 1, "xanchor": "left", "xshift": 8, "y": 5, "text": "beside", "showarrow": False}
    layout = {**LAYOUT, "annotations": [note], "showlegend": True}
    trace = {**bars, **told, "width": 2, "marker": {"color": LATER["saved"]}}
    root = root_of(Figures().html("bars", "Some <bars>", {"data": [trace], "layout": layout}))
    rects = [(each.get("x"), each.get("width")) for each in root.findall(".//g/rect")]
    assert rects == [("0%", "25%"), ("50%", "50%")]
    beside = next(each for each in root.iter("text") if each.text == "beside")
    assert (beside.get("x"), beside.get("dx")) == ("100%", "8")
    assert [button.find("span").text for button in root.iter("button")] == ["a <b>"]  # type: ignore[union-attr]
    room = root.find(".//*[@tabindex]")
    assert room is not None and room.get("aria-label") == "Some <bars>"


def test_a_curve_is_stretched_and_its_legend_names_all_that_it_hides() -> None:
    curve = {"type": "scatter", "mode": "lines", "x": [0, 1, 4], "y": [5, 10, 10], "line": {"shape": "hv"}}
    ring = {"type": "scatter", "mode": "markers", "x": [1], "y": [10], "showlegend": False, "hoverinfo": "skip"}
    traces = [{**curve, "name": "a", "legendgroup": "a"}, {**curve, "name": "b"}, {**ring, "legendgroup": "a"}]
    root = root_of(Figures().html("curves", "Curves", {"data": traces, "layout": LAYOUT}))
    assert [button.get("data-traces") for button in root.iter("button")] == ["0 2", "1"]
    (first, _) = (each for each in root.iter("svg") if each.get("preserveAspectRatio") == "none")
    path = first.find("path")
    assert first.get("viewBox", "").startswith("0 0 4 ") and path is not None
    assert corners(path.get("d", "")) == [(0, 720), (1, 720), (1, 120), (4, 120)]


def test_what_it_cannot_draw_is_named() -> None:
    with raises(ValueError, "'pie'"):
        Figures().html("pie", "A pie", {"data": [{"type": "pie", "values": [1]}], "layout": LAYOUT})


def test_each_text_is_kept_once() -> None:
    figures = Figures()
    curve = {"type": "scatter", "mode": "lines", "x": list(range(5)), "y": [1] * 5, "name": "a"}
    told = {"customdata": [("1 KiB", "linear")] * 5, "hovertemplate": "%{customdata[0]} %{customdata[1]}"}
    before = 0
    for count in range(8):
        figures.html(f"curve {count}", "Curve", {"data": [{**curve, **told}], "layout": LAYOUT})
        before = before or len(figures.packed)
    assert len(figures.packed) < 1.5 * before


@pytest.mark.parametrize("values", [[3, 2, 1], [1, 1], [0, 5]])
def test_boxes_of_a_treemap_fill_the_room(values: list[int]) -> None:
    names = [f"box {place}" for place in range(len(values))]
    trace = {
        "type": "treemap",
        "ids": ["all", *names],
        "parents": ["", *["all"] * len(values)],
        "labels": ["all", *names],
        "values": [sum(values), *values],
        "marker": {"colors": [LATER["sunk"], *[LATER["saved"]] * len(values)], "line": {}},
        "textfont": {"color": [LATER["ink"]] * (1 + len(values))},
        "customdata": ["all", *names],
        "hovertemplate": "%{customdata}",
    }
    layout = {"height": 200, "margin": {"l": 0, "r": 0, "t": 0, "b": 0}}
    root = root_of(Figures().html("tree", "Boxes", {"data": [trace], "layout": layout}))
    places = [dict(each.split(":") for each in box.get("style", "").split(";")) for box in root.findall("i")]
    areas = [float(each["width"].rstrip("%")) * float(each["height"].removesuffix("px")) for each in places]
    assert areas[0] == pytest.approx(100 * 200)
    assert sum(areas[1:]) == pytest.approx((100 - 0.6) * (200 - 18 - 3), rel=0.01)
