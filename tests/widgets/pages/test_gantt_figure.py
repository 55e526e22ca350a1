from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
import torch

import tapescope as ts
from tapescope.engine.studies.gantt import Gantt, MakespanReport
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.tests.says import Snapshots, says, says_none_of
from tapescope.widgets.pages.gantt_figure import _IDLE, _READY, gantt_drawing, why_idle
from tapescope.widgets.pages.theme import DARK, LIGHT

NASTY = "<b>x</b><script>alert(1)</script>$y$&amp;"
POLICIES = ("bfs", "dfs", "heap")


@pytest.fixture(scope="module")
def report() -> MakespanReport:
    _, make_loss = WORKLOADS["two_devices"].build()
    with ts.capture():
        graph = ts.graph(make_loss())
    return ts.makespan(graph, policies=POLICIES, durations=[10_000] * len(graph), device_of={"far": "cuda:0"})


def spans(traces: list[dict[str, Any]], axis: str, row: int) -> list[tuple[float, float]]:
    """From where to where there is a bar in one row of one policy, in the figure's unit of time."""
    return sorted(
        (round(base, 6), round(base + length, 6))
        for trace in traces
        if trace["type"] == "bar" and trace["yaxis"] == axis
        for base, length, y in zip(trace["base"], trace["x"], trace["y"], strict=True)
        if y == row
    )


def test_of_each_device_every_moment_is_a_task_or_hatched(report: MakespanReport) -> None:
    traces = report.figure().to_plotly_json()["data"]
    for number, gantt in enumerate(report.rows):
        for row, device in enumerate(gantt.rows):
            found = spans(traces, f"y{number + 1}" if number else "y", row)
            idle = [(idle.start_ns / 1e6, idle.end_ns / 1e6) for idle in gantt.idle[device]]
            ran = [(bar.start_ns / 1e6, bar.end_ns / 1e6) for bar in gantt.rows[device]]
            assert found == sorted([*idle, *ran])
            assert found[0][0] == 0 and found[-1][1] == pytest.approx(gantt.makespan_ns / 1e6)
    hatched = [trace for trace in traces if trace["name"] == _IDLE]
    assert len(hatched) == 3 and all(trace["marker"]["pattern"]["shape"] == "/" for trace in hatched)


def test_makespans_are_lines_with_their_times_and_the_bound_goes_through_all(
    report: MakespanReport, snapshot: Snapshots
) -> None:
    figure = report.figure()
    lines = {shape.x0: (shape.y0, shape.y1) for shape in figure.layout.shapes if shape.line.dash is None}
    assert sorted(lines) == [1.01, 1.97]
    (bound,) = [shape for shape in figure.layout.shapes if shape.line.dash == "dot"]
    assert (bound.x0, bound.y0, bound.y1) == (1.01, 0, 1)
    told = [note.text for note in figure.layout.annotations]
    assert told == ["<b>bfs</b>", "<b>1.01 ms</b>", "<b>dfs</b>", "<b>1.97 ms</b>", "<b>heap</b>", "<b>1.97 ms</b>"]
    named = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert named[:2] == [_IDLE, _READY]
    says(named[2], "1.01 ms")
    snapshot("makespan", "\n".join(named).replace("1.01 ms", "BOUND"))


def test_the_policies_are_below_each_other_over_one_axis_of_time(report: MakespanReport) -> None:
    layout = report.figure().layout
    domains = [layout[axis].domain for axis in ("yaxis", "yaxis2", "yaxis3")]
    assert all(upper[0] > lower[1] for upper, lower in pairwise(domains))
    assert layout.xaxis.range == (0, 1.97) and layout.xaxis.anchor == "y3"
    says(layout.xaxis.title.text, "ms")
    assert layout.yaxis2.ticktext == ("cpu", "cuda:0")


def test_what_an_idle_device_waits_for_is_drawn_and_told(report: MakespanReport, snapshot: Snapshots) -> None:
    (bfs, *_), heap = report.rows, report["heap"]
    waits = [trace for trace in report.figure().data if trace.name == _READY]
    assert [list(trace.x) for trace in waits] == [[0.04, 1.0]] * 2, "under dfs and heap, not under bfs"
    starved = heap.starved
    assert starved is not None
    told = [why_idle(heap, starved), why_idle(heap, heap.idle["cpu"][-1]), why_idle(bfs, bfs.idle["cuda:0"][0])]
    says(told[0], "cuda:0", "960 µs", "cpu")
    says(told[1], "cpu", "960 µs")
    says_none_of(told[1], "cuda:0")
    says(told[2], "cuda:0")
    snapshot("makespan", re.sub(r"\b\w+\.py:\d+", "FILE:LINE", "\n".join(told)))


def test_a_single_policy_has_a_figure_too(report: MakespanReport) -> None:
    figure = report["bfs"].figure("dark")
    assert figure.layout.paper_bgcolor == DARK["panel"] and len(figure.layout.shapes) == 1
    assert not any(trace.type == "scatter" and trace.line.dash == "dot" for trace in figure.data)


def test_both_themes_have_their_colours(report: MakespanReport) -> None:
    drawings = [gantt_drawing(report.rows, colours, report.lower_bound_ns) for colours in (LIGHT, DARK)]
    colours = [drawing["data"][0]["marker"]["color"] for drawing in drawings]
    assert colours == [LIGHT["saved"], DARK["saved"]]


def test_a_users_names_are_text() -> None:
    x = torch.ones(1, requires_grad=True)

    def nasty(ready: list[ts.Task], state: object) -> ts.Task:
        return ready[0]

    nasty.__name__ = NASTY
    gantt = ts.makespan(ts.graph(x.exp().sin()), nasty, device_of=lambda task: NASTY if task.is_leaf else "cpu")
    assert "<script" not in str(gantt.figure().to_plotly_json()).replace("&lt;script", "")


def test_very_many_tasks_are_drawn_together_and_none_is_lost() -> None:
    _, make_loss = WORKLOADS["mlp_norm"].build()
    gantt: Gantt = ts.makespan(ts.graph(make_loss()))
    (trace,) = [trace for trace in gantt.figure().data if trace.name == "heap, cpu"]
    assert len(trace.x) <= 2400 < len(gantt.order)
    assert sum(trace.x) == pytest.approx(gantt.makespan_ns / 1e6)
    assert any("tasks</b>" in told for told in trace.customdata)
