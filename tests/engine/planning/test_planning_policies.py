from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import permutations, product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tapescope as ts
from tapescope.engine.execution.backward_arguments import needed_tasks
from tapescope.engine.planning.planning_policies import comm_first, critical_path, liu, lpmf, postorder
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.series_parallel import contracted
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.ddp_buckets import buckets_of
from tapescope.engine.schedule.find_tasks import tasks_at
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import Snapshots, raises

from ..backward_programs import random_program
from .problems import Block, PosedProblem, is_legal, least_peak, problem_of, random_problem

PLANNERS: dict[str, Callable[..., list[int]]] = {
    "lpmf": lpmf,
    "postorder": postorder,
    "critical_path": critical_path,
    "comm_first(0)": partial(comm_first, patterns=[0]),
    "liu": liu,
}
every_planner = pytest.mark.parametrize("plan", PLANNERS.values(), ids=PLANNERS.keys())

A, B, C, D, E, F, G = range(7)


def from_xla() -> PosedProblem:
    """A -> {B => C -> G, D -> F, E -> F => G}, as ListScheduler's comment in hlo_memory_scheduler.cc draws it, but that
    A makes 2."""
    edges = [(A, B), (B, C), (C, G), (A, D), (A, E), (D, F), (E, F), (F, G)]
    outputs: list[Block] = [(2, A, (B, D, E)), (2, B, C), (1, C, G), (1, D, F), (1, E, F), (2, F, G)]
    return problem_of(7, edges, blocks=outputs)


def fan(branches: int) -> PosedProblem:
    """Each branch makes 10 bytes, makes 1 of them, and all the ones are joined."""
    end = 2 * branches + 1
    edges, blocks = [], list[Block]()
    for branch in range(1, 2 * branches, 2):
        edges += [(0, branch), (branch, branch + 1), (branch + 1, end)]
        blocks += [(10, branch, branch + 1), (1, branch + 1, end)]
    return problem_of(end + 1, edges, blocks=blocks)


