from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from torch.nn import functional

import tapescope as ts
from tapescope.inspector.drawing.layout import layout
from tapescope.inspector.drawing.svg import graph_to_svg, layout_of_picture, path_data
from tapescope.inspector.drawing.svg_text import pixels, shorten, shorten_middle, shorten_path, text_width
from tapescope.inspector.graph.graph import ModuleCall
from tapescope.inspector.graph.kinds import KIND_TITLES, Kind
from tapescope.inspector.renderers import GraphTheme
from tapescope.inspector.text.sizes_and_counts import shape_text
from tapescope.tests.says import raises, says

from ..programs import Twice, captured

SVG = "{http://www.w3.org/2000/svg}"


def by_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [each for each in root.iter() if name in each.get("class", "").split()]


def test_every_drawn_task_is_in_the_svg_with_a_tooltip() -> None:
    graph = captured("gpt2")
    root = ElementTree.fromstring(graph_to_svg(graph))
    drawn = {int(each.get("data-task", -1)) for each in root.iter() if each.get("data-task")}
    placed = layout_of_picture(graph)
    assert drawn == {task.task for task in placed.tasks} | {pill.tasks[0] for pill in placed.pills}
    relu = next(task for task in placed.tasks if graph.tasks[task.task].name == "GeluBackward0")
    group = next(each for each in root.iter() if each.get("data-task") == str(relu.task))
    tooltip = group.findtext(f"{SVG}title") or ""
    task = graph.tasks[relu.task]
    assert tooltip.splitlines()[:2] == ["GeluBackward0", "h.11.mlp.gelu (GELU)"]
    says(tooltip.splitlines()[2], task.sequence_nr)
    assert "created #" not in ElementTree.tostring(root, encoding="unicode"), (
        "a task has one number, its place in a run"
    )
    assert str(task.inputs[0]) in tooltip and task.source is not None and task.source.short in tooltip


def test_size_title_and_one_line_per_wire() -> None:
    graph = captured("resnet50")
    root = ElementTree.fromstring(graph_to_svg(graph))
    width, height = root.get("width"), root.get("height")
    assert root.get("viewBox") == f"0 0 {width} {height}"
    assert root.findtext(f"{SVG}title") == "backward of NllLossBackward0 · 339 tasks · 161 parameters"
    [wires] = [each for each in by_class(root, "ts-wires") if len(each) > 1]
    assert len(wires) == sum(bool(wire.points) for wire in layout_of_picture(graph).wires)


@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
def test_it_is_self_contained_in_every_theme(theme: GraphTheme) -> None:
    picture = graph_to_svg(captured("lstm_cell", steps=3), theme=theme)
    ElementTree.fromstring(picture)
    assert not re.search(r"<script|href|@import|url\(|<foreignObject|<image", picture)
    assert re.findall(r"https?://[^\"]*", picture) == ["http://www.w3.org/2000/svg"]
    assert ("prefers-color-scheme:dark" in picture) == (theme == "auto")
    assert ("var(--" in picture) == (theme == "auto"), "a fixed theme works where CSS variables don't"


def test_pictures_in_one_page_do_not_share_names_with_it_or_disagree() -> None:
    light, dark = (graph_to_svg(captured("lstm_lm"), theme=theme) for theme in ("light", "dark"))
    for picture, theme in ((light, "light"), (dark, "dark")):
        classes = {name for group in re.findall(r'class="([^"]*)"', picture) for name in group.split()}
        assert all(name.startswith("ts-") for name in classes)
        assert " id=" not in picture
        rules = re.findall(r"^([^{@<]+)\{", picture.split("<style>")[1].split("</style>")[0], re.M)
        assert rules and all(rule.startswith(f".ts-{theme} ") for rule in rules)


def test_an_unknown_theme_is_refused() -> None:
    with raises(ValueError, "'blue'", "auto", "light", "dark"):
        graph_to_svg(captured("lstm_lm"), theme="blue")  # type: ignore[arg-type]


def test_names_are_data() -> None:
    name = "<script>alert(1)</script>&\"'\x00\x1b\ud800"
    graph = captured("lstm_lm")
    tasks = tuple(replace(task, name=name, parameter=name if task.parameter else None) for task in graph.tasks)
    calls = tuple(ModuleCall(call.id, name + call.path, name, call.parent, call.index) for call in graph.calls)
    picture = graph_to_svg(replace(graph, tasks=tasks, calls=calls))
    ElementTree.fromstring(picture.encode())
    assert "<script" not in picture and "&lt;script&gt;" in picture


def test_the_legend_names_the_kinds_in_the_picture_and_no_others() -> None:
    x = torch.ones(4, requires_grad=True)
    y = Twice.apply(x).clone()
    y[:2].mul_(3)
    picture = graph_to_svg(ts.graph(y.sum()))
    for kind in (Kind.CPP, Kind.FUNCTION, Kind.ACCUMULATE_GRAD, Kind.COPY_SLICES):
        assert f">{KIND_TITLES[kind]}</text>" in picture
    for kind in (Kind.CHECKPOINT, Kind.ERROR, Kind.COMPILED, Kind.MODULE_HOOK):
        assert KIND_TITLES[kind] not in picture


