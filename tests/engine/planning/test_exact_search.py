"""The least peak of all orders, held against brute force."""

from __future__ import annotations

import random
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from torch import Tensor

import tapescope as ts
from tapescope.engine.execution.gradient_layouts import TensorLayout, contiguous
from tapescope.engine.memory.task_memory import Footprint, Footprints, LeafState, TaskOutput
from tapescope.engine.planning.exact_search import Exact, LimitSearch, exact, optimal_order
from tapescope.engine.planning.lower_bound import lower_bound
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.ready_queue import PolicyError
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots, raises, says

from .all_orders import legal_orders
from .any_backward import random_backward
from .problems import PosedProblem, is_legal, least_peak, problem_of, random_problem
from .test_simulate import tasks_of

MOST_ORDERS = 200


def peaks_of_all(problem: Problem) -> list[int] | None:
    """The peak of each legal order, simulated. None: there are too many."""
    peaks = []
    for order in legal_orders(problem):
        if len(peaks) == MOST_ORDERS:
            return None
        peaks.append(problem.peak_bytes(order))
    return peaks


def check(problem: Problem, best: int) -> None:
    """The search tells limits that an order keeps from those that none does, with no help from bounds or heuristics."""
    order = schedule(problem.graph, "bfs", problem.needed)

    def within(limit: int) -> list[int] | int | None:
        search = LimitSearch(problem)
        search.begin((), order)
        return search.within(limit, 1_000_000)

    found = within(best)
    assert isinstance(found, list), f"no order within {best:,}"
    assert is_legal(problem, found)
    assert problem.peak_bytes(found) == best
    bound = within(best - 1)
    assert isinstance(bound, int), f"an order within {best - 1:,}"
    assert best - 1 < bound <= best


def test_of_random_footprints_it_finds_the_best_of_all_orders() -> None:
    seen = decided = 0
    for seed in range(500):
        footprints = random_backward(seed, 7)
        problem = Problem(footprints.graph, footprints)
        if peaks := peaks_of_all(problem):
            check(problem, min(peaks))
            seen += 1
            decided += max(peaks) > min(peaks)
    assert seen > 450 and decided > 140  # in so many the order matters


class Slices(torch.autograd.Function):
    """Its gradients are parts of one block."""

    @staticmethod
    def forward(ctx, x, y):  # type: ignore[no-untyped-def]
        return x * y

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        block = torch.empty(3, *gradient.shape)
        return block[0], block[2]


class Same(torch.autograd.Function):
    """Gives the gradient on, turned for one of the two."""

    @staticmethod
    def forward(ctx, x, y):  # type: ignore[no-untyped-def]
        return x + y

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient, gradient.t()


def small_loss(seed: int) -> Tensor:
    """A few operations on two or three parameters, most of them used more than once."""
    draw = random.Random(seed)
    side = draw.choice([2, 3, 4])
    alive = [torch.randn(side, side) for _ in range(draw.choice([2, 3]))]
    alive = [(each.t() if draw.random() < 0.2 else each).requires_grad_() for each in alive]
    for each in alive:
        if draw.random() < 0.2:
            each.grad = torch.zeros_like(each)
    for _ in range(draw.randint(2, 5)):
        x, y = draw.choice(alive), draw.choice(alive)
        made = [
            lambda x, y: x + y,
            lambda x, y: x * y,
            lambda x, y: torch.cat([x, y])[: len(x)],
            lambda x, y: x.t(),
            lambda x, y: x.exp(),
            Slices.apply,
            Same.apply,
            lambda x, y: x @ y,
            lambda x, y: torch.stack([x, y]).sum(0),
            lambda x, y: x.sum(0, keepdim=True).expand(x.shape),
            lambda x, y: x.repeat(3, 1)[: len(x)],
            lambda x, y: x.t() * (y @ torch.ones(len(x), 1)),
        ][draw.randrange(12)](x, y)
        if draw.random() < 0.5:
            alive.pop(draw.randrange(len(alive)))
        alive.append(made)
    ends = alive[-draw.choice([1, 2, 3]) :]
    return sum(each.sum() for each in ends) if draw.random() < 0.5 else torch.cat(ends).sum()  # type: ignore[return-value]


def small_problems(seeds: range) -> Iterator[Problem]:
    """Backwards of up to 12 tasks. One dry run knows all: each leaves the others out."""
    graph = ts.graph([loss for seed in seeds if (loss := small_loss(seed)).requires_grad])
    whole = Problem(graph)
    for root in graph.roots:
        needed, stack = set[int](), [root.task]
        while stack:
            needed.add(stack[-1])
            stack += whole.nexts[stack.pop()]
        if len(needed) <= 12:
            yield Problem(graph, whole.footprints, needed)


