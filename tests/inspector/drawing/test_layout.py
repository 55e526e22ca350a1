from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import tapescope as ts
from tapescope.inspector.drawing.boxes import SPINE
from tapescope.inspector.drawing.fold import fold_graph
from tapescope.inspector.drawing.layout import Layout, PlacedWire, Rect, lay_out, layout
from tapescope.inspector.graph.graph import Edge, Fold, Graph, ModuleCall, Root, Task
from tapescope.inspector.graph.kinds import Kind

from ..programs import captured

TOLERANCE = 0.4


def make_graph(
    names: list[str],
    edges: list[tuple[int, int]],
    calls: list[ModuleCall] | None = None,
    call_of: list[int | None] | None = None,
) -> Graph:
    """A graph by hand: edges go from higher task ids to lower ones; tasks named AccumulateGrad are leaves' tasks."""
    outputs = [0] * len(names)
    found = []
    for source, target in sorted(set(edges)):
        found.append(Edge(source, outputs[source], target, 0))
        outputs[source] += 1
    entered = {edge.next_task for edge in found}
    tasks = tuple(
        Task(
            number,
            name,
            Kind.ACCUMULATE_GRAD if name == "AccumulateGrad" else Kind.CPP,
            number,
            (),
            call=call_of[number] if call_of else None,
        )
        for number, name in enumerate(names)
    )
    roots = tuple(Root(number, 0) for number in range(len(names)) if number not in entered)
    return Graph(tasks, tuple(found), roots, tuple(calls or ()))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs with random module calls: nested, repeated, and not convex."""
    count = draw(st.integers(1, 45))
    number = st.integers(0, count - 1)
    leaves = draw(st.integers(0, min(5, count - 1)))
    names = draw(
        st.lists(st.sampled_from(["MulBackward0", "AddmmBackward0", "TBackward0"]), min_size=count, max_size=count)
    )
    if draw(st.booleans()):
        names = ["MulBackward0"] * count
    names = names + ["AccumulateGrad"] * leaves
    pairs = draw(st.lists(st.tuples(number, number), max_size=2 * count))
    if draw(st.booleans()):
        pairs += [(upper, upper - 1) for upper in range(1, count)]
    edges = [(max(pair), min(pair)) for pair in pairs if pair[0] != pair[1]]
    uses = draw(st.lists(st.tuples(number, st.integers(count, count + leaves - 1)), max_size=20)) if leaves else []
    calls: list[ModuleCall] = []
    for index in range(draw(st.integers(0, 8))):
        parent = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
        above = f"{calls[parent].path}." if parent is not None else ""
        path = above + draw(st.sampled_from(["block", "linear.0", "x"]))
        calls.append(ModuleCall(index, path, draw(st.sampled_from(["Block", "Linear"])), parent, 0))
    if calls and draw(st.booleans()):  # one call after the other, as a forward makes them
        cuts = sorted(draw(st.lists(number, min_size=len(calls), max_size=len(calls))))
        call_of = [next((call for call, cut in enumerate(cuts) if task <= cut), None) for task in range(count)]
    else:
        one = st.one_of(st.none(), st.integers(0, len(calls) - 1)) if calls else st.none()
        call_of = draw(st.lists(one, min_size=count, max_size=count))
    return make_graph(names, edges + uses, calls, [*call_of, *[None] * leaves])


def small_rects(placed: Layout) -> list[tuple[str, frozenset[int], Rect]]:
    """Return the rectangles that no wire may cross and nothing may overlap, with kind and tasks."""
    found = [("task", frozenset([task.task]), task.rect) for task in placed.tasks]
    found += [("pill", frozenset(pill.tasks), pill.rect) for pill in placed.pills]
    found += [("stub", frozenset([*stub.others, stub.task]), stub.rect) for stub in placed.stubs]
    found += [("row", frozenset(row.tasks), row.rect) for row in placed.rows]
    found += [("card", frozenset(box.group.tasks()), box.rect) for box in placed.boxes if box.group.closed]
    return found


def overlap(one: Rect, other: Rect) -> bool:
    return (
        one.x < other.right - TOLERANCE
        and other.x < one.right - TOLERANCE
        and one.y < other.bottom - TOLERANCE
        and other.y < one.bottom - TOLERANCE
    )


def inside(inner: Rect, outer: Rect) -> bool:
    return (
        inner.x >= outer.x - TOLERANCE
        and inner.y >= outer.y - TOLERANCE
        and inner.right <= outer.right + TOLERANCE
        and inner.bottom <= outer.bottom + TOLERANCE
    )


def drawn_segments(wire: PlacedWire) -> Iterator[tuple[float, float, float, float]]:
    """Return the wire as drawn: a sideways step is the S-curve of `svg.path_data`, here in 12 pieces."""
    for (x, y), (to_x, to_y) in pairwise(wire.points):
        if x == to_x or y == to_y:
            yield x, y, to_x, to_y
            continue
        middle = (y + to_y) / 2
        curve = []
        for step in range(13):
            t = step / 12
            a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
            curve.append(((a + b) * x + (c + d) * to_x, a * y + (b + c) * middle + d * to_y))
        for (ax, ay), (bx, by) in pairwise(curve):
            yield ax, ay, bx, by


def crosses(segment: tuple[float, float, float, float], rect: Rect) -> bool:
    """Return whether the segment crosses the rectangle's inside (Liang and Barsky)."""
    x, y, to_x, to_y = segment
    left, right = rect.x + TOLERANCE, rect.right - TOLERANCE
    top, bottom = rect.y + TOLERANCE, rect.bottom - TOLERANCE
    if max(x, to_x) <= left or min(x, to_x) >= right or max(y, to_y) <= top or min(y, to_y) >= bottom:
        return False
    enter, leave = 0.0, 1.0
    for start, step, low, high in ((x, to_x - x, left, right), (y, to_y - y, top, bottom)):
        if step == 0:
            continue
        near, far = sorted(((low - start) / step, (high - start) / step))
        enter, leave = max(enter, near), min(leave, far)
    return enter < leave


