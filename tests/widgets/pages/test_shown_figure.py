"""Figures in a notebook: they take the page's theme, and leave a picture of themselves for where plotly is not."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from itertools import pairwise
from xml.etree import ElementTree

import plotly.graph_objects as go
import plotly.io as pio
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import tapescope as ts
from tapescope.engine.studies.accumulation_study import accumulation_study
from tapescope.engine.studies.order_study import order_study
from tapescope.engine.studies.recompute_study import recompute_study
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.widgets.pages.memory_figures import category_figure
from tapescope.widgets.pages.png import png_of
from tapescope.widgets.pages.shown_figure import ShownFigure
from tapescope.widgets.pages.theme import AUTO, DARK, LIGHT, follow_page
from tapescope.widgets.pages.treemap import _squarified

from .png_pixels import pixels_of

pytestmark = pytest.mark.heavy

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def comparison() -> ts.types.Comparison:
    return ts.compare(WORKLOADS["linear50"].build()[1], ["bfs", "heap"])


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    before, pio.renderers.default = pio.renderers.default, "plotly_mimetype"
    yield InteractiveShell.instance()
    pio.renderers.default = before
    InteractiveShell.clear_instance()


def gantt() -> go.Figure:
    _, make_loss = WORKLOADS["two_devices"].build()
    with ts.capture():
        graph = ts.graph(make_loss())
    return ts.makespan(graph, policies=("bfs", "dfs"), durations=[10_000] * len(graph)).figure()


def gpt() -> ts.Run:
    return ts.profile(WORKLOADS["gpt2"].build(layers=2)[1])


def step() -> go.Figure:
    model, make_loss = WORKLOADS["mlp_norm"].build(layers=3, width=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        optimizer.zero_grad()
        make_loss().backward()
        optimizer.step()

    return ts.profile_step(train).figure()


FIGURES: dict[str, Callable[[], go.Figure]] = {
    "devices over time": gantt,
    "the peak": lambda: gpt().peak().figure(),
    "categories": lambda: category_figure(gpt().timeline, "auto"),
    "a training step": step,
    "orders": lambda: order_study(["linear50"], ["bfs", "dfs"], repetitions=2).figure(),
    "accumulation": lambda: accumulation_study("rnn", repetitions=1, steps=20, width=8).figure(),
    "recompute": lambda: recompute_study(
        "unet", size="small", repetitions=1, seconds=0.1, compiled=False, channels=2
    ).figure(),
}


@pytest.mark.parametrize("name", FIGURES)
def test_each_kind_of_figure_has_a_picture_in_which_nothing_is_cut(name: str) -> None:
    figure = FIGURES[name]()
    assert isinstance(figure, ShownFigure)
    svg = figure.still()
    assert svg is not None
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert height == figure.layout.height
    for each in root.iter():
        for name, most in (("x", width), ("y", height)):
            assert -1 <= float(each.get(name, 0)) <= most
    pixels = pixels_of(png_of(svg, scale=0.5))
    edges = [pixels[4:-4, 1], pixels[4:-4, -2], pixels[1, 4:-4], pixels[-2, 4:-4]]
    assert all((edge == edge[0]).all() for edge in edges), "something goes on outside"


def test_bars_and_lines_are_where_the_figure_has_them(comparison: ts.types.Comparison) -> None:
    figure = comparison.lifetimes_figure("bfs")
    root = ElementTree.fromstring(figure.still())
    left, right = figure.layout.margin.l, 900 - figure.layout.margin.r
    low, high = figure.layout.xaxis.range
    bar = figure.data[0]
    drawn = [each for each in root.iter(f"{SVG}rect") if each.get("fill") == bar.marker.color][: len(bar.x)]
    for rect, base, length in zip(drawn, bar.base, bar.x, strict=True):
        assert float(rect.get("x")) == pytest.approx(left + (base - low) / (high - low) * (right - left), abs=0.1)
        assert float(rect.get("width")) == pytest.approx(length / (high - low) * (right - left), abs=0.1)
    said = {"".join(text.itertext()) for text in root.iter(f"{SVG}text")}
    assert set(figure.layout.yaxis.ticktext) <= said


def test_names_are_text(comparison: ts.types.Comparison) -> None:
    figure = comparison.figure()
    figure.data[0].name = "&lt;script&gt;alert(1)&lt;/script&gt; <b>bold</b>"
    root = ElementTree.fromstring(figure.still())
    assert not list(root.iter(f"{SVG}script"))
    assert any("<script>alert(1)</script> bold" in "".join(text.itertext()) for text in root.iter(f"{SVG}text"))


def test_what_the_user_changes_is_in_the_picture_and_what_is_unknown_is_not_guessed(
    comparison: ts.types.Comparison,
) -> None:
    figure = comparison.figure()
    figure.update_layout(height=500)
    assert ElementTree.fromstring(figure.still()).get("height") == "500"
    figure.add_trace(go.Pie(values=[1, 2]))
    assert figure.still() is None


def test_shown_it_is_kept_with_png(shell: InteractiveShell, comparison: ts.types.Comparison) -> None:
    with capture_output() as captured:
        comparison.figure()._ipython_display_()
    *_, shown = captured.outputs
    assert set(shown.data) == {"application/vnd.plotly.v1+json", "image/png"}
    png = b64decode(shown.data["image/png"])
    assert png.startswith(b"\x89PNG")
    assert shown.metadata["image/png"]["width"] == 900
    assert int.from_bytes(png[16:20], "big") == 900, "plotly's extension for JupyterLab shows it pixel for pixel"


def test_a_figure_for_any_page_is_clear_and_brings_the_pages_colours(
    shell: InteractiveShell, comparison: ts.types.Comparison
) -> None:
    figure = comparison.figure()
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    with capture_output() as captured:
        figure._ipython_display_()
        comparison.figure("dark")._ipython_display_()
    styles = [each.data["text/html"] for each in captured.outputs if "text/html" in each.data]
    assert len(styles) == 1 and follow_page() in styles[0], "one for a theme needs none"
    assert LIGHT["panel"] in figure.still() and AUTO["ink"] not in figure.still()
    assert DARK["panel"] in comparison.figure("dark").still()


def test_words_can_be_read_on_any_page() -> None:
    def luminance(colour: str) -> float:
        parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        red, green, blue = (each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    for name in ("ink", "ink2", "ink3"):
        assert min(contrast(AUTO[name], page) for page in ("#ffffff", "#111111")) > 4.2
        assert contrast(LIGHT[name], "#ffffff") > 4.5 and contrast(DARK[name], "#111111") > 4.5
    rules = re.findall(r"rgb\([\d, ]+\)", follow_page())
    assert len(set(rules)) * 4 == len(rules), "each colour has rules of its own: fill and line, light and dark"


def test_boxes_of_a_treemap_fill_their_room_and_are_as_large_as_their_values() -> None:
    values = [40.0, 25.0, 20.0, 10.0, 4.0, 1.0]
    boxes = _squarified(values, (10, 20, 300, 200))
    areas = [width * height for _, _, width, height in boxes]
    assert areas == pytest.approx([600 * value for value in values])
    assert all(one >= other for one, other in pairwise(areas))
    assert all(x >= 9.99 and y >= 19.99 and x + w <= 310.01 and y + h <= 220.01 for x, y, w, h in boxes)


def test_a_users_own_figure_gets_its_ranges_names_and_counts(shell: InteractiveShell) -> None:
    figure = ts.with_picture(go.Figure())
    figure.add_scatter(x=[1, 30], y=["gpt2", "gpt2"], mode="lines", line_color="#123456", showlegend=False)
    figure.add_scatter(x=[1, 5], y=["gpt2", "unet"], mode="markers", name="best", marker={"color": "#654321"})
    figure.add_vline(x=5, line_color="#abcdef", annotation_text="here", annotation_position="top")
    figure.update_layout(template="plotly_white", height=300)
    figure.update_xaxes(type="log", tickvals=[1, 10])
    root = ElementTree.fromstring(figure.still())
    said = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert {"gpt2", "unet", "1", "10", "here"} <= set(said)
    (line,) = [each for each in root.iter(f"{SVG}path") if each.get("stroke") == "#abcdef"]
    top, bottom = 100, 300 - 80
    x = re.match(r"M([\d.]+) (\S+)L\1 (\S+)", line.get("d", ""))
    assert x is not None and {float(x[2].rstrip("L")), float(x[3])} == {top, bottom}, "of the whole height"
    marks = [each.get("transform", "") for each in root.iter(f"{SVG}path") if each.get("fill") == "#654321"]
    assert any(mark.startswith(f"translate({x[1]} ") for mark in marks), "the mark at 5 is on the line at 5"
    with capture_output() as captured:
        figure._ipython_display_()
    assert "image/png" in captured.outputs[-1].data


def test_a_histogram_is_drawn_with_the_counts_of_its_bins() -> None:
    figure = ts.with_picture(go.Figure(go.Histogram(x=[0.5, 1.5, 1.7, 9], xbins={"start": 0, "end": 3, "size": 1})))
    figure.update_traces(marker_color="#123456").update_layout(height=300)
    root = ElementTree.fromstring(figure.still())
    (area,) = [each for each in root.iter(f"{SVG}path") if each.get("fill") == "#123456"]
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", area.get("d", ""))]
    floor = max(heights)
    assert floor - min(heights) == pytest.approx(2 * (floor - heights[0]), abs=0.2), (
        "two in the second, one in the first"
    )


@pytest.mark.parametrize(
    "trace",
    [
        go.Bar(x=["a", "b"], y=[1, 2]),
        go.Histogram(x=[1, 2]),
        go.Scatter(x=["2024-01-01", 3], y=[1, 2]),
        go.Scatter(x=[1, 2], y=[1, 2], stackgroup="one"),
        go.Heatmap(z=[[1]]),
    ],
    ids=["bars that stand", "no bins", "names and numbers", "stacked", "heatmap"],
)
def test_of_what_it_does_not_know_there_is_no_picture(trace: go.Figure) -> None:
    assert ts.with_picture(go.Figure(trace)).still() is None
