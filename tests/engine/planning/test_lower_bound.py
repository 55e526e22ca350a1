"""The peak that no order can be below."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.engine.planning.lower_bound import lower_bound
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots, says, says_none_of

from .all_orders import legal_orders
from .problems import PosedProblem, least_peak, problem_of, random_problem

WIDTH = 8
OPERATIONS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x + y,  # gives one gradient to both
    lambda x, y: x + y.t(),  # and a view of it
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: x @ y,
    lambda x, y: x.exp(),
    lambda x, y: x.relu(),
    lambda x, y: torch.cat([x, y])[2 : WIDTH + 2],
    lambda x, y: x.sum(0, keepdim=True).expand(x.shape),
    lambda x, y: x.reshape(-1).view(x.shape),
]


def small_loss(seed: int) -> Tensor:
    """A few operations on one or two parameters, most of them used more than once."""
    draw = random.Random(seed)
    alive = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(draw.randint(1, 2))]
    for _ in range(draw.randint(2, 4)):
        alive.append(draw.choice(OPERATIONS)(draw.choice(alive), draw.choice(alive)))
    return alive[-1].sum() if draw.random() < 0.5 else (alive[-1] * alive[-2]).sum()


def small_problems(batch: int) -> Iterator[Problem]:
    """Twenty of them, of which one dry run knows: each is a backward that leaves the others out."""
    graph = ts.graph([small_loss(seed) for seed in range(20 * batch, 20 * batch + 20)])
    whole = Problem(graph)
    for root in graph.roots:
        needed, stack = set[int](), [root.task]
        while stack:
            needed.add(stack[-1])
            stack += whole.nexts[stack.pop()]
        yield Problem(graph, whole.footprints, needed)


def test_it_is_never_above_the_best_of_all_orders_and_mostly_equal_to_it() -> None:
    equal = seen = 0
    for batch in range(10):
        for number, problem in enumerate(small_problems(batch)):
            if len(problem.tasks) > 9:
                continue
            best = min(map(problem.peak_bytes, legal_orders(problem)))
            bound = lower_bound(problem)
            assert bound.nbytes <= best, f"problem {number} of batch {batch}: {bound}; found {best:,}"
            equal += bound.nbytes == best
            seen += 1
    assert seen > 150
    assert equal > 0.6 * seen


def shared_with_views() -> Tensor:
    """The gradient of the first sum goes to the parameter on three ways, two of them by nothing but views."""
    weight = torch.randn(64, 64, requires_grad=True)
    return ((weight.t() + weight.t()).t() + weight.relu()).exp().sum()


def copied_for_the_second_parameter() -> Tensor:
    """Two parameters get one tensor as their gradient: the first of them copies it, whichever that is."""
    one, other = (torch.randn(64, requires_grad=True) for _ in range(2))
    return ((one + other).exp() + one.exp()).sum()


def held_by_the_caller() -> Tensor:
    """The root's gradient is added to, and so are gradients that are expanded and take next to no memory."""
    x = torch.randn(64, 64, requires_grad=True)
    y = x.sum(1, keepdim=True)
    return y.sum() + y.expand(64, 64).exp().sum() + x.sum()


@pytest.mark.parametrize("make", [shared_with_views, copied_for_the_second_parameter, held_by_the_caller])
def test_what_several_gradients_are_on_is_counted_once(make: Callable[[], Tensor]) -> None:
    problem = Problem(ts.graph(make()))
    assert lower_bound(problem).nbytes <= min(map(problem.peak_bytes, legal_orders(problem)))


def test_of_a_chain_it_is_the_peak(snapshot: Snapshots) -> None:
    x = torch.randn(32, 16, requires_grad=True)
    y = x
    for width in (16, 64, 8, 32):
        y = torch.tanh(y @ torch.randn(y.shape[1], width))
    problem = Problem(ts.graph(y.sum()))
    bound = lower_bound(problem)
    assert bound.nbytes == problem.heap_timeline.peak_bytes
    assert bound.task == problem.heap_timeline.peak_task
    says(bound, problem.graph.describe(bound.task))
    snapshot("lower_bound", bound)