@pytest.mark.heavy
def test_of_real_backwards_it_finds_the_best_of_all_orders() -> None:
    seen = decided = 0
    for first in range(0, 120, 30):
        for problem in small_problems(range(first, first + 30)):
            if peaks := peaks_of_all(problem):
                check(problem, min(peaks))
                seen += 1
                decided += max(peaks) > min(peaks)
    assert seen > 80 and decided > 15


def test_a_view_that_comes_first_makes_the_next_gradient_pay_for_the_sum() -> None:
    """To view the gradient costs nothing, and yet it must not go first: the product then needs a third matrix."""
    w, v = torch.randn(64, 64, requires_grad=True), torch.randn(64, 1)
    problem = Problem(ts.graph((w.view(64, 64) * (w @ v)).sum()))
    peaks = peaks_of_all(problem)
    assert peaks and max(peaks) > min(peaks) + 15_000
    check(problem, min(peaks))


def test_a_leaf_that_the_forward_made_stays_when_its_gradient_has_come() -> None:
    """Its AccumulateGrad holds it as long as there is the graph, also once it has run."""
    w = torch.randn(64, 64, requires_grad=True)
    made = torch.randn(64, 64, requires_grad=True)
    made.grad = torch.zeros_like(made)
    loss = (w.exp().exp() + made).sum()
    del made
    problem = Problem(ts.graph(loss))
    check(problem, min(peaks_of_all(problem) or ()))


KILOBYTE = contiguous((16, 16), 4)


def test_a_task_whose_sum_spares_another_one_does_not_go_last() -> None:
    """Task 1 makes a sum of a view, of which task 2 would need the block just when memory is full."""
    expanded = TaskOutput("outside", -1, TensorLayout((16, 16), (0, 0), False, 1024), keeps_base=False)
    new = TaskOutput("block", 0, KILOBYTE, keeps_base=False)
    graph = tasks_of([], [0], [0, 5], [2, 5], [0, 3], [], [4, 1], leaves=1)
    does = [
        None,
        Footprint((0,), (1024,), (new,), ()),
        Footprint((0,), (1024,), (new, expanded), ()),
        Footprint((0,), (8192,), (expanded, new), ()),
        Footprint((), (), (TaskOutput("view", 0, KILOBYTE, keeps_base=True), expanded), ()),
        Footprint((), (), (), ()),
        Footprint((0,), (1024,), (new, expanded), ()),
    ]
    leaves = {0: LeafState(KILOBYTE, False)}
    problem = Problem(graph, Footprints(graph, "cpu", "calibrated", tuple(does), (), leaves, (KILOBYTE,)))
    peaks = peaks_of_all(problem)
    assert peaks and min(peaks) == 11 * 1024
    last = [order for order in legal_orders(problem) if order.index(1) > order.index(2)]
    assert min(map(problem.peak_bytes, last)) == 12 * 1024
    check(problem, min(peaks))


@pytest.mark.parametrize("seed", [727, 1512, 1926, 3544, 4694, 4749])
def test_who_comes_first_may_decide_what_stays(seed: int) -> None:
    """Parts of larger blocks become .grad, or are added to, where nothing else holds them: then the whole block stays.

    In these the best order is missed by who takes a step that frees memory as soon as there is one.
    """
    footprints = random_backward(seed, 7)
    problem = Problem(footprints.graph, footprints)
    check(problem, min(peaks_of_all(problem) or ()))


# Problems in blocks, from the books.


def xlas_counter_example() -> PosedProblem:
    """hlo_memory_scheduler.cc, ListMemoryScheduler: greedy takes 6, the best order 5."""
    a, b, c, d, e, f, g = range(7)
    edges = [(a, b), (b, c), (c, g), (a, d), (d, f), (a, e), (e, f), (f, g)]
    return problem_of(7, edges, blocks=[(1, a, [b, d, e]), (2, b, c), (1, c, g), (1, d, f), (2, e, f), (1, f, g)])


def test_xlas_counter_example_takes_5() -> None:
    found = exact(xlas_counter_example())
    assert found.proven and found.peak_bytes == found.bound_bytes == 5