def test_shapes_stand_on_the_edges_if_wanted_with_room_below_each_task() -> None:
    graph = captured("gpt2")
    assert 'ts-shape"' not in graph_to_svg(graph)
    root = ElementTree.fromstring(graph_to_svg(graph, shapes=True))
    placed = layout_of_picture(graph, shapes=True)
    texts = {(each.get("x"), each.get("y")): each.text or "" for each in by_class(root, "ts-shape")}
    tops = [task.rect.y for task in placed.tasks if not task.chip]
    seen = 0
    for wire in placed.wires:
        if wire.kind == "gradient" and wire.points[0][1] < wire.points[1][1]:
            x, y = wire.points[0]
            edges = [graph.edges[edge] for edge in wire.edges]
            shapes = {shape_text(graph.tasks[edge.next_task].inputs[edge.input].shape) for edge in edges}
            assert shapes <= {*texts[pixels(x + 5), pixels(y + 11)].split(", ")}
            assert not any(y < top < y + 12 for top in tops)
            seen += 1
    assert seen > 10
    pills = layout_of_picture(captured("gpt2"), "repeats", shapes=True).pills
    assert pills and all(re.search(r" \d+(×\d+)*$", pill.label) for pill in pills)


def test_kinds_differ_in_their_glyphs() -> None:
    graph = ts.graph(torch.ones(2, requires_grad=True).sum())
    glyphs = set()
    for kind in Kind:
        if kind is not Kind.ACCUMULATE_GRAD:
            tasks = tuple(replace(task, kind=kind) if task.id == 0 else task for task in graph.tasks)
            root = ElementTree.fromstring(graph_to_svg(replace(graph, tasks=tasks)))
            [glyph] = by_class(by_class(root, f"ts-{kind}")[0], "ts-glyph")
            glyphs.add(ElementTree.tostring(glyph))
    assert len(glyphs) == len(Kind) - 1


def test_no_text_is_wider_than_its_box() -> None:
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a_module_with_quite_a_long_name_which_says_everything_that_there_is_to_say = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner = self.a_module_with_quite_a_long_name_which_says_everything_that_there_is_to_say
            return functional.scaled_dot_product_attention(inner(x), x, x)

    with ts.capture():
        loss = Long()(torch.ones(1, 2, 4, 4)).sum()
    for graph in (ts.graph(loss), captured("gpt2"), captured("recommender")):
        placed = layout(graph)
        for task in placed.tasks:
            if not task.chip:
                caption = text_width(task.caption) + 7 if task.caption else 0
                assert 18 + text_width(task.label) + caption + 4 <= task.rect.width
        for pill in placed.pills:
            assert 16 + text_width(pill.label) + 4 <= pill.rect.width
        for stub in placed.stubs:
            assert 18 + text_width(stub.label) + 4 <= stub.rect.width
        for box in placed.boxes:
            subtitle = text_width(box.subtitle) + 6 if box.subtitle else 0
            assert 10 + text_width(box.title, bold=True) + subtitle + 4 <= box.rect.width


def test_long_names_of_modules_keep_their_end_and_numbers_are_never_cut() -> None:
    assert shorten("a" * 50, 60).endswith("…") and text_width(shorten("a" * 50, 60)) <= 60
    assert shorten("short", 60) == "short"
    assert shorten_path("short", 60) == "short"
    path = shorten_path("down_blocks.0.resnets.1.conv_shortcut", 110)
    assert path.startswith("…") and path.endswith("conv_shortcut") and text_width(path) <= 110
    parameter = shorten_middle("encoder." * 40 + "weight", 150)
    assert re.fullmatch(r"encoder.*….*weight", parameter) and text_width(parameter) <= 150
    name = "stage_with_a_long_name_" * 6
    stages = nn.ModuleDict(
        {f"{name}{index}": nn.Sequential(*[nn.Linear(2, 2) for _ in range(3)]) for index in range(12)}
    )
    x = torch.ones(1, 2)
    with ts.capture(stages):
        for stage in stages.values():
            x = stage(x)
    graph = ts.graph(x.sum())
    [box] = [box for box in layout(graph).boxes if box.group.times > 1 and box.depth == 0]
    assert box.title.startswith("…") and box.title.endswith("_11") and "×12" in box.subtitle
    picture = graph_to_svg(graph)
    assert f"{name}11" in picture, "the tooltip has the whole path"


def test_no_source_line_is_looked_up_for_a_large_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    from tapescope.inspector.drawing import svg

    graph = captured("lstm_lm")
    monkeypatch.setattr(svg, "SOURCES_UP_TO", 3)
    monkeypatch.setattr(type(graph.tasks[0].operation), "source", property(lambda self: pytest.fail("looked up")))
    graph_to_svg(graph)


def test_corners_are_rounded_and_steps_between_ranks_are_curves() -> None:
    assert path_data([(0, 0), (0, 50)]) == "M0 0L0 50"
    assert path_data([(0, 0), (0, 50), (40, 50)]) == "M0 0L0 44Q0 50 6 50L40 50"
    assert path_data([(0, 0), (30, 20)]) == "M0 0C0 10 30 10 30 20"
    assert path_data([(0, 0), (0, 4), (40, 4)]) == "M0 0L0 2Q0 4 2 4L40 4"


def test_in_a_notebook_a_wide_picture_is_fitted_into_its_cell_and_a_narrow_one_is_not_blown_up() -> None:
    x = torch.ones(1, requires_grad=True)
    narrow = ts.graph(x.exp())
    wide = ts.graph(torch.stack([(x * number).exp().sin() + x.cos() for number in range(12)]))
    assert 'width="' in narrow._repr_svg_().partition(">")[0]
    assert 'width="' in wide.to_svg().partition(">")[0] and 'width="' not in wide._repr_svg_().partition(">")[0]
