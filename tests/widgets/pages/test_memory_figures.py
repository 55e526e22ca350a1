from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.timeline import Timeline
from tapescope.engine.studies.compare import compare
from tapescope.engine.studies.comparison import Comparison
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import Snapshots, raises, says
from tapescope.widgets.pages.comparison_page import page_html
from tapescope.widgets.pages.glossary import COLUMNS
from tapescope.widgets.pages.memory_figures import category_figure, lifetimes_drawing, memory_drawing
from tapescope.widgets.pages.plotly_data import escaped
from tapescope.widgets.pages.theme import DARK, LATER, LIGHT

from .page_parts import figures_told, hover_data, said_of

NASTY = "<b>x</b><script>alert(1)</script>$y$&amp;"


class Nasty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module(NASTY, nn.Linear(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, NASTY)(x).tanh()


@pytest.fixture(scope="module")
def linear50() -> Comparison:
    return compare(workload("linear50").build()[1])


@pytest.fixture(scope="module")
def nasty() -> Comparison:
    model = Nasty()
    return compare(lambda: model(torch.ones(2, 64)).sum())


def test_a_page_names_the_engine_that_ran() -> None:
    x = torch.ones(4, requires_grad=True)

    def make_loss() -> torch.Tensor:
        return (x * 2 + x * 3).sum()

    plain = page_html(compare(make_loss, "heap", repetitions=1), "plain")
    other_rules = page_html(compare(make_loss, "heap", accumulate=["inplace", "list"], repetitions=1), "other rules")
    native = escape("PyTorch's engine")
    assert native in plain and "direct engine" not in plain
    assert "direct engine" in other_rules and native not in other_rules


def named(figure: go.Figure, name: str) -> Any:
    (trace,) = [trace for trace in figure.data if trace.name == name]
    return trace


def mebibytes(nbytes: int) -> float:
    return nbytes / 2**20


def test_the_levels_of_each_policy_are_drawn_and_their_peaks_marked(linear50: Comparison) -> None:
    figure = linear50.figure()
    for row in linear50.rows:
        line = named(figure, f"{row.policy}  <b>{size_text(row.peak_bytes)}</b>")
        assert line.line.shape == "hv"
        assert list(line.x) == list(range(105))
        expected = [*row.timeline.task_peaks, row.timeline.end_bytes]
        assert list(line.y) == pytest.approx(list(map(mebibytes, expected)))
        rings = [(each.x[0], each.y[0]) for each in figure.data if each.mode == "markers"]
        assert (row.timeline.peak_place, pytest.approx(mebibytes(row.peak_bytes))) in rings
        place = row.timeline.peak_place
        told = "".join(line.customdata[place])
        assert "TBackward0 (linear, workload_models.py:" in told and f"{place + 1} of 104" in told
    assert not figure.layout.annotations, "the legend has the peaks"
    assert len({line.line.dash for line in figure.data if line.mode == "lines"}) == 3


def test_the_categories_add_up_to_the_level(linear50: Comparison) -> None:
    timeline = linear50["bfs"].timeline
    figure = category_figure(timeline)
    stacked = [trace for trace in figure.data if trace.stackgroup]
    assert {trace.name for trace in stacked} == {category.title for category in timeline.category_levels}
    sums = [sum(values) for values in zip(*(trace.y for trace in stacked), strict=True)]
    assert sums[:-1] == pytest.approx(list(map(mebibytes, timeline.task_peaks)))


def spans(drawing: dict[str, Any]) -> Iterator[tuple[int, float, float, str]]:
    for trace in drawing["data"]:
        if trace["type"] == "bar":
            for row, base, length in zip(trace["y"], trace["base"], trace["x"], strict=True):
                yield row, base, base + length, trace["name"]


def test_lifetimes_are_the_largest_by_bytes_and_time(linear50: Comparison, snapshot: Snapshots) -> None:
    timeline = linear50["bfs"].timeline
    drawing = lifetimes_drawing(timeline, LIGHT)
    found = sorted(spans(drawing))
    assert len({row for row, *_ in found}) == 30
    lengths = [
        storage.nbytes * ((104 if storage.died is None else min(storage.died + 1, 104)) - max(storage.born, 0))
        for storage in timeline
    ]
    expected = sorted(lengths, reverse=True)[:30]
    total: dict[int, float] = {}
    for row, start, stop, _ in found:
        assert 0 <= start < stop <= 104
        total[row] = total.get(row, 0) + (stop - start)
    assert [2**20 * total[row] for row in range(30)] == expected
    says(drawing["layout"]["xaxis"]["title"]["text"], f"+{len(timeline) - 30}")
    told = next(trace for trace in drawing["data"] if trace["type"] == "bar")["customdata"][0]
    says(told, "AddmmBackward0", "workload_models.py:")
    snapshot("compare", re.sub(r"(?<=\.py:)\d+", "LINE", told))


def test_a_buffer_that_becomes_a_parameters_gradient_changes_its_colour() -> None:
    _, make_loss = workload("resnet50").build()
    timeline = ts.profile(make_loss).timeline
    assert timeline is not None
    drawing = lifetimes_drawing(timeline, LIGHT)
    names = drawing["layout"]["yaxis"]["ticktext"]
    row = names.index("fc.weight.grad")
    bars = sorted((start, stop, name) for at, start, stop, name in spans(drawing) if at == row)
    assert [name for _, _, name in bars] == [Category.BUFFER.title, Category.GRADIENT.title]
    assert bars[0][1] == bars[1][0]
    assert bars[1][1] == len(timeline.order), "still alive"


@pytest.mark.parametrize("policy", ["bfs", "dfs", "heap"])
def test_a_bar_and_the_stack_change_their_colour_with_the_same_task(linear50: Comparison, policy: str) -> None:
    timeline = linear50[policy].timeline
    bars: dict[int, list[tuple[float, float, str]]] = {}
    drawing = lifetimes_drawing(timeline, LIGHT)
    for row, start, stop, name in spans(drawing):
        bars.setdefault(row, []).append((start, stop, name))
    names = drawing["layout"]["yaxis"]["ticktext"]
    for number, leaf in timeline.grads.items():
        name = f"{timeline.graph.tasks[leaf].parameter}.grad"
        if name in names:
            *_, (start, _, category) = sorted(bars[names.index(name)])
            assert (start, category) == (timeline.order.index(leaf), Category.GRADIENT.title)
            levels = timeline.category_levels[Category.GRADIENT]
            place = timeline.order.index(leaf)
            assert levels[place] - levels[place - 1] == timeline.nbytes[number]
    if policy != "bfs":
        assert "linear.weight.grad" in names


def test_lines_that_lie_upon_each_other_can_be_told_apart(linear50: Comparison) -> None:
    for theme in (LIGHT, DARK):
        lines = [each["line"] for each in memory_drawing(linear50.timelines, theme)["data"] if each["mode"] == "lines"]
        for key in ("color", "dash", "width"):
            assert len({line[key] for line in lines}) == 3
        widths = [line["width"] for line in lines]
        assert widths == sorted(widths, reverse=True)


def test_the_page_explains_its_words_and_calls_a_hint_one(
    linear50: Comparison, tmp_path: Path, snapshot: Snapshots
) -> None:
    page = linear50.save_html(tmp_path / "page.html").read_text(encoding="utf-8").partition("<script")[0]
    words = page.partition("<h2>Words</h2>")[2]
    columns = {term for term in re.findall(r"<th[^>]*>([^<]+)<", page) if term in COLUMNS}
    assert len(columns) > 3
    for term in (*columns, Category.BUFFER.title, Category.WORKSPACE.title, Category.GRADIENT.title):
        assert re.search(rf"<dt>(<span[^>]*>■</span> <b[^>]*>)?{term}(</b>)?</dt><dd>\w", words), term
        assert re.search(rf'<(th|b)[^>]* title="[^"]+"[^>]*>{term}<', page), term
    assert Category.HELD.title not in words, "there is none"
    (hint,) = re.findall('<p class="hint">(.*?)</p>', page)
    says(hint, "48.0 MiB", "48 gradients")
    snapshot("compare", hint)
    assert linear50.before.nbytes
    assert escape(linear50.before.sentence()) in page.partition("</header>")[0]
    assert re.search(rf'<p class="key">.*■</span> <b[^>]*>{Category.BUFFER.title}</b> 51.0 MiB', page)


def test_what_stays_as_grad_is_marked_in_the_treemap(linear50: Comparison) -> None:
    (tree,) = linear50.peak("bfs").figure().data
    assert sum(" → .grad" in label for label in tree.labels) == 1


def test_lifetimes_over_the_clock(linear50: Comparison, snapshot: Snapshots) -> None:
    timeline = linear50["bfs"].timeline
    figure = linear50.lifetimes_figure("bfs", clock=True)
    assert figure.layout.xaxis.range[1] == pytest.approx(timeline.event_ns[-1] / 1e6)
    assert "milliseconds" in figure.layout.xaxis.title.text
    predicted = linear50["bfs"].predicted
    assert predicted is not None
    with raises(ValueError, "clock") as raised:
        lifetimes_drawing(predicted, LIGHT, clock=True)
    snapshot("compare", raised.value)
    with raises(ValueError, "'lpmf'", "bfs"):
        linear50.lifetimes_figure("lpmf")


def test_the_treemap_adds_up_at_each_level(snapshot: Snapshots) -> None:
    _, make_loss = workload("resnet50").build()
    report = ts.profile(make_loss).peak()
    (tree,) = report.figure().data
    values = dict(zip(tree.ids, tree.values, strict=True))
    assert values["peak"] == report.nbytes
    below: dict[str, int] = {}
    for parent, value in zip(tree.parents, tree.values, strict=True):
        below[parent] = below.get(parent, 0) + value
    assert all(below[parent] == values[parent] for parent in below if parent)
    assert len(values) > 40
    leaf = tree.customdata[-1]
    assert leaf.count("<br>") >= 3
    snapshot("profile", re.sub(r"(?<=\.py:)\d+", "LINE", leaf))


def test_many_tasks_stay_light_and_the_peak_is_not_lost(snapshot: Snapshots) -> None:
    x = torch.ones(100, requires_grad=True)

    def make_loss() -> torch.Tensor:
        y = x
        for _ in range(4000):
            y = y.sin()
        return y.sum()

    timeline = ts.profile(make_loss).timeline
    assert timeline is not None
    drawing = memory_drawing({"heap": timeline}, LIGHT)
    line = drawing["data"][0]
    assert 1000 < len(line["x"]) <= 1501
    assert max(line["y"]) == timeline.peak_bytes / 1024 ** (2 if timeline.peak_bytes >= 1023 * 2**10 else 1)
    says(drawing["layout"]["xaxis"]["title"]["text"], "3 tasks")
    snapshot("profile", drawing["layout"]["xaxis"]["title"]["text"])
    assert len(json.dumps(lifetimes_drawing(timeline, LIGHT))) < 100_000


def texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts(each)


def test_names_are_data_in_every_figure(nasty: Comparison) -> None:
    figures = [nasty.figure(), nasty.lifetimes_figure("heap"), nasty.peak("heap").figure()]
    figures.append(category_figure(nasty["heap"].timeline))
    for figure in figures:
        drawn = list(texts(json.loads(figure.to_json())))
        assert any("script" in text for text in drawn)
        for text in drawn:
            assert set(re.findall(r"<[^>]*>", text)) <= {"<b>", "</b>", "<br>", "<extra>", "</extra>"}
            assert "<b>x" not in text and "$" not in text
    assert escaped("\x01ink\n") == "\N{REPLACEMENT CHARACTER}ink\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(("theme", "colours"), [("light", LIGHT), ("dark", DARK)])
def test_a_figure_is_in_the_theme_it_is_asked_for(theme: Any, colours: dict[str, str], linear50: Comparison) -> None:
    figures = [linear50.figure(theme), linear50.lifetimes_figure("bfs", theme), linear50.peak("bfs").figure(theme)]
    for figure in figures:
        assert figure.layout.paper_bgcolor == colours["panel"]
        assert figure.layout.hoverlabel.font.color == colours["ink"]


def test_the_page_has_all_in_one_file(nasty: Comparison, tmp_path: Path) -> None:
    path = nasty.save_html(tmp_path / "page.html", title=f"{NASTY} & more")
    page = path.read_text(encoding="utf-8")
    ours, _, _ = page.partition('<script type="application/octet-stream" id="hover-data">')
    assert "src=" not in ours and "href=" not in ours and "@import" not in ours
    assert ours.count("Content-Security-Policy") == 1 and "default-src 'none'" in ours
    assert "<script" not in ours, "names are escaped"
    assert "&lt;b&gt;x" in ours
    figures = {"memory", *(f"{name}-{row}" for name in ("category", "peak", "lifetimes") for row in range(3))}
    assert set(figures_told(page)) == set(re.findall(r'data-figure="(.*?)"', ours)) == figures
    assert {name for name in re.findall(r"var\(--([\w-]+)", ours) if name not in ("left", "right")} <= set(LATER)
    for name, colour in {**LIGHT, **DARK}.items():
        assert f"--{name}:" in ours and colour in ours
    for row in nasty.rows:
        assert f"<b>{row.policy}</b>" in ours
    assert ours.count("<style>") == 1, "reports bring their style to a notebook, not to a page"
    assert len(page) < 150_000


def test_the_page_says_of_each_point_what_the_figure_says(linear50: Comparison, tmp_path: Path) -> None:
    page = linear50.save_html(tmp_path / "page.html").read_text(encoding="utf-8")
    for number, (policy, timeline) in enumerate(linear50.timelines.items()):
        for place in (0, timeline.peak_place, len(timeline.order) - 1):
            level = size_text(timeline.task_peaks[place])
            said = said_of(page, "memory", number, place)
            says(said, policy, level, f"{place + 1} of 104", linear50.graph.describe(timeline.order[place]))
        says(said_of(page, "memory", number, 104), policy, size_text(timeline.end_bytes))
    for number, (category, levels) in enumerate(linear50["bfs"].timeline.category_levels.items()):
        says(said_of(page, "category-0", number, 50), category.title, size_text(levels[50]))


def test_a_page_of_many_tasks_is_small(tmp_path: Path) -> None:
    layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(200)])
    comparison = compare(lambda: layers(torch.ones(2, 8)).sum(), ["bfs", "dfs", "heap", "lpmf"], repetitions=1)
    path = comparison.save_html(tmp_path / "page.html")
    assert len(comparison.graph) > 700 and path.stat().st_size < 350_000
    lines = [each for each in hover_data(path.read_text(encoding="utf-8"))["lists"] if len(each) > 300]
    assert max(map(len, lines)) <= 701, "so many points at most"