def check_geometry(graph: Graph, placed: Layout) -> None:
    """No overlaps, nested boxes, every task in its own boxes alone, no wire through a foreign box, all on the page."""
    page = Rect(0, 0, placed.width, placed.height)
    rects = small_rects(placed)
    for kind, tasks, rect in rects:
        assert inside(rect, page), f"{kind} {set(tasks)} is out of the picture"
    by_x = sorted(rects, key=lambda each: each[2].x)
    for index, (kind, tasks, rect) in enumerate(by_x):
        for other_kind, other_tasks, other in by_x[index + 1 :]:
            if other.x >= rect.right:
                break
            assert not overlap(rect, other), f"{kind} {set(tasks)} overlaps {other_kind} {set(other_tasks)}"
    for one, other in combinations(placed.boxes, 2):
        nested = inside(one.rect, other.rect) or inside(other.rect, one.rect)
        assert nested or not overlap(one.rect, other.rect), f"boxes {one.title} and {other.title} overlap"
    open_boxes = [(frozenset(box.group.tasks()), box) for box in placed.boxes if not box.group.closed]
    for tasks, box in open_boxes:
        for kind, stands_for, rect in rects:
            if kind in ("task", "card"):
                assert inside(rect, box.rect) == (stands_for <= tasks), f"{kind} {set(stands_for)} and box {box.title}"
            else:
                assert inside(rect, box.rect) or not overlap(rect, box.rect), (
                    f"{kind} is across the edge of {box.title}"
                )
    for wire in placed.wires:
        check_wire(wire, rects, [(tasks, box.rect) for tasks, box in open_boxes], page)


def check_wire(
    wire: PlacedWire,
    rects: list[tuple[str, frozenset[int], Rect]],
    open_boxes: list[tuple[frozenset[int], Rect]],
    page: Rect,
) -> None:
    ends = {wire.source, wire.target}
    if not wire.points:
        return
    xs, ys = zip(*wire.points, strict=True)
    left, right, top, bottom = min(xs), max(xs), min(ys), max(ys)
    rects = [
        each
        for each in rects
        if left < each[2].right and right > each[2].x and top < each[2].bottom and bottom > each[2].y
    ]
    segments = list(drawn_segments(wire))
    for x, y in wire.points:
        assert -TOLERANCE <= x <= page.width + TOLERANCE and -TOLERANCE <= y <= page.height + TOLERANCE
    for segment in segments:
        for kind, tasks, rect in rects:
            if crosses(segment, rect):
                assert tasks & ends, f"wire {ends} runs through {kind} {set(tasks)}"
        if wire.kind == "gradient":
            for tasks, rect in open_boxes:
                assert tasks & ends or not crosses(segment, rect), f"wire {ends} runs through a box of {set(tasks)}"


