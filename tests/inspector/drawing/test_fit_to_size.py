"""The picture that is whole: what is folded, and in which order, until all of a graph is seen."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.inspector.drawing.fit_to_size import first_view
from tapescope.inspector.drawing.layout import Layout, layout
from tapescope.inspector.drawing.svg import ROOM, draw_layout, graph_to_svg, layout_of_picture
from tapescope.inspector.graph.graph import Fold, Graph
from tapescope.tests.says import Snapshots

from ..programs import captured


def transformer(layers: int) -> Graph:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    with ts.capture(model):
        loss = model(torch.ones(2, 3, 16, requires_grad=True).exp()).sum()
    return ts.graph(loss)


def closed(placed: Layout) -> list[str]:
    return [box.group.title for box in placed.boxes if box.group.closed]


def test_a_small_graph_is_drawn_as_it_is() -> None:
    with ts.capture():
        loss = nn.Linear(2, 2)(torch.ones(1, 2)).exp().sum()
    assert not closed(first_view(ts.graph(loss), *ROOM))


def test_equal_layers_are_drawn_once_and_leaf_modules_are_rows() -> None:
    placed = first_view(transformer(6), 800, 400)
    [layers] = [box for box in placed.boxes if box.group.times > 1]
    assert (layers.title, layers.group.times, layers.group.closed) == ("layers.5", 6, False)
    rows = [box for box in placed.boxes if box.group.closed]
    assert {box.rect.height for box in rows} == {20}
    assert {"linear1", "linear2", "norm1", "norm2", "self_attn"} == {box.title for box in rows}


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "unet", "lstm_cell"])
def test_the_whole_picture_fits_where_it_can(name: str) -> None:
    graph = captured(name)
    for width, height in (ROOM, (1000, 400)):
        placed = first_view(graph, width, height)
        assert placed.width <= width and placed.height <= height
    large, small = (len(closed(first_view(graph, *room))) for room in ((4000, 3000), (700, 300)))
    assert large <= small or small == 1


def test_where_not_all_fits_the_largest_module_is_open_first() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)), nn.Linear(4, 4))
            self.head = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    with ts.capture():
        loss = Model()(torch.ones(2, 4)).sum()
    graph = ts.graph(loss)
    assert closed(first_view(graph, 140, 90)) == ["head", "body"]
    assert closed(first_view(graph, 200, 190)) == ["head", "3", "2", "1", "0"]


def test_one_like_equal_layers_is_not_opened_where_they_are_closed() -> None:
    """The first layer, whose input needs no gradient, was open alone beside the other three as one row."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    with ts.capture(model):
        loss = model(torch.ones(2, 3, 16)).sum()
    graph = ts.graph(loss)
    assert set(closed(first_view(graph, 360, 300))) == {"layers.1 – layers.3", "layers.0"}
    opened = {box.title for box in first_view(graph, 400, 300).boxes if not box.group.closed}
    assert "layers.3" in opened, "where there is room the equal ones are opened first"


def test_fifty_parallel_calls_fit_a_notebooks_panel() -> None:
    assert not closed(first_view(captured("linear50"), 860, 400))


def test_views_fold_before_modules_do() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = self.linear(x).view(2, 2, 2).transpose(0, 1).expand(2, 2, 2).reshape(2, 4).exp()
            return x

    with ts.capture():
        loss = Model()(torch.ones(2, 4)).sum()
    graph = ts.graph(loss)
    everything = first_view(graph, 4000, 3000)
    assert not closed(everything)
    some = first_view(graph, everything.width, everything.height - 60)
    assert set(closed(some)) == {"⋯ 5 views"}


def legend(picture: str) -> list[str]:
    """The texts of the entries below the graph."""
    return re.findall(
        r'<text class="ts-soft" x="\d+" y="12">([^<]+)<', picture.rpartition('<g transform="translate(0 0)">')[2]
    )


def test_the_legend_says_what_is_folded(snapshot: Snapshots) -> None:
    graph = transformer(6)
    picture = "\n".join(draw_layout(graph, first_view(graph, *ROOM)).elements)
    assert "module" in picture and "tasks</text>" not in picture
    assert {*legend(graph_to_svg(transformer(6), fold="none"))} < {*legend(picture)}
    snapshot("graph", "\n".join(legend(picture)))


def leads_up(placed: Layout) -> float:
    """Return the most pixels by which an edge leads up."""
    return max(y - to_y for wire in placed.wires for (_, y), (_, to_y) in pairwise(wire.points))


class Residual(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(4, 4, 3, padding=1) if each % 2 else nn.ReLU() for each in range(depth))
        )

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.layers(x)).relu()


@pytest.mark.parametrize("fold", ["fit", "none"])
def test_no_edge_of_a_residual_net_leads_up_to_another_column(fold: Fold) -> None:
    model = nn.Sequential(*(Residual(depth) for depth in (5, 6, 7, 8)))
    with ts.capture():
        loss = model(torch.ones(1, 4, 5, 5)).sum()
    graph = ts.graph(loss)
    assert leads_up(layout(graph, fold) if fold == "none" else first_view(graph, *ROOM)) > 300, "it would, in columns"
    placed = layout_of_picture(graph, fold)
    assert leads_up(placed) < 20 and placed.height <= 4 * ROOM[1]


def test_a_graph_without_modules_too_high_for_one_column_is_cut_into_columns() -> None:
    x = torch.ones(2, requires_grad=True)
    for _ in range(100):
        x = x.sin().exp()
    assert layout_of_picture(ts.graph(x.sum()), "none").height < ROOM[1]