def harpoon(branches: int, large: int, small: int = 1) -> PosedProblem:
    """Each branch makes `large`, of it `small`, and of it a part of `large`; a last task takes all these parts.

    Task 3 * k begins branch k. Jacquelin, Marchal, Robert and Uçar, "On optimal tree traversals for sparse matrix
    factorization" (2011), theorem 1.
    """
    end = 3 * branches
    edges, blocks = [], list[Block]()
    for first in range(0, end, 3):
        edges += [(first, first + 1), (first + 1, first + 2), (first + 2, end)]
        blocks += [(large, first, first + 1), (small, first + 1, first + 2), (large // branches, first + 2, end)]
    return problem_of(end + 1, edges, blocks=blocks)


@every_planner
@settings(deadline=None, max_examples=30)
@given(tasks=st.integers(1, 25), seed=st.integers(0, 10_000))
def test_every_order_is_legal_and_the_same_each_time(plan: Callable[..., list[int]], tasks: int, seed: int) -> None:
    problem = random_problem(tasks, seed)
    order = plan(problem)
    assert is_legal(problem, order)
    assert plan(random_problem(tasks, seed)) == order


@every_planner
@settings(deadline=None, max_examples=30)
@given(tasks=st.integers(1, 25), seed=st.integers(0, 10_000))
def test_every_plan_goes_on_from_what_ran(plan: Callable[..., list[int]], tasks: int, seed: int) -> None:
    problem = random_problem(tasks, seed)
    draw = random.Random(seed)
    ran = schedule(problem.graph, lambda ready, _: draw.choice(ready))[: draw.randint(0, tasks)]
    order = plan(problem, ran)
    assert is_legal(problem, order)
    assert order[: len(ran)] == ran


@pytest.mark.parametrize("name", sorted(PLANNERS.keys() - {"postorder", "liu"}))  # these do not go step by step
def test_a_plan_goes_on_from_its_own_beginning_as_it_went_on_itself(name: str) -> None:
    for seed in range(20):
        problem = random_problem(15, seed)
        order = PLANNERS[name](problem)
        assert all(PLANNERS[name](problem, order[:place]) == order for place in range(len(order)))


@cache
def real_problems(seed: int) -> tuple[Problem, Problem]:
    """All of a random program's backward, and what two of its leaves need of it."""
    leaves, loss = random_program(seed)
    everything = Problem(ts.graph(loss))
    return everything, Problem(everything.graph, everything.footprints, needed_tasks(everything.graph, leaves[:2]))


@every_planner
@pytest.mark.parametrize("seed", [0, 1])
def test_real_backwards_get_legal_orders_also_where_inputs_leaves_tasks_out(
    plan: Callable[..., list[int]], seed: int
) -> None:
    everything, part = real_problems(seed)
    if plan is PLANNERS["comm_first(0)"]:
        plan = partial(comm_first, patterns=[min(part.tasks)])
    assert is_legal(everything, plan(everything))
    assert is_legal(part, plan(part))
    assert len(part.tasks) < len(everything.tasks)


@pytest.mark.parametrize("name", sorted(PLANNERS.keys() - {"comm_first(0)"}))  # which would find no task to name
def test_an_empty_problem_has_an_empty_order(name: str) -> None:
    assert PLANNERS[name](problem_of(1, [], needed=[])) == []


def lpmf_as_inductor_does(problem: PosedProblem) -> list[int]:
    """Run LPMF by its definition: consider all ready tasks at each step."""
    places = {task: place for place, task in enumerate(problem.heap_order)}
    waits, left = list(problem.waits), [len(users) for users in problem.blocks.users]
    made = {block for block, makers in enumerate(problem.blocks.makers) if not makers}
    level = problem.start_bytes
    peak = max(
        level, sum(size for size, users in zip(problem.blocks.sizes, problem.blocks.users, strict=True) if not users)
    )
    order: list[int] = []

    def change(task: int) -> int:
        new = sum(problem.blocks.sizes[block] for block in problem.blocks.made_by[task] if block not in made)
        return new - sum(problem.blocks.sizes[block] for block in problem.blocks.used_by[task] if left[block] == 1)

    def key(task: int) -> tuple[int, int, int]:
        need = problem.blocks.needs[task]
        return (need if need > peak - level else 0, change(task), places[task])

    while len(order) < len(problem.tasks):
        task = min((task for task in problem.tasks if not waits[task] and task not in order), key=key)
        order.append(task)
        peak = max(peak, level + problem.blocks.needs[task])
        level += change(task)
        made.update(problem.blocks.made_by[task])
        for block in problem.blocks.used_by[task]:
            left[block] -= 1
        for next_task in problem.nexts[task]:
            waits[next_task] -= 1
    return order


@settings(deadline=None, max_examples=80)
@given(tasks=st.integers(1, 25), seed=st.integers(0, 10_000), density=st.sampled_from((0.05, 0.15, 0.3)))
def test_lpmf_with_its_tree_picks_what_a_look_at_all_ready_tasks_picks(tasks: int, seed: int, density: float) -> None:
    problem = random_problem(tasks, seed, density)
    assert lpmf(problem) == lpmf_as_inductor_does(problem)


def test_lpmf_knows_that_a_block_of_two_makers_comes_with_the_first() -> None:
    edges = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4)]
    blocks: list[Block] = [(9, (1, 2), 4), (5, 3, None), (20, 0, 1)]
    problem = problem_of(5, edges, needs=[40, 9, 9, 5, 0], blocks=blocks)  # task 0 frees memory for the next tasks
    # 1 frees 20 and makes the 9; then 2 makes nothing more, and 4 frees it: only then comes what stays.
    assert lpmf(problem) == [0, 1, 2, 4, 3]


def postorders(problem: PosedProblem, end: int) -> Iterator[list[int]]:
    """All the postorders of a tree, of which `end` is the last task."""
    parts = [task for task in problem.tasks if end in problem.nexts[task]]
    for turn in permutations(parts):
        for orders in product(*(list(postorders(problem, part)) for part in turn)):
            yield [task for order in orders for task in order] + [end]


