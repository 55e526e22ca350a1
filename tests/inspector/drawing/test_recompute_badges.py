"""Signs at tasks of a picture: at each one's corner, at what is drawn in its place, and in the legend."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.inspector.drawing.annotations import DROPPED, KEPT, RECOMPUTED, SIGN_TITLES, Sign, Signs
from tapescope.inspector.drawing.svg import graph_to_svg
from tapescope.inspector.graph.graph import Graph

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Return the graph of nine equal blocks in one module; a folded picture shows one of them in the middle."""
    model = nn.Sequential(nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(9))))
    with ts.capture(model):
        loss = model(torch.ones(2, 4)).sum()
    return ts.graph(loss)


def signs_in(picture: str) -> list[tuple[str, str]]:
    """Return the kind of each sign, and its tooltip."""
    groups = ElementTree.fromstring(picture).iter(f"{SVG}g")
    return [
        (each.attrib["data-signs"], each.findtext(f"{SVG}title") or "")
        for each in groups
        if "data-signs" in each.attrib
    ]


def tanhs(graph: Graph) -> list[int]:
    return [task.id for task in graph.tasks if task.name == "TanhBackward0"]


def test_each_task_has_its_own_where_all_are_drawn(graph: Graph) -> None:
    first, second, *_ = tanhs(graph)
    signs = [Sign(first, (DROPPED,), "1 < 2 & 3"), Sign(second, (RECOMPUTED, KEPT), 'a "title"')]
    picture = graph_to_svg(graph, fold="none", signs=signs)
    assert sorted(signs_in(picture)) == [("dropped", "1 < 2 & 3"), ("recomputed kept", 'a "title"')]
    assert all(f">{title}</text>" in picture for title in SIGN_TITLES.values())


@pytest.mark.parametrize("fold", ["repeats", 0])
def test_what_is_folded_has_those_of_all_and_says_of_how_many(graph: Graph, fold: int) -> None:
    first, second, third = tanhs(graph)[3:6]  # one at an end may have another neighbour, and be drawn by itself
    signs = [Sign(first, (DROPPED,), ""), Sign(second, (RECOMPUTED,), ""), Sign(third, (DROPPED,), "")]
    ((kinds, title),) = signs_in(graph_to_svg(graph, fold=fold, signs=signs))  # type: ignore[arg-type]
    assert kinds == "dropped recomputed"
    assert title.splitlines() == [f"{SIGN_TITLES[DROPPED]}: 2 tasks", f"{SIGN_TITLES[RECOMPUTED]}: 1 task"]


def test_without_signs_there_is_none_and_no_legend(graph: Graph) -> None:
    assert signs_in(graph_to_svg(graph)) == []
    assert Signs((), ()).kinds == [] and Signs((), ()).at(0) is None