def test_what_is_new_in_the_reports_is_escaped_too(nasty: Comparison) -> None:
    row = replace(nasty.rows[0], policy=NASTY, dry_run_bytes=1, dry_run_estimates=(NASTY,))
    comparison = replace(nasty, rows=(row, *nasty.rows[1:]))
    assert any(re.search(rf"\d %.*{re.escape(NASTY)}", sentence) for sentence in comparison.sentences)
    ours = page_html(comparison, NASTY).partition("<script")[0]
    for html in (comparison._repr_html_(), comparison.peak(NASTY)._repr_html_(), ours):
        assert "<script" not in html and "<b>x" not in html and "&lt;script&gt;" in html


def test_the_notebooks_table_escapes_and_shows_the_rows(nasty: Comparison) -> None:
    html = nasty._repr_html_()
    assert html.count("<tr>") == 4 and "<script" not in html
    assert "<b>heap</b>" in html


def test_the_reports_can_be_read_without_their_style_sheet(nasty: Comparison) -> None:
    for html in (nasty._repr_html_(), nasty.peak("heap")._repr_html_()):
        assert "table-layout:auto" in html  # JupyterLab's own is fixed: columns of equal width
        html = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
        cells = re.findall(r"<t[dh]\b[^>]*>", html)
        assert cells and all("text-align:" in cell for cell in cells)
        numbers = re.findall(r'<td class="num"[^>]*>(?:<b>)?([^<]*)', html)
        assert numbers and not any(" " in number for number in numbers)  # a unit stays with its number


def test_a_backward_that_needs_no_memory_is_drawn_too() -> None:
    x = torch.ones(1, requires_grad=True)
    timeline = ts.profile(lambda: x.view(())).timeline
    assert isinstance(timeline, Timeline)
    assert memory_drawing({"heap": timeline}, LIGHT)["layout"]["yaxis"]["range"][1] > 0
    assert len(list(spans(lifetimes_drawing(timeline, LIGHT)))) >= len(timeline)
