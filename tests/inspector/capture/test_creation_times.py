"""The time at which the forward created each task's node, beside clocks of the test's own."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from time import perf_counter_ns, sleep

import graphviz
import pytest
import torch
from torch import nn
from torch.nn import functional

import tapescope as ts
from tapescope.inspector.torch_private.nodes import TELLS_OF_NEW_NODES
from tapescope.tests.says import raises

Bracket = tuple[int, int]
"""The times before and after an operation."""


def sines(count: int = 6, pause_s: float = 0.002) -> tuple[torch.Tensor, list[Bracket]]:
    """Return the loss of sines in a row, with a pause between, and their brackets."""
    x = torch.ones(8, requires_grad=True)
    brackets = []
    for _ in range(count):
        before = perf_counter_ns()
        x = x.sin()
        brackets.append((before, perf_counter_ns()))
        sleep(pause_s)
    return x, brackets


def times_of(graph: ts.Graph) -> list[int]:
    return [task.created_ns for task in graph.tasks if task.created_ns is not None]


@pytest.mark.parametrize("every_call", [False, True])
def test_the_times_between_tasks_are_those_between_their_operations(every_call: bool) -> None:
    with ts.capture(every_call=every_call):
        loss, brackets = sines()
    times = times_of(ts.graph(loss))
    assert len(times) == len(brackets)
    assert 0 <= times[0] <= brackets[0][1] - brackets[0][0]
    for one, other in combinations(range(len(times)), 2):
        (began, ended), (next_began, next_ended) = brackets[one], brackets[other]
        assert next_began - ended <= times[other] - times[one] <= next_ended - began


@pytest.mark.skipif(not TELLS_OF_NEW_NODES, reason="torch 2.14 has the hook for new nodes")
def test_the_time_is_that_of_torchs_creation_hook_for_each_node_of_an_operation() -> None:
    weight, x = torch.ones(4, 4, requires_grad=True), torch.ones(2, 3, 4, requires_grad=True)
    kept = x.exp(), weight * 1  # the leaves' nodes exist now, so that the hook does not see them
    reported = list[int]()
    with ts.capture(), torch.autograd.graph.node_creation_hook(lambda _: reported.append(perf_counter_ns())):
        start = perf_counter_ns()
        made = functional.linear(x.exp(), weight)
    times = times_of(ts.graph(made))
    assert kept and len(times) == len(reported) > 2
    assert len(set(times)) == len(times), "the nodes of linear have times of their own"
    earliest = [start, *reported]  # the hook is called after ours, for one node after the other
    for one, other in combinations(range(len(times)), 2):
        assert earliest[other] - reported[one] <= times[other] - times[one] <= reported[other] - earliest[one]


def test_the_forward_begins_with_the_graphs_first_operation_not_with_the_capture() -> None:
    with ts.capture(every_call=True):
        other, _ = sines(1)
        sleep(0.02)
        before = perf_counter_ns()
        loss, _ = sines(2)
        whole = perf_counter_ns() - before
    assert max(times_of(ts.graph(loss))) <= whole
    assert max(times_of(ts.graph([loss, other]))) > 20_000_000
    assert ts.graph(loss).tasks[0] == ts.graph([loss]).tasks[0]


def test_leaves_graphs_without_a_capture_and_tapes_of_autograd_have_no_time() -> None:
    layer = nn.Linear(2, 2)
    with ts.capture():
        captured = ts.graph(layer(torch.ones(1, 2)).sum())
    assert [task.created_ns is None for task in captured.tasks] == [task.is_leaf for task in captured.tasks]
    assert not times_of(ts.graph(layer(torch.ones(1, 2)).sum()))
    autograd = pytest.importorskip("autograd.numpy")
    assert not times_of(ts.graph(ts.hips.tape(lambda x: autograd.sum(autograd.sin(x)), autograd.ones(3))))


def saved_run(tmp_path: Path) -> tuple[ts.Run, Path]:
    run = ts.profile(lambda: sines(2)[0].sum())
    return run, run.save(tmp_path / "run.json")


def test_a_file_of_a_run_keeps_the_times_and_one_without_them_loads(tmp_path: Path) -> None:
    run, path = saved_run(tmp_path)
    created = [task.created_ns for task in run.graph.tasks]
    assert [task.created_ns for task in ts.load(path).graph.tasks] == created and any(created)
    content = json.loads(path.read_text())
    del content["graph"]["created_ns"]
    path.write_text(json.dumps(content))
    assert not times_of(ts.load(path).graph)


def test_a_damaged_column_of_times_is_named(tmp_path: Path) -> None:
    _, path = saved_run(tmp_path)
    content = json.loads(path.read_text())
    for wrong in ([0], [-2] * len(content["graph"]["name"]), [1.5] * len(content["graph"]["name"])):
        content["graph"]["created_ns"] = wrong
        path.write_text(json.dumps(content))
        with raises(ValueError, "created_ns"):
            ts.load(path)


def test_exports_of_a_graph_have_the_times() -> None:
    with ts.capture():
        loss = sines(2)[0].sum()
    graph, pandas = ts.graph(loss), pytest.importorskip("pandas")
    tasks = json.loads(graph.to_json())["tasks"]
    assert [task["created_ns"] for task in tasks] == [task.created_ns for task in graph.tasks]
    table = graph.to_pandas()
    assert list(table.task) == list(range(len(graph)))
    for created_s, task in zip(table.created_s, graph.tasks, strict=True):
        assert pandas.isna(created_s) if task.created_ns is None else created_s == pytest.approx(task.created_ns / 1e9)
    assert graph.to_svg(fold="none").count("into the forward") == len(times_of(graph))
    drawn = graph.to_graphviz()
    assert isinstance(drawn, graphviz.Digraph) and drawn.source.count("into the forward") == len(times_of(graph))


def test_a_graph_without_times_draws_and_exports_none() -> None:
    graph = ts.graph(sines(2)[0])
    assert {task["created_ns"] for task in json.loads(graph.to_json())["tasks"]} == {None}
    assert "into the forward" not in graph.to_svg() + graph.to_graphviz().source
    pytest.importorskip("pandas")
    assert graph.to_pandas().created_s.isna().all()