def test_postorder_takes_the_larger_part_first() -> None:
    # 0 makes 10, of which 1 makes 1; 2 makes 5, of which 3 makes 1; 4 takes both.
    edges = [(0, 1), (2, 3), (1, 4), (3, 4)]
    problem = problem_of(5, edges, blocks=[(10, 0, 1), (1, 1, 4), (5, 2, 3), (1, 3, 4)])
    assert postorder(problem) == [0, 1, 2, 3, 4]
    assert problem.peak_bytes(postorder(problem)) == least_peak(problem)


@pytest.mark.parametrize("branches", [2, 3])
def test_liu_beats_every_postorder_of_a_harpoon(branches: int) -> None:
    problem = harpoon(branches, large=12)
    best_postorder = min(map(problem.peak_bytes, postorders(problem, 3 * branches)))
    assert problem.peak_bytes(liu(problem)) == least_peak(problem) == 12 + branches
    assert best_postorder == 12 + 12 // branches * (branches - 1) + 1
    assert problem.peak_bytes(postorder(problem)) == best_postorder


def tree(tasks: int, draw: random.Random) -> list[tuple[int, int]]:
    """Each task waits for one before it, or each is waited for by one."""
    edges = [(draw.randrange(max(0, task - 3), task), task) for task in range(1, tasks)]
    return edges if draw.random() < 0.5 else [(tasks - 1 - b, tasks - 1 - a) for a, b in edges]


def series_parallel(tasks: int, draw: random.Random) -> list[tuple[int, int]]:
    """Grown from one edge: each task is put into an edge or beside it."""
    edges, before = [(-1, -2)], dict[int, list[int]]()
    for task in range(tasks):
        first, last = draw.choice(edges)
        if draw.random() < 0.5:
            edges.remove((first, last))
        edges += [(first, task), (task, last)]
    found = {(a, b) for a, b in edges if a >= 0 and b >= 0}
    for a, b in found:
        before.setdefault(b, []).append(a)
    numbers: dict[int, int] = {}
    while len(numbers) < tasks:
        ready = [
            task for task in range(tasks) if task not in numbers and all(a in numbers for a in before.get(task, ()))
        ]
        numbers[draw.choice(ready)] = len(numbers)
    return sorted((numbers[a], numbers[b]) for a, b in found)


def one_user_each(tasks: int, edges: list[tuple[int, int]], draw: random.Random) -> PosedProblem:
    """Blocks of one maker and one user, near or far; some stay, some are there from the start; and work space."""
    after: list[set[int]] = [set() for _ in range(tasks)]
    for a, b in sorted(edges, reverse=True):
        after[a] |= {b} | after[b]
    blocks: list[Block] = []
    for task in range(tasks):
        for _ in range(draw.randint(0, 2)):
            user = draw.choice(sorted(after[task])) if after[task] and draw.random() < 0.85 else None
            blocks.append((draw.randint(1, 9), task, user))
        if draw.random() < 0.6:
            blocks.append((draw.randint(1, 9), None, task))
    needs = [sum(size for size, maker, _ in blocks if maker == task) for task in range(tasks)]
    return problem_of(tasks, edges, [need + draw.choice((0, 0, 1, 4, 9)) for need in needs], blocks)


def test_liu_is_optimal_on_trees_and_series_parallel_graphs() -> None:
    beaten: Counter[str] = Counter()
    for seed in range(300):
        draw = random.Random(seed)
        tasks = draw.randint(2, 9)
        edges = (tree if seed % 2 else series_parallel)(tasks, draw)
        problem = one_user_each(tasks, edges, draw)
        least = least_peak(problem)
        order = liu(problem)
        assert is_legal(problem, order)
        assert problem.peak_bytes(order) == least, (seed, edges)
        beaten["heap"] += problem.peak_bytes(problem.heap_order) > least
        beaten["lpmf"] += problem.peak_bytes(lpmf(problem)) > least
    assert min(beaten.values()) > 30  # the problems are hard enough


def test_liu_finds_xlas_optimum() -> None:
    problem = from_xla()
    assert problem.peak_bytes(liu(problem)) == 5


def chain_and(*more: tuple[int, int]) -> list[set[int]]:
    """Return the successors of each task: 0 to 5 in a chain, and further edges."""
    nexts: list[set[int]] = [{1}, {2}, {3}, {4}, {5}, set(), set(), set(), set()]
    for task, next_task in more:
        nexts[task].add(next_task)
    return nexts