FOLDS: list[Fold] = ["repeats", "none", 0, 1]


@given(graphs(), st.sampled_from(FOLDS))
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_nothing_overlaps_and_no_wire_runs_through_a_foreign_box(graph: Graph, fold: Fold) -> None:
    check_geometry(graph, layout(graph, fold))


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("name", ["resnet50", "gpt2", "unet", "linear50", "recommender", "ensemble", "lstm_lm"])
def test_the_geometry_of_real_models_is_sound(name: str, fold: Fold) -> None:
    graph = captured(name)
    check_geometry(graph, layout(graph, fold))


@pytest.mark.parametrize("fold", ["repeats", "none"])
def test_the_geometry_of_an_unrolled_cell_is_sound(fold: Fold) -> None:
    graph = captured("lstm_cell", steps=12)
    check_geometry(graph, layout(graph, fold))


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("name", ["resnet50", "gpt2", "lstm_cell", "linear50", "recommender"])
def test_every_task_and_every_edge_is_in_the_picture_or_represented(name: str, fold: Fold) -> None:
    graph = captured(name)
    placed = layout(graph, fold)
    drawn = {task.task for task in placed.tasks}
    drawn |= {task for pill in placed.pills for task in pill.tasks}
    in_cards = {task for box in placed.boxes if box.group.closed for task in box.group.tasks()}
    for task in graph.tasks:
        shown = placed.shown_by[task.id]
        if task.name != "torch::autograd::AccumulateGrad":
            assert shown in drawn | in_cards
        elif all(placed.shown_by[edge.task] in in_cards for edge in graph.in_edges[task.id]):
            continue  # a parameter of closed boxes alone
        else:
            assert shown in drawn
    edges = [edge for wire in placed.wires for edge in wire.edges]
    assert len(edges) == len(set(edges)) or fold == "repeats"
    hidden = {number for number in range(len(graph.edges)) if number not in set(edges)}
    for number in hidden:
        edge = graph.edges[number]
        inside_card = placed.shown_by[edge.task] in in_cards
        folded = placed.shown_by[edge.task] != edge.task or placed.shown_by[edge.next_task] != edge.next_task
        assert inside_card or folded, f"{edge} is lost"


def test_a_chain_is_straight_and_wraps_into_columns_of_a_readable_shape() -> None:
    count = 300
    graph = make_graph(["MulBackward0"] * count, [(task, task - 1) for task in range(1, count)])
    placed = lay_out(graph, fold_graph(graph, "none"))
    columns: dict[float, list[int]] = {}
    for task in placed.tasks:
        columns.setdefault(task.rect.x + task.rect.width / 2, []).append(task.task)
    assert 4 < len(columns) < 40
    assert 1 < placed.width / placed.height < 2.6
    for tasks in columns.values():
        assert sorted(tasks) == list(range(min(tasks), max(tasks) + 1)), "a column holds one piece of the chain"


def test_the_root_is_at_the_top_and_gradients_flow_down_within_a_column() -> None:
    placed = layout(make_graph(["MulBackward0"] * 5, [(4, 3), (3, 2), (3, 1), (2, 0), (1, 0)]))
    y = {task.task: task.rect.y for task in placed.tasks}
    assert y[4] < y[3] < y[2] == y[1] < y[0]


def test_a_residual_sum_does_not_bend_the_main_path() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.b(self.a(x).relu())

    x = torch.ones(2, 4, requires_grad=True).exp()
    with ts.capture():
        loss = Block()(x).sum()
    placed = layout(ts.graph(loss))
    names = {task.task: task.label for task in placed.tasks}
    spines = {names[task.task]: task.rect.x for task in placed.tasks if task.label != "T"}
    assert len(set(spines.values())) == 1, spines


