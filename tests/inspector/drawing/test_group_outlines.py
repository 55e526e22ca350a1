from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

import tapescope as ts
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.drawing.annotations import HUES, Outline, letters
from tapescope.inspector.drawing.layout import layout
from tapescope.inspector.drawing.svg import graph_to_svg
from tapescope.inspector.renderers import GraphTheme
from tapescope.tests.says import raises

from ..programs import captured

SVG = "{http://www.w3.org/2000/svg}"


def groups_of(name: str, **knobs: int) -> ts.types.Groups:
    model, make_loss = workload(name).build(**knobs)
    with ts.capture(model):
        return ts.find_batches(make_loss())


def classed(picture: str, name: str) -> list[ElementTree.Element]:
    return [each for each in ElementTree.fromstring(picture).iter() if name in each.get("class", "").split()]


def test_names_go_on_after_the_alphabet() -> None:
    assert [letters(number) for number in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
def test_each_member_has_its_groups_outline_and_name(theme: GraphTheme) -> None:
    found = groups_of("ensemble", members=5, batch=4, width=8)
    picture = found.to_svg(fold="none", theme=theme)
    for number, (group, outline) in enumerate(zip(found.backward, found.outlines(), strict=True)):
        around = [each for each in classed(picture, "ts-outline") if f"ts-hue{number}" in each.get("class", "")]
        assert len(around) == len(group) == 5
        tags = [each.findtext(f"{SVG}text") for each in classed(picture, "ts-tag")]
        assert tags.count(outline.name) == 5 + 1  # and the legend
        assert f">{outline.title}</text>" in picture
    assert not classed(picture, "ts-dashed")
    assert len(classed(found.to_svg("forward", fold="none"), "ts-dashed")) == 20 + 20 + 4
    assert "$" not in picture


def test_members_that_are_folded_away_are_outlined_where_they_are_drawn() -> None:
    found = groups_of("ensemble", members=16, batch=4, width=8)
    folded = found.to_svg()
    assert len(classed(folded, "ts-outline")) == 4, "one member stands for all"
    assert ">16 × addmm → bmm, members.*.6</text>" in folded
    closed = found.to_svg(fold=0)
    assert not classed(closed, "ts-outline")
    boxes = [box for box in layout(found.graph, 0).boxes if box.group.closed]
    assert len(classed(closed, "ts-tag")) == 4 * len(boxes) + 4


def test_a_row_of_chips_is_named_once() -> None:
    found = groups_of("linear50", width=8)
    picture = found.to_svg()
    assert len(classed(picture, "ts-outline")) == 50
    assert len(classed(picture, "ts-tag")) == 1 + 1


def test_a_task_in_several_outlines_has_them_around_each_other_and_its_names_in_a_row() -> None:
    graph = captured("lstm_cell", steps=3)
    outlines = [Outline(letters(number), f"<{number}>", (1,)) for number in range(HUES + 1)]
    picture = graph_to_svg(graph, outlines=outlines)
    rects = [each.find(f"{SVG}rect") for each in classed(picture, "ts-outline")]
    widths = [float(rect.get("width", "0")) for rect in rects if rect is not None]
    assert widths == sorted(set(widths)) and len(widths) == HUES + 1
    assert "&lt;0&gt;" in picture and "<0>" not in picture
    assert not re.search(r"ts-hue6\b", picture)


def test_a_direction_that_there_is_not_is_refused() -> None:
    found = groups_of("linear50", width=8, uses=5)
    with raises(ValueError, "'sideways'", "backward", "forward"):
        found.to_svg("sideways")  # type: ignore[arg-type]
