"""The data about a backward that planners receive."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.studies.workloads import workload


def residual() -> Tensor:
    x = torch.randn(8, 8, requires_grad=True)
    y = (x @ x).tanh()
    return (y + (y @ x).relu() + y.t()).sum()


def summed() -> Tensor:
    x = torch.randn(16, requires_grad=True)
    return torch.stack([(x * number).exp() for number in range(5)]).sum()


@pytest.mark.parametrize(
    "make",
    [
        residual,
        summed,
        *(workload(name).build()[1] for name in ("gpt2", "lstm_cell", "linear50", "recommender", "ensemble", "unet")),
    ],
)
def test_the_levels_of_heaps_order_are_the_simulations(make: Callable[[], Tensor]) -> None:
    problem = Problem(ts.graph(make()))
    timeline = problem.heap_timeline
    peak, peaks = problem.levels(problem.heap_order)
    assert peaks == list(timeline.task_peaks)
    assert peak == timeline.peak_bytes
    assert problem.start_bytes == timeline.start_bytes


def test_tasks_wait_for_each_other_as_in_the_graph_each_counted_once() -> None:
    x = torch.randn(4, requires_grad=True)
    y = x.exp()
    problem = Problem(ts.graph((y * y).sum()))  # both of its outputs go to one task
    mul, exp = (next(task.id for task in problem.graph.tasks if name in task.name) for name in ("Mul", "Exp"))
    assert problem.nexts[mul] == [exp]
    assert problem.waits[exp] == 1
    assert problem.start() == [problem.graph.roots[0].task]


def test_what_inputs_leaves_out_is_in_no_list() -> None:
    x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    graph = ts.graph((x.exp() * w.exp()).sum())
    needed = {task.id for task in graph.tasks} - {
        task.id for task in graph.tasks if task.is_leaf and task.sequence_nr and graph.leaves[task.id] is w
    }
    problem = Problem(graph, needed=needed)
    assert set(problem.tasks) == needed
    assert {task for tasks in problem.nexts for task in tasks} <= needed


def test_given_times_are_taken_and_the_rest_is_guessed_by_size() -> None:
    x = torch.randn(1000, requires_grad=True)
    graph = ts.graph(x.exp().sum())
    guessed = Problem(graph).durations
    assert all(duration > 0 for duration in guessed)
    assert Problem(graph, durations={0: 7.0}).durations == [7.0, *guessed[1:]]