def test_parameters_are_pills_beside_their_task_and_stubs_at_further_uses() -> None:
    shared = nn.Linear(4, 4)
    with ts.capture(shared):
        loss = shared(shared(shared(torch.ones(2, 4)))).sum()
    placed = layout(ts.graph(loss), "none")
    assert sorted(pill.label for pill in placed.pills) == ["bias", "weight"]
    assert sorted(stub.label for stub in placed.stubs) == ["bias", "bias", "weight", "weight"]
    places = {task.task: task.rect for task in placed.tasks}
    for beside in (*placed.pills, *placed.stubs):
        user = places[beside.user if hasattr(beside, "user") else beside.task]
        assert abs((user.y + user.height / 2) - (beside.rect.y + beside.rect.height / 2)) < 1


def test_sixteen_siblings_of_one_kind_become_a_row_of_chips_and_fifteen_do_not() -> None:
    def rows(count: int) -> list[str]:
        edges = [(count, task) for task in range(count)]
        return [row.label for row in layout(make_graph(["AddmmBackward0"] * count + ["StackBackward0"], edges)).rows]

    assert rows(16) == ["Addmm ×16"]
    assert rows(15) == []


def test_a_grid_of_very_many_chips_has_one_wire_for_all() -> None:
    count = 200
    names = ["MulBackward0"] * count + ["StackBackward0", "AccumulateGrad"]
    edges = [(count, task) for task in range(count)] + [(task, count + 1) for task in range(count)]
    graph = make_graph(names, edges)
    placed = layout(graph)
    check_geometry(graph, placed)
    assert placed.width < 1500 and [row.label for row in placed.rows] == ["Mul ×200"]
    assert sorted(len(wire.edges) for wire in placed.wires) == [count, count]


def test_the_fan_over_a_row_of_chips_is_symmetric() -> None:
    placed = layout(captured("linear50"))
    [box] = placed.boxes
    [stack] = [task.rect for task in placed.tasks if task.label == "Stack"]
    chips = [task.rect.x for task in placed.tasks if task.chip]
    assert abs(stack.x + SPINE - (min(chips) + max(chips)) / 2) < 20 and box.rect.width < 1200


def test_fifty_uses_of_one_linear_are_two_rows_that_share_two_pills() -> None:
    placed = layout(captured("linear50"))
    assert [row.label for row in placed.rows] == ["Addmm ×50", "T ×50"]
    assert sum(task.chip for task in placed.tasks) == 100
    assert sorted(pill.label for pill in placed.pills) == ["bias", "weight"] and not placed.stubs
    assert [box.subtitle for box in placed.boxes] == ["Linear, 50 calls"]


def test_a_fan_of_long_wires_becomes_stubs_at_both_ends() -> None:
    count = 60
    chain = [(task, task - 1) for task in range(1, count)]
    fan = [(count - 1, task) for task in range(count - 10)]
    placed = layout(make_graph(["MulBackward0"] * count, chain + fan))
    assert sum(stub.kind == "from" for stub in placed.stubs) == len(fan)
    assert [stub.label for stub in placed.stubs if stub.kind == "to"] == [f"Mul ×{len(fan)}"]


def test_a_graph_without_module_calls_and_an_unconnected_one_are_laid_out() -> None:
    graph = make_graph(["MulBackward0"] * 6, [(5, 4), (3, 2)])
    placed = layout(graph)
    check_geometry(graph, placed)
    assert len(placed.tasks) == 6 and not placed.boxes


def test_a_very_long_chain_and_deeply_nested_modules_are_no_recursion() -> None:
    count = 20_000
    placed = layout(make_graph(["MulBackward0"] * count, [(task, task - 1) for task in range(1, count)]), "none")
    assert len(placed.tasks) == count
    depth = 1500
    calls = [
        ModuleCall(level, ".".join(["x"] * (level + 1)), "Block", level - 1 if level else None, 0)
        for level in range(depth)
    ]
    graph = make_graph(["MulBackward0"] * 2, [(1, 0)], calls, [depth - 1, depth - 1])
    assert len(layout(graph, "none").boxes) == depth


def test_equal_graphs_have_equal_layouts() -> None:
    assert layout(captured("gpt2")) == layout(captured("gpt2", batch=3))