def test_edges_that_repeat_what_others_say_do_not_keep_a_graph_from_one_row() -> None:
    """The edges 0 to 4 and 2 to 5 cross, so neither has its own fork and join."""
    hills, changes = [9, 2, 7, 1, 5, 3], [4, -2, 3, 1, -6, 0]
    assert contracted(range(6), chain_and((0, 4), (2, 5)), hills, changes) == contracted(
        range(6), chain_and(), hills, changes
    )


def test_a_leaf_for_which_branches_wait_does_not_keep_a_graph_from_one_row() -> None:
    """1 and 3 begin branches, 6 and 7, which end in one leaf, 8. It needs no memory: it is in no segment."""
    hills, changes = [9, 2, 7, 1, 5, 3, 2, 4, 0], [4, -2, 3, 1, -6, 0, 2, -1, 0]
    with_leaf = chain_and((1, 6), (3, 7), (6, 8), (7, 8))
    found = contracted(range(9), with_leaf, hills, changes)
    assert found == contracted(range(8), with_leaf, hills, changes)
    assert [segment.nexts for segment in found] == [[number] for number in range(1, len(found))] + [[]]
    kept = contracted(range(9), with_leaf, [*hills[:8], 1], changes)
    assert 8 in [task for segment in kept for task in segment.tasks]


def test_liu_needs_as_much_for_a_row_of_steps_with_one_parameter_as_for_one_step() -> None:
    """Steps as of an RNN: harpoons in a row, a parameter that all share, and edges which skip to the next step."""
    edges: list[tuple[int, int]] = []
    blocks: list[Block] = []
    steps, size = 3, 8
    leaf, single = steps * size, steps * size + 1
    for first in range(0, steps * size, size):
        for branch in (first, first + 3):
            edges += [(branch, branch + 1), (branch + 1, branch + 2), (branch + 2, first + 6)]
            blocks += [(12, branch, branch + 1), (1, branch + 1, branch + 2), (6, branch + 2, first + 6)]
        edges += [(first + 6, first + 7), (first + 7, leaf)]
        if first:
            edges += [(first - 2, first), (first - 2, first + 3), (first - 2, first + 6)]
    edges.append((steps * size - 2, single))
    problem = problem_of(steps * size + 2, edges, blocks=blocks, leaves=(leaf, single))
    best = problem.peak_bytes(liu(problem))
    assert best == 12 + 2  # as each harpoon alone
    assert best < problem.peak_bytes(lpmf(problem))


def time_on(problem: PosedProblem, order: Sequence[int], devices: int) -> float:
    """When the last task ends, if each device that is free takes the first ready one of the order."""
    ends: dict[int, float] = {}
    free = [0.0] * devices
    left = list(order)
    before = {task: [a for a in problem.tasks if task in problem.nexts[a]] for task in problem.tasks}
    while left:
        now = min(free)
        task = next((each for each in left if all(ends.get(a, float("inf")) <= now for a in before[each])), None)
        if task is None:
            free[free.index(now)] = min(end for end in ends.values() if end > now)
            continue
        left.remove(task)
        free[free.index(now)] = ends[task] = now + problem.durations[task]
    return max(ends.values())


def test_the_critical_path_comes_first_and_saves_time_on_two_devices() -> None:
    # Six tasks of 2 are ready with a chain of three tasks of 3, which was created first and which HEAP so runs last.
    problem = problem_of(9, [(0, 1), (1, 2)], durations=[3, 3, 3, 2, 2, 2, 2, 2, 2])
    order = critical_path(problem)
    assert order[:2] == [0, 1]
    assert time_on(problem, problem.heap_order, 2) == 6 + 9
    assert time_on(problem, order, 2) == 11


def test_measured_durations_decide_on_the_critical_path() -> None:
    graph = problem_of(4, [(0, 1), (2, 3)]).graph
    assert critical_path(Problem(graph, durations=[9.0, 1.0, 1.0, 1.0])) == [0, 2, 3, 1]
    assert critical_path(Problem(graph, durations=[1.0, 1.0, 9.0, 1.0])) == [2, 0, 3, 1]


