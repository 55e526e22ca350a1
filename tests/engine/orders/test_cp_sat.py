"""The constraint solver's orders and bounds, held against brute force."""

from __future__ import annotations

from unittest import mock

import pytest

import tapescope as ts
from tapescope.engine.orders.cp_sat import MOST_TASKS, cp_sat
from tapescope.engine.orders.problem import Problem
from tapescope.engine.workloads.workloads import workload

from .problems import is_legal, least_peak, problem_of, random_problem


def test_the_bounds_hold_the_orders_are_legal_and_most_are_proven_the_best() -> None:
    proven = 0
    for seed in range(16):
        problem = random_problem(7, seed)
        found, least = cp_sat(problem, seconds=5.0), least_peak(problem)
        assert found.bound_bytes <= least <= found.peak_bytes == problem.peak_bytes(found.order)
        assert is_legal(problem, found.order)
        assert found.proven == (found.bound_bytes == found.peak_bytes)
        proven += found.proven
    assert proven >= 12  # the solver may run out of time on a busy machine, and fails on a few


def test_a_poor_hint_is_improved_on_and_what_ran_stays_first() -> None:
    # Task 0 opens two branches; 3 needs much, and only 2 makes room for it.
    problem = problem_of(
        5, [(0, 1), (0, 2), (1, 3), (2, 4)], [1, 4, 1, 8, 0], [(4, 1, 3), (6, None, 2), (1, 0, [1, 2])]
    )
    poor = [0, 1, 3, 2, 4]
    found = cp_sat(problem, seconds=5.0, hint=poor)
    assert found.peak_bytes == least_peak(problem) < problem.peak_bytes(poor)
    assert cp_sat(problem, ran=[0, 1, 3], seconds=5.0).order[:3] == (0, 1, 3)


def test_of_a_real_backward_the_bound_is_below_every_order() -> None:
    _, make_loss = workload("linear50").build(uses=4, width=16)
    problem = Problem(ts.graph(make_loss()))
    found = cp_sat(problem, seconds=2.0)
    assert 0 < found.bound_bytes <= found.peak_bytes == problem.peak_bytes(found.order)
    for policy in ("bfs", "dfs", "heap", "random(1)", "random(2)"):
        assert found.bound_bytes <= ts.simulate(problem.graph, policy).peak_bytes


def test_without_the_solver_and_for_too_many_tasks_it_says_what_to_do() -> None:
    problem = problem_of(2, [(0, 1)])
    with (
        mock.patch("tapescope.engine.orders.cp_sat.find_spec", return_value=None),
        pytest.raises(ModuleNotFoundError, match=r"pip install 'tapescope\[exact\]'"),
    ):
        cp_sat(problem)
    many = problem_of(MOST_TASKS + 1, [(task, task + 1) for task in range(MOST_TASKS)])
    with pytest.raises(ValueError, match="301 tasks"):
        cp_sat(many)
