"""A study of recomputation as a table, a figure and a page; names are text, and the page fetches nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tapescope.engine.studies.recompute_study import BELOW, NOTHING, RecomputeStudy, recompute_study, save_studies
from tapescope.widgets.pages.recompute_study_page import page_html, study_drawing, study_figure, study_html
from tapescope.widgets.pages.theme import LATER, LIGHT

from .page_parts import figures_told


@pytest.fixture(scope="module")
def study() -> RecomputeStudy:
    return recompute_study("unet", size="small", repetitions=2, seconds=0.1, compiled=False, channels=2)


def test_each_way_is_a_point_at_its_time_and_its_peak(study: RecomputeStudy) -> None:
    drawing = study_drawing(study, LIGHT)
    for row, trace in zip(study.rows, drawing["data"], strict=True):
        assert trace["name"] == row.name
        assert (trace["x"], trace["y"]) == ([row.time_ratio.middle], [100 * study.ratio(row.name)])
    (low, high), (bottom, top) = (drawing["layout"][axis]["range"] for axis in ("xaxis", "yaxis"))
    assert all(low < row.time_ratio.middle < high for row in study.rows)
    assert all(bottom <= 100 * study.ratio(row.name) < top for row in study.rows)


def test_names_keep_apart_in_the_order_of_their_points_however_near_these_are(study: RecomputeStudy) -> None:
    alike = replace(study, rows=tuple(replace(study.rows[0], name=f"way {number}") for number in range(8)))
    alike = replace(alike, rows=(replace(study.rows[0], name=NOTHING), *alike.rows))
    for each in (study, alike):
        layout = study_drawing(each, LIGHT)["layout"]
        bottom, top = layout["yaxis"]["range"]
        plot = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
        named = {row.name: [note for note in layout["annotations"] if note["text"] == row.name] for row in each.rows}
        assert all(len(notes) == 1 for notes in named.values())
        heights = {name: plot * (note["y"] - bottom) / (top - bottom) for name, (note,) in named.items()}
        ordered = sorted(heights.values())
        assert all(above - below > 14 for below, above in pairwise(ordered)), "a line of text is as high"
        assert ordered[0] > 5 and ordered[-1] < plot - 5
        by_peak = sorted(each.rows, key=lambda row: row.peak_bytes)
        assert all(
            heights[low.name] < heights[high.name]
            for low, high in pairwise(by_peak)
            if low.peak_bytes < high.peak_bytes
        )


def test_the_figure_has_the_colours_of_a_theme_and_the_page_those_of_its_reader(study: RecomputeStudy) -> None:
    assert (
        study_figure(study, "dark").layout.paper_bgcolor
        != study_figure(study, "light").layout.paper_bgcolor
        == LIGHT["panel"]
    )
    assert study_drawing(study, LATER)["layout"]["paper_bgcolor"] == "var(--panel)"


def test_the_table_has_all_rows_and_a_bar_for_each_peak(study: RecomputeStudy) -> None:
    html = study_html(study)
    assert html.count("<tr>") == 1 + len(study.rows) and html.count('class="bar"') == len(study.rows)
    assert html == study._repr_html_()


def test_the_page_is_whole_and_names_are_text(study: RecomputeStudy, tmp_path: Path) -> None:
    odd = replace(study, workload=replace(study.workload, name="<img>", title="a & b"))
    path = save_studies([study, odd], tmp_path / "page.html", "Less <of> it")
    page = path.read_text(encoding="utf-8")
    assert page == page_html([study, odd], "Less <of> it")
    assert page.count("<section>") == 3 and page.count('class="figure') == 2
    assert "Less &lt;of&gt; it" in page and "<script src" not in page and "<link" not in page
    assert re.findall(r'data-figure="(.*?)"', page) == list(figures_told(page)) == ["0", "1"]
    assert f"Measured on {study.machine}." in page and f"<dt>{BELOW}</dt>" in page
    assert "<h2>&lt;img&gt;: batch=" in page and "a &amp; b" in page and "<h2><img>" not in page
    assert study[NOTHING].name in page
