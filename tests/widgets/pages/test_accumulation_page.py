"""A study of accumulation as a table, a figure and a page; names are text, and the page fetches nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tapescope.engine.studies.accumulation_study import BY_HAND, AccumulationStudy, accumulation_study, save_studies
from tapescope.widgets.pages.accumulation_page import page_html, study_drawing, study_figure, study_html
from tapescope.widgets.pages.theme import LATER, LIGHT

from .page_parts import figures_told


@pytest.fixture(scope="module")
def study() -> AccumulationStudy:
    return accumulation_study("rnn", repetitions=1, steps=60, width=16)


def test_each_row_is_a_line_named_with_its_peak(study: AccumulationStudy) -> None:
    data = study_drawing(study, LIGHT)["data"]
    assert len(data) == len(study.rows)
    for row, trace in zip(study.rows, data, strict=True):
        assert trace["name"].startswith(f"{row.name}  <b>")
    assert [trace["name"] for trace in data if "fill" in trace] == [data[0]["name"]], "the area is that by hand"
    kept = accumulation_study("needless", graph="kept", repetitions=1, additions=3)
    lines = [json.dumps(trace["line"]) for trace in (*data, *study_drawing(kept, LIGHT)["data"][2:-1])]
    assert len(set(lines)) == len(lines), "no two lines look the same"


def test_the_highest_point_of_a_line_is_the_peak_however_many_steps_there_are(study: AccumulationStudy) -> None:
    for row, trace in zip(study.rows, study_drawing(study, LIGHT)["data"], strict=True):
        assert len(trace["x"]) <= 54 < len(study["list"].levels.peaks)
        assert trace["x"][0] == 0 and trace["x"][-1] == 100
        assert all(sooner < later for sooner, later in pairwise(trace["x"]))
        highest = max(trace["y"]) * 1024 ** (2 if "MiB" in study.cells[-2][1] else 1)
        assert highest == pytest.approx(row.peak_bytes, rel=1e-9)


def test_with_the_forward_each_line_begins_at_its_first_byte(study: AccumulationStudy) -> None:
    scale = 1024 ** (2 if "MiB" in study.cells[-2][1] else 1)
    for kind in ({"forward": True}, {"clock": True}):
        drawing = study_drawing(study, LIGHT, **kind)
        low, high = drawing["layout"]["xaxis"]["range"]
        for row, trace in zip(study.rows, drawing["data"], strict=True):
            assert trace["x"][0] == low and list(trace["x"]) == sorted(trace["x"]) and trace["x"][-1] <= high
            bottom = 0 if "clock" in kind else 0.2 * study[BY_HAND].peak_bytes
            assert trace["y"][0] * scale == pytest.approx(bottom), "nothing is there yet"
            assert max(trace["y"]) * scale == pytest.approx(max(row.peak_bytes, row.levels.forward_peak_bytes))
            assert any("forward" in text for text in trace["customdata"])
        assert study_figure(study, **kind).still()
    over_time = study_drawing(study, LIGHT, clock=True)["layout"]
    assert "ms" in over_time["xaxis"]["ticksuffix"] and "type" not in over_time["yaxis"], "linear, as in the thread"


def test_the_axis_is_logarithmic_and_its_ticks_are_in_one_unit(study: AccumulationStudy) -> None:
    axis = study_drawing(study, LIGHT)["layout"]["yaxis"]
    assert axis["type"] == "log" and len({text.split()[1] for text in axis["ticktext"]}) == 1
    assert len(axis["tickvals"]) == len(axis["ticktext"]) > 3


def test_the_figure_has_the_colours_of_a_theme_and_the_page_those_of_its_reader(study: AccumulationStudy) -> None:
    figure = study_figure(study, "dark")
    assert figure.layout.paper_bgcolor != study_figure(study, "light").layout.paper_bgcolor == LIGHT["panel"]
    assert study_drawing(study, LATER)["layout"]["paper_bgcolor"] == "var(--panel)"


def test_the_table_has_all_rows_and_a_bar_for_each_peak(study: AccumulationStudy) -> None:
    html = study_html(study)
    assert html.count("<tr>") == 1 + len(study.rows) and html.count('class="bar"') == len(study.rows)
    assert "width:100.0%" in html and html == study._repr_html_()


def test_the_page_has_a_section_per_study_and_is_whole(study: AccumulationStudy, tmp_path: Path) -> None:
    other = accumulation_study("needless", repetitions=1, additions=3)
    path = save_studies([study, other], tmp_path / "page.html", "Sums <of> gradients")
    page = path.read_text(encoding="utf-8")
    assert page.count("<section>") == 3 and page.count('class="figure') == 4
    assert "Sums &lt;of&gt; gradients" in page and "<script src" not in page and "<link" not in page
    assert re.findall(r'data-figure="(.*?)"', page) == list(figures_told(page)) == ["0", "1", "2", "3"]
    assert f"Measured on {study.machine}." in page
    for word in (BY_HAND, "out of place", "never released", "graph kept", "over by hand", "average"):
        assert f"<dt>{word}</dt>" in page


def test_what_a_workload_is_called_is_text(study: AccumulationStudy) -> None:
    odd = replace(study, workload=replace(study.workload, name="<img>", title="a & b"))
    page = page_html([odd], "Accumulation")
    assert "<h2>&lt;img&gt;, float32: batch=" in page and "a &amp; b" in page and "<h2><img>" not in page