# The largest distance of HEAP's peak from the bound. If it is 0, HEAP's order is proven best.
@pytest.mark.parametrize(
    ("name", "share"), [("linear50", 0), ("ensemble", 0), ("lstm_lm", 0), ("recommender", 0.05), ("lstm_cell", 0.16)]
)
def test_no_policy_is_below_it_and_heap_is_near_it(name: str, share: float) -> None:
    model, make_loss = workload(name).build()
    problem = Problem(ts.graph(make_loss()))
    bound = int(lower_bound(problem))
    assert bound <= problem.heap_timeline.peak_bytes <= (1 + share) * bound
    assert all(bound <= problem.peak_bytes(schedule(problem.graph, policy)) for policy in ("bfs", "dfs"))
    del model, make_loss  # until here what they hold was not the backward's to free


def test_of_uses_of_one_parameter_it_knows_that_some_gradient_is_the_second(snapshot: Snapshots) -> None:
    problem = Problem(ts.graph(workload("linear50").build(uses=6)[1]()))
    bound = lower_bound(problem)
    says(bound, 6)
    snapshot("lower_bound", bound)


def test_a_backward_of_some_inputs_has_its_own() -> None:
    x, w = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    loss = (x.exp() @ w.exp()).sum()
    graph = ts.graph(loss)
    whole = Problem(graph)
    leaf = next(task.id for task in graph.tasks if task.is_leaf and graph.leaves[task.id] is w)
    problem = Problem(graph, needed=set(_leading_to(whole, leaf)))
    best = min(map(problem.peak_bytes, legal_orders(problem)))
    assert lower_bound(problem).nbytes == best


def _leading_to(problem: Problem, task: int) -> Iterator[int]:
    yield task
    for other in problem.tasks:
        if task in problem.nexts[other]:
            yield from _leading_to(problem, other)


def xlas_counter_example() -> PosedProblem:
    """hlo_memory_scheduler.cc, ListMemoryScheduler: the greedy order takes 6, the best 5."""
    a, b, c, d, e, f, g = range(7)
    edges = [(a, b), (b, c), (c, g), (a, d), (d, f), (a, e), (e, f), (f, g)]
    return problem_of(7, edges, blocks=[(1, a, [b, d, e]), (2, b, c), (1, c, g), (1, d, f), (2, e, f), (1, f, g)])


def test_of_given_blocks_it_is_never_above_the_optimum() -> None:
    problems = [
        xlas_counter_example(),
        *(random_problem(random.Random(seed).randint(2, 10), seed) for seed in range(250)),
    ]
    bounds = [lower_bound(problem).nbytes for problem in problems]
    best = [least_peak(problem) for problem in problems]
    assert all(bound <= least for bound, least in zip(bounds, best, strict=True))
    assert sum(bound == least for bound, least in zip(bounds, best, strict=True)) > len(best) / 2


def test_of_several_tasks_of_a_kind_one_is_the_last(snapshot: Snapshots) -> None:
    """Three gradients of 100 that stay, each of which takes 150 to make: with the last of them it is 350."""
    needs, blocks = [1, 150, 150, 150], [(1, 0, [1, 2, 3]), *((100, task, None) for task in (1, 2, 3))]
    problem = problem_of(4, [(0, 1), (0, 2), (0, 3)], needs, blocks)
    bound = lower_bound(problem)
    says_none_of(bound, "MadeBackward0")
    snapshot("lower_bound", bound)
    assert bound.nbytes == 300
    alike = [replace(task, name="MadeBackward0") if task.id else task for task in problem.graph.tasks]
    problem.graph = replace(problem.graph, tasks=tuple(alike))
    bound = lower_bound(problem)
    says(bound, 3, "MadeBackward0")
    snapshot("lower_bound", bound)
    assert bound.nbytes == 351 == least_peak(problem)
