"""The deck's layout with all boxes open is that of the SVG with nothing closed: one is a port of the other."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.drawing.fold import fold_graph
from tapescope.inspector.drawing.layout import Layout, Rect, lay_out
from tapescope.inspector.drawing.svg_text import text_width
from tapescope.inspector.graph.graph import Graph
from tapescope.widgets.deck.page_data import Document

TOLERANCE = 0.1

InNode = Callable[[str, bytes], Any]


@pytest.fixture(scope="module")
def in_node(page_sources: Path) -> InNode:
    """Runs one of the page's scripts in node: gives what it writes for this on its standard input."""
    esbuild = page_sources / "node_modules" / ".bin" / "esbuild"
    folder = page_sources / "out"

    def run(name: str, given: bytes) -> Any:
        script = folder / f"{name}.mjs"
        if not script.exists():
            arguments = ["--bundle", "--platform=node", "--format=esm", "--log-level=warning", f"--outfile={script}"]
            subprocess.run([esbuild, page_sources / "tests" / f"{name}.ts", *arguments], check=True)
        return json.loads(subprocess.run(["node", script], input=given, capture_output=True, check=True).stdout)

    return run


class Block(nn.Module):
    """A transformer's block: attention and two linear layers, each beside a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.wide, self.narrow = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norms[0](x)
        x = x + self.attention(inner, inner, inner, need_weights=False)[0]
        return x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))


def captured(name: str, **knobs: int) -> Graph:
    _, make_loss = workload(name).build(**knobs)
    with ts.capture():
        loss = make_loss()
    return ts.graph(loss)


def transformer_block() -> Graph:
    block = Block()
    with ts.capture(block):
        loss = block(torch.randn(2, 5, 32)).sum()
    return ts.graph(loss)


def without_modules() -> Graph:
    """A fan of long wires, leaves without names, and many parameters at one task."""
    leaves = [torch.ones(3, requires_grad=True) for _ in range(12)]
    total = torch.cat(leaves)
    shared = total.exp()
    for step in range(40):
        total = total.sin() * (shared if step % 4 == 0 else 2.0)
    return ts.graph(torch.stack([each.cos() for each in total.unbind()] * 2).sum())


def loop_without_modules() -> Graph:
    """Sixty equal steps of tensor operations."""
    weight, state = torch.ones(3, 3, requires_grad=True), torch.ones(2, 3)
    with ts.capture():
        for _ in range(60):
            gate = torch.sigmoid(state @ weight)
            state = gate * torch.tanh(state @ weight) + state
        loss = state.sum()
    return ts.graph(loss)


GRAPHS: dict[str, Callable[[], Graph]] = {
    **{name: partial(captured, name) for name in ("gpt2", "resnet50", "linear50", "unet", "recommender", "ensemble")},
    "lstm_cell": partial(captured, "lstm_cell", steps=12),
    "transformer_block": transformer_block,
    "without_modules": without_modules,
    "loop_without_modules": loop_without_modules,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_tasks_boxes_pills_and_wires_are_where_the_svg_has_them(name: str, in_node: InNode) -> None:
    graph = GRAPHS[name]()
    expected = lay_out(graph, fold_graph(graph, "fit"))
    found = in_node("layout_of", Document(graph, "model", "direct").packed())
    assert abs(found["width"] - expected.width) < TOLERANCE
    assert abs(found["height"] - expected.height) < TOLERANCE
    assert_same_rects(
        {each["task"]: (each["rect"], each["label"], each["caption"]) for each in found["tasks"]},
        {each.task: (each.rect, each.label, each.caption) for each in expected.tasks},
    )
    assert_same_rects(
        {tuple(each["tasks"]): (each["rect"], each["label"]) for each in found["pills"]},
        {each.tasks: (each.rect, each.label) for each in expected.pills},
    )
    assert_same_rects(
        {(each["kind"], each["task"], *each["others"]): (each["rect"], each["label"]) for each in found["stubs"]},
        {(each.kind, each.task, *each.others): (each.rect, each.label) for each in expected.stubs},
    )
    assert_same_rects(
        {tuple(each["tasks"]): (each["rect"], each["label"]) for each in found["rows"]},
        {each.tasks: (each.rect, each.label) for each in expected.rows},
    )
    boxes = sorted(
        (*rounded(rect_of(each["rect"])), each["title"], kind_of(each["subtitle"])) for each in found["boxes"]
    )
    assert boxes == sorted((*rounded(as_tuple(box.rect)), box.title, box.subtitle) for box in expected.boxes)
    assert wires_of(found) == wires_of_picture(expected)


def test_texts_are_as_wide_as_the_svg_says(in_node: InNode) -> None:
    letters = [chr(code) for code in range(0x20, 0x250)] + list("…–×→∂αЖ漢字かなカナ한글Ａ！👍🏽🚀👩‍💻é")
    widths = in_node("text_widths_of", json.dumps(letters).encode())
    assert widths == pytest.approx([text_width(letter) for letter in letters])
    texts = [chr(code) for code in range(0x250, 0x32000) if not 0xD800 <= code < 0xE000 and category(chr(code)) != "Cn"]
    widths = in_node("text_widths_of", json.dumps(texts).encode())
    for text, width in zip(texts, widths, strict=True):
        assert width > text_width(text) - 1e-6, f"U+{ord(text):04X} may not fit"


def assert_same_rects(found: dict[Any, tuple[Any, ...]], expected: dict[Any, tuple[Any, ...]]) -> None:
    assert found.keys() == expected.keys()
    for key, (rect, *texts) in expected.items():
        assert rect_of(found[key][0]) == pytest.approx(as_tuple(rect), abs=TOLERANCE), key
        assert list(found[key][1:]) == texts


def rect_of(rect: dict[str, float]) -> tuple[float, ...]:
    return rect["x"], rect["y"], rect["width"], rect["height"]


def as_tuple(rect: Rect) -> tuple[float, ...]:
    return rect.x, rect.y, rect.width, rect.height


def kind_of(subtitle: str) -> str:
    """Without which call of a module it is: the SVG, which folds equal calls, does not say so."""
    return re.sub(r", call \d+$", "", subtitle)


def rounded(numbers: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(round(number, 3) for number in numbers)


def wires_of(found: dict[str, Any]) -> set[tuple[frozenset[int], int]]:
    """The edges of each wire, and how many corners it has."""
    return {(frozenset(wire["edges"]), len(wire["points"]) // 2) for wire in found["wires"]}


def wires_of_picture(placed: Layout) -> set[tuple[frozenset[int], int]]:
    return {(frozenset(wire.edges), len(wire.points)) for wire in placed.wires}
