from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import tapehead as th
from tapehead.engine.workloads import workload
from tapehead.inspector.graph import Edge, Fold, Graph, ModuleCall, Root, Task
from tapehead.inspector.kinds import Kind
from tapehead.inspector.layout import Layout, PlacedWire, Rect, layout

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


def captured(name: str, **knobs: int) -> Graph:
    _, make_loss = workload(name).build(**knobs)
    with th.capture():
        loss = make_loss()
    return th.graph(loss)


def small_rects(placed: Layout) -> list[tuple[str, frozenset[int], Rect]]:
    """Everything that a wire must not cross and that must not overlap: kind, the tasks that it stands for, rectangle."""
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
    """The wire as it is drawn: a sideways step is the S-curve of `svg.path_data`, here in 12 pieces."""
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
    """Whether the segment runs through the rectangle's inside (Liang and Barsky)."""
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
    """No overlaps, nested boxes, every task in its own boxes alone, no wire through a foreign box, all in the picture."""
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
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_nothing_overlaps_and_no_wire_runs_through_a_foreign_box(graph: Graph, fold: Fold) -> None:
    check_geometry(graph, layout(graph, fold))


@pytest.mark.parametrize("fold", ["repeats", "none", 0, 1])
@pytest.mark.parametrize("name", ["resnet50", "gpt2", "unet", "linear50", "recommender", "ensemble", "lstm_lm"])
def test_the_geometry_of_real_models_is_sound(name: str, fold: Fold) -> None:
    graph = captured(name)
    check_geometry(graph, layout(graph, fold))


@pytest.mark.parametrize("fold", ["repeats", "none"])
def test_the_geometry_of_an_unrolled_cell_is_sound(fold: Fold) -> None:
    graph = captured("lstm_cell", steps=12)
    check_geometry(graph, layout(graph, fold))