def two_towers() -> tuple[nn.Module, ts.Graph]:
    model = nn.ModuleDict(
        {"left": nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), "right": nn.Linear(4, 4)}
    )
    x = torch.ones(2, 4)
    with ts.capture(model):
        loss = (model["left"](x) + model["right"](x)).sum()
        graph = ts.graph(loss)
    return model, graph


@pytest.mark.parametrize("pattern", ["left.0.weight", "left.*.weight", "right", "Relu"])
def test_named_tasks_come_after_what_leads_to_them_and_nothing_else(pattern: str) -> None:
    _, graph = two_towers()
    named = tasks_at(graph, pattern)
    order = comm_first(Problem(graph), patterns=[pattern])
    leads = set(named)
    stack = list(named)
    while stack:
        for edge in graph.in_edges[stack.pop()]:
            if edge.task not in leads:
                leads.add(edge.task)
                stack.append(edge.task)
    assert set(order[: len(leads)]) == leads


def test_what_is_named_first_comes_first() -> None:
    _, graph = two_towers()
    task_of = {task.parameter: task.id for task in graph.tasks if task.parameter}
    left, right = task_of["left.0.bias"], task_of["right.bias"]
    for first, second in ((left, right), (right, left)):
        order = comm_first(Problem(graph), patterns=[first, second])
        assert order.index(first) < order.index(second)


def test_comm_first_asks_for_no_memory() -> None:
    _, graph = two_towers()
    problem = Problem(graph)
    comm_first(problem, patterns=["right"])
    critical_path(problem)
    assert not problem.knows_memory


def test_comm_first_says_what_it_cannot_find(snapshot: Snapshots) -> None:
    model, graph = two_towers()
    with raises(ValueError, '"rigth"', "right", "right.bias"):
        comm_first(Problem(graph), patterns=["rigth"])
    with raises(ValueError, "DistributedDataParallel", '"comm_first(encoder.*)"') as no_buckets:
        comm_first(Problem(graph))
    only_left = needed_tasks(graph, [model["left"][0].weight])
    with raises(ValueError, '"right.bias"', "AccumulateGrad (right.bias, test_planning_policies.py:") as left_out:
        comm_first(Problem(graph, needed=only_left), patterns=["right.bias"])
    for raised in (no_buckets, left_out):
        snapshot("backward", raised.value)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_without_names_the_buckets_of_ddp_come_in_their_order(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parallel = DistributedDataParallel(nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), bucket_cap_mb=0.02)
        x = torch.ones(2, 64)
        parallel(x).sum().backward()  # the next forward makes buckets of this size
        loss = parallel(x).sum()
        graph = ts.graph(loss)
        buckets = buckets_of(graph)
        assert len(buckets) == 2
        named = [task for bucket in reversed(buckets) for task in bucket.tasks]
        for order, row in (
            (comm_first(Problem(graph)), buckets),
            (comm_first(Problem(graph), patterns=named), buckets[::-1]),
        ):
            ends = [max(order.index(task) for task in bucket.tasks) for bucket in row]
            assert ends == sorted(ends)
    finally:
        torch.distributed.destroy_process_group()


def test_bfs_loses_on_a_wide_fan_out() -> None:
    problem = fan(50)
    assert problem.peak_bytes(schedule(problem.graph, "bfs")) == 501
    for plan in (lpmf, postorder, liu):
        assert problem.peak_bytes(plan(problem)) == 60  # 49 ones, a 10, and the one that is made of it


def test_one_linear_used_many_times_needs_no_more_than_under_heap() -> None:
    """The mini-model of PyTorch PR #4746, simulated."""
    _, make_loss = workload("linear50").build(uses=20, width=64)
    problem = Problem(ts.graph(make_loss()))
    heap = problem.peak_bytes(problem.heap_order)
    assert problem.peak_bytes(schedule(problem.graph, "bfs")) > 4 * heap
    for plan in (lpmf, postorder, liu):
        assert problem.peak_bytes(plan(problem)) <= heap
