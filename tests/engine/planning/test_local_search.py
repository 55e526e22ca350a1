"""Orders improved by moving tasks about."""

from __future__ import annotations

import random
from time import perf_counter
from typing import Any

import pytest
import torch

import tapescope as ts
from tapescope.engine.planning.local_search import SearchResult, _Levels, search, searched_order
from tapescope.engine.planning.lower_bound import lower_bound
from tapescope.engine.planning.policies import portfolio
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots, raises

from ..graph_shapes import SHAPES
from .problems import is_legal, least_peak, problem_of, random_problem


def problem_named(name: str, **knobs: int) -> Problem:
    return Problem(ts.graph(workload(name).build(**knobs)[1]()))


def test_of_small_problems_it_finds_the_least_peak_and_never_loses_what_it_had() -> None:
    found_least = 0
    for seed in range(60):
        problem = random_problem(random.Random(seed).randint(6, 11), seed)
        start = schedule(problem.graph, "bfs")
        found = search(problem, start, evaluations=400, seed=seed)
        assert is_legal(problem, found.order)
        assert found.peak_bytes == problem.peak_bytes(found.order) <= found.start_bytes == problem.peak_bytes(start)
        least = least_peak(problem)
        assert found.peak_bytes >= least >= found.bound_bytes
        found_least += found.peak_bytes == least
    assert found_least >= 58


# The least reduction of HEAP's peak.
@pytest.mark.parametrize(("name", "share"), [("recommender", 0.029), ("din", 0.23), ("lstm_cell", 0.05)])
def test_of_models_whose_order_matters_it_finds_a_better_one_than_heaps(name: str, share: float) -> None:
    problem = problem_named(name)
    found = search(problem, problem.heap_order, seconds=1e6, evaluations=2000)
    assert found.start_bytes == problem.heap_timeline.peak_bytes
    assert found.peak_bytes == ts.simulate(problem.graph, found.order).peak_bytes
    assert found.peak_bytes < found.start_bytes * (1 - share)


def test_it_lets_another_of_the_summed_gradients_come_first() -> None:
    """The head's gradient is a view, to which nothing can be added in place; the embedding's is not."""
    table = torch.randn(512, 32, requires_grad=True)
    hidden = torch.nn.functional.embedding(torch.arange(2), table).tanh()
    problem = Problem(ts.graph((hidden @ table.t()).square().mean()))
    found = search(problem, problem.heap_order, seconds=1e6, evaluations=200)
    assert found.peak_bytes < found.start_bytes
    model_peak, _ = problem.levels(found.order)
    assert found.peak_bytes < model_peak  # the blocks of PyTorch's order know nothing of it


def wide() -> Problem:
    """Sixty tasks that hardly wait for each other: no order is known of which it can be told that it is the best."""
    return random_problem(60, 0, density=0.05)


def test_it_stops_at_once_where_no_order_is_better() -> None:
    chain = problem_of(5, [(task, task + 1) for task in range(4)], blocks=[(8, task, task + 1) for task in range(4)])
    found = search(chain, range(5), seconds=1e6)
    assert found.evaluations == 0
    assert found.peak_bytes == found.bound_bytes == lower_bound(chain).nbytes


def test_with_one_seed_it_finds_the_same_each_time() -> None:
    problem = wide()
    start = schedule(problem.graph, "bfs")
    first, again, other = (search(problem, start, seconds=1e6, evaluations=300, seed=seed).order for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_what_has_run_stays_where_it_is() -> None:
    problem = wide()
    start = schedule(problem.graph, "bfs")
    for ran in (0, 10, 25, 39, 40):
        found = search(problem, start, ran=ran, seconds=1e6, evaluations=300)
        assert list(found.order[:ran]) == start[:ran]
        assert is_legal(problem, found.order)


def test_interrupted_it_gives_the_best_so_far() -> None:
    problem = wide()
    start = schedule(problem.graph, "bfs")
    told: list[SearchResult] = []

    def interrupt(found: SearchResult) -> None:
        told.append(found)
        if len(told) == 2:
            raise KeyboardInterrupt

    began = perf_counter()
    found = search(problem, start, seconds=1e6, progress=interrupt)
    assert found.interrupted
    assert found.order == told[-1].order
    assert found.peak_bytes < found.start_bytes
    assert perf_counter() - began >= 0.2  # it is updated at most ten times a second


class _CountedPlaces(list[int]):
    reads = 0

    def __getitem__(self, task: Any) -> Any:
        self.reads += 1
        return super().__getitem__(task)


def test_levels_look_at_the_makers_of_a_block_once_however_many_there_are() -> None:
    """Each branch may be the first to give its gradient to the sum, so the block of the sum has as many makers."""
    problem = Problem(ts.graph(SHAPES["fan"](2_000)))
    assert max(map(len, problem.blocks.makers)) >= 1_000
    levels = _Levels(problem, problem.heap_order)
    levels.place = places = _CountedPlaces(levels.place)
    levels.tried(0, problem.heap_order)
    entries = sum(map(len, problem.blocks.makers)) + sum(map(len, problem.blocks.users))
    assert 1_000 <= places.reads <= entries


def test_out_of_time_it_stops() -> None:
    problem = wide()
    found = search(problem, schedule(problem.graph, "bfs"), seconds=0.0)
    assert found.evaluations < 100
    assert not found.interrupted


def test_an_order_that_is_not_legal_is_refused(snapshot: Snapshots) -> None:
    x = torch.randn(3, requires_grad=True)
    problem = Problem(ts.graph(x.exp().sum()))
    with raises(ValueError, "AccumulateGrad (1st)", "ExpBackward0 (2nd)") as raised:
        search(problem, problem.heap_order[::-1])
    snapshot("simulate", raised.value)


def test_as_a_policy_it_starts_from_the_best_of_the_others_and_goes_on_from_what_has_run() -> None:
    problem = problem_named("ensemble", members=3, width=8, batch=4)
    ran = schedule(problem.graph, "bfs")[:6]
    order = searched_order(problem, ran, 0.05, portfolio())
    assert order[:6] == ran
    assert problem.peak_bytes(order) <= min(
        problem.peak_bytes(schedule(problem.graph, policy, ran=ran)) for policy in ("heap", "dfs", "lpmf")
    )