def test_lius_order_of_a_tree_leaves_a_branch_and_comes_back() -> None:
    """Two branches, each with two hills: the best order changes between them, and no postorder is as good.

    Liu, An Application of Generalized Tree Pebbling to Sparse Matrix Factorization, 1987.
    """
    edges = [(0, 1), (1, 4), (2, 3), (3, 4)]
    needs = [10, 6, 10, 6, 1]
    blocks = [(2, 0, 1), (4, 1, 4), (2, 2, 3), (4, 3, 4)]
    problem = problem_of(5, edges, needs, blocks)
    found = exact(problem)
    assert found.peak_bytes == least_peak(problem) == 12
    assert {found.order[0], found.order[1]} == {0, 2}
    assert min(problem.peak_bytes(order) for order in ([0, 1, 2, 3, 4], [2, 3, 0, 1, 4])) == 14


def test_of_random_blocks_it_finds_the_optimum() -> None:
    for seed in range(200):
        problem = random_problem(random.Random(seed).randint(2, 12), seed)
        check(problem, least_peak(problem))


# Of larger graphs.


@pytest.mark.parametrize(
    ("name", "knobs", "spared"),
    [
        ("recommender", {}, 0.029),
        ("din", {}, 0.23),
        ("lstm_cell", {"steps": 12}, 0.02),
        ("resnet50", {}, 0.0),
        ("ensemble", {}, 0.0),
    ],
)
def test_graphs_of_hundreds_of_tasks_are_solved(name: str, knobs: dict[str, int], spared: float) -> None:
    model, make_loss = workload(name).build(**knobs)
    problem = Problem(ts.graph(make_loss()))
    found = exact(problem, seconds=60)
    heap = problem.heap_timeline.peak_bytes
    assert found.proven and lower_bound(problem).nbytes <= found.peak_bytes == problem.peak_bytes(found.order)
    assert found.peak_bytes <= (1 - spared) * heap
    assert is_legal(problem, found.order)
    del model, make_loss  # until here what they hold was not the backward's to free


def test_when_it_is_stopped_it_says_what_is_proven(snapshot: Snapshots) -> None:
    problem = xlas_counter_example()
    stopped = Exact((0, 1), 1280, 1024, False, 70, 0.5)
    says(stopped, "1.2 KiB", "25 %", "1 KiB", "0.5 s", 70)
    snapshot("exact", stopped)
    for limits in ({"seconds": 0.0}, {"states": 1}):
        found = exact(problem, **limits)  # type: ignore[arg-type]
        assert found.bound_bytes <= 5 <= found.peak_bytes == problem.peak_bytes(found.order)
        assert found.proven is (found.bound_bytes == found.peak_bytes)
    found = exact(problem)
    assert found.proven
    says(found, "5 B")
    snapshot("exact", found)


def test_an_interrupt_is_raised_unless_the_best_so_far_is_wanted() -> None:
    problem = xlas_counter_example()
    with mock.patch.object(LimitSearch, "within", side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            exact(problem)
        found = exact(problem, interruptible=True)
    assert found.peak_bytes == problem.peak_bytes(found.order) and is_legal(problem, found.order)


def test_what_ran_already_stays_where_it_is() -> None:
    for seed in range(60):
        problem = random_problem(8, seed)
        ran = schedule(problem.graph, "bfs")[:3]
        found = exact(problem, ran)
        rest = [order for order in legal_orders(problem) if order[:3] == ran]
        assert list(found.order[:3]) == ran and is_legal(problem, found.order)
        assert found.peak_bytes == found.bound_bytes == min(map(problem.peak_bytes, rest))


def test_the_policy_gives_a_proven_order_or_says_what_was_found(snapshot: Snapshots) -> None:
    problem = xlas_counter_example()
    assert problem.peak_bytes(optimal_order(problem, (), 10.0)) == 5
    with (
        mock.patch("tapescope.engine.planning.exact_search.exact", return_value=Exact((), 9, 4, False, 7, 0.0)),
        raises(PolicyError, 7, "10 s", "9 B", "4 B", '"optimal(100)"') as raised,
    ):
        optimal_order(problem, (), 10.0)
    snapshot("plan_order", raised.value)


def test_a_backward_runs_in_the_best_order_as_predicted() -> None:
    model, make_loss = workload("din").build()
    measured = ts.profile(make_loss)
    model.zero_grad()
    found = exact(Problem(measured.graph, measured.footprints))
    wanted = list(found.order)
    ran = ts.profile(make_loss, ts.Policy("best", "", lambda task, arrival: (wanted.index(task.id),)))
    assert list(ran.order) == wanted
    assert ran.peak_bytes == found.peak_bytes < 0.8 * measured.peak_bytes
