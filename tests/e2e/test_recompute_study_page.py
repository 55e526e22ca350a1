"""The page of a study of recomputation, as a browser shows it: the names of the points can all be read."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tapescope.engine.studies.recompute_study import (
    BLOCKS,
    COMPILED,
    SELECTIVE,
    RecomputeStudy,
    recompute_study,
    save_studies,
)

from .chromium import trouble_of
from .tab import Tab

pytestmark = pytest.mark.e2e

BOXES = """() => [...document.querySelectorAll('.content > text')]
    .filter(text => text.textContent.length > 1)
    .map(text => { const box = text.getBoundingClientRect();
        return [text.textContent, box.left, box.right, box.top, box.bottom]; })"""


@pytest.fixture(scope="module")
def study() -> RecomputeStudy:
    """Return a measured study with three more ways, all at one point."""
    found = recompute_study("rnn", size="small", repetitions=1, seconds=0.1, compiled=False)
    more = [replace(found.rows[-1], name=name) for name in (BLOCKS, SELECTIVE, COMPILED)]
    return replace(found, rows=(*found.rows, *more))


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("width", [1600, pytest.param(1000, marks=pytest.mark.slow), 600])
def test_names_of_points_lie_on_nothing_and_are_not_cut(
    tab: Tab, study: RecomputeStudy, tmp_path: Path, scheme: str, width: int
) -> None:
    page = tab.open(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
    trouble = trouble_of(page)
    page.goto(save_studies([study], tmp_path / "page.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    boxes = page.evaluate(BOXES)
    assert sorted(box[0] for box in boxes) == sorted(row.name for row in study.rows)
    by_height = sorted(boxes, key=lambda box: box[3])
    assert all(lower[3] >= upper[4] - 3 for upper, lower in pairwise(by_height))
    edge = page.evaluate("document.querySelector('.room').getBoundingClientRect().right")
    assert all(box[2] <= edge for box in boxes)
    signs = "[...document.querySelectorAll('g[data-trace] path')].map(each => each.getBoundingClientRect().right)"
    points = page.evaluate(signs)
    assert max(points) < min(box[1] for box in boxes), "the names are beside the plot"
    tab.leave()
    assert trouble == []
