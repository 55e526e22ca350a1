"""The choices of the solvers: Echo's cases, the best choice on small graphs, and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, combinations

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.planning.simulate import simulate
from tapescope.engine.recompute.droppable_storages import footprints_for, recompute_storages
from tapescope.engine.recompute.predicted_memory import RecomputedMemory
from tapescope.engine.recompute.record_forward import record_forward
from tapescope.engine.recompute.solvers import Candidates, FoundDrops, Goal, greedy, search
from tapescope.inspector.capture.forward_program import ForwardProgram

PRODUCT_NS, ELEMENTWISE_NS = 100_000, 1_000  # as on a large model: here products would take no longer
Planner = Callable[[RecomputedMemory, Goal], FoundDrops]


def searched(memory: RecomputedMemory, goal: Goal) -> FoundDrops:
    return search(memory, goal, seconds=60, evaluations=1_500)


both = pytest.mark.parametrize("planner", [greedy, searched])


def memory_of(make_loss: Callable[[], Tensor]) -> tuple[ForwardProgram, RecomputedMemory]:
    program = record_forward(make_loss, 1)
    measured = ts.profile(make_loss).footprints
    assert measured is not None
    footprints = footprints_for(program, measured)
    storages = [
        replace(each, replay_ns=PRODUCT_NS if each.product else ELEMENTWISE_NS)
        for each in recompute_storages(program, footprints)
    ]
    return program, RecomputedMemory(storages, simulate(footprints.graph, "heap", footprints))


def names(program: ForwardProgram, dropped: Iterable[int]) -> set[str]:
    """Return the names of the operations that created the storages: {"tanh", "add"}."""
    makers = (program.storages[number].made_by for number in dropped)
    return {program.operations[each].name.split(".")[1] for each in makers if each is not None}


def rnn() -> Callable[[], Tensor]:
    """h = tanh(W x + U h): tanh saves its result, and the two products save nothing of theirs."""
    inputs = torch.randn(8, 16, 32)
    on_input, on_state = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)

    def make_loss() -> Tensor:
        h = torch.zeros(16, 32)
        for step in inputs:
            h = torch.tanh(on_input(step) + on_state(h))
        return h.sum()

    return make_loss


def attention() -> Callable[[], Tensor]:
    """Echo's scores: v · tanh(W q + k) for all of the source at each step of the target."""
    source = torch.randn(4, 20, 32)
    of_query, of_key, score = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def make_loss() -> Tensor:
        key = of_key(source)
        context, total = torch.zeros(4, 32), torch.zeros(())
        for _ in range(6):
            scores = score(torch.tanh(of_query(context)[:, None] + key))
            context = (scores.softmax(1) * source).sum(1)
            total = total + context.sum()
        return total

    return make_loss


def connected() -> Callable[[], Tensor]:
    """A fully connected layer between two element-wise parts, whose backward comes after the peak."""
    x = torch.randn(32, 64, requires_grad=True)
    first, second, third = nn.Linear(64, 128), nn.Linear(128, 8), nn.Linear(8, 512)

    def make_loss() -> Tensor:
        gate = first(x.tanh()).sigmoid()
        return third(second(gate * gate)).exp().sum()

    return make_loss


@both
def test_an_rnn_cell_is_not_recomputed(planner: Planner) -> None:
    """Recomputing tanh needs its input, or both products: as many bytes as are dropped, or twice as many."""
    program, memory = memory_of(rnn())
    found = planner(memory, Goal(products=False))
    assert names(program, found.dropped) <= {"zeros"}  # the state before the first step


def test_an_rnn_cell_s_products_are_replayed_where_the_budget_demands_it() -> None:
    program, memory = memory_of(rnn())
    wanted = memory.plain_peak_bytes * 9 // 10
    found = searched(memory, Goal(peak_bytes=wanted))
    assert found.levels.peak_bytes <= wanted
    assert {"tanh", "mm"} <= names(program, found.dropped)


def test_attention_scores_are_dropped_together_as_all_are_made_of_one_key() -> None:
    program, memory = memory_of(attention())
    goal = Goal(products=False)
    scores = [each.number for each in program.saved if names(program, [each.number]) == {"tanh"}]
    candidates = Candidates(memory, products=False)
    alone = candidates.with_makers(scores[0])
    assert memory.kept_bytes(alone) >= memory.kept_bytes([])  # for one alone the key is kept
    for planner in (greedy, searched):
        found = planner(memory, goal)
        assert len(found.dropped.intersection(scores)) > len(scores) / 2  # the last ones go before the peak
        assert found.levels.peak_bytes < 0.7 * memory.plain_peak_bytes


@both
def test_a_fully_connected_layer_may_lie_on_the_way(planner: Planner) -> None:
    """Its own gradient does not need its output: the whole chain is dropped, and recomputed from the input."""
    program, memory = memory_of(connected())
    found = planner(memory, Goal())
    assert {"tanh", "addmm", "sigmoid", "mul"} <= names(program, found.dropped)


def test_products_are_replayed_only_if_they_may_be() -> None:
    program, memory = memory_of(connected())
    for planner in (greedy, searched):
        found = planner(memory, Goal(products=False))
        assert "addmm" not in names(program, found.dropped)
        assert {"tanh", "mul"} <= names(program, found.dropped)


def test_no_time_is_taken_beyond_the_limit() -> None:
    _, memory = memory_of(attention())
    for limit in (0, 3 * ELEMENTWISE_NS, 10 * ELEMENTWISE_NS, PRODUCT_NS + 9 * ELEMENTWISE_NS):
        for planner in (greedy, searched):
            found = planner(memory, Goal(limit))
            assert found.levels.replay_ns <= limit
            assert found.levels == memory.levels_if_dropped(found.dropped)
        assert searched(memory, Goal(limit)).levels.peak_bytes <= greedy(memory, Goal(limit)).levels.peak_bytes


def small() -> Callable[[], Tensor]:
    x = torch.randn(16, 16)
    first, second = nn.Linear(16, 64, bias=False), nn.Linear(64, 16, bias=False)

    def make_loss() -> Tensor:
        h = first(x).sigmoid()
        h = second(h * h.tanh()).exp()
        return (h * h.sin()).sum()

    return make_loss


def test_on_a_small_graph_the_search_finds_what_is_best_of_all() -> None:
    _, memory = memory_of(small())
    numbers = [number for number, may in enumerate(Candidates(memory).may_drop) if may]
    every = [memory.levels_if_dropped(chosen) for chosen in subsets(numbers)]
    assert len(every) >= 256
    for limit in (2.0 * ELEMENTWISE_NS, 5.0 * ELEMENTWISE_NS, PRODUCT_NS * 1.1, PRODUCT_NS * 3.0):
        best = min(Goal(limit).rank(each) for each in every)
        assert Goal(limit).rank(searched(memory, Goal(limit)).levels)[:2] == best[:2]
    least = min(each.peak_bytes for each in every)
    for wanted in (least, (least + memory.plain_peak_bytes) // 2):
        goal = Goal(peak_bytes=wanted)
        assert goal.rank(searched(memory, goal).levels) == min(map(goal.rank, every))


def subsets(numbers: list[int]) -> Iterable[tuple[int, ...]]:
    return chain.from_iterable(combinations(numbers, count) for count in range(len(numbers) + 1))


def test_ctrl_c_ends_a_search_with_the_best_so_far() -> None:
    _, memory = memory_of(attention())

    def press(found: FoundDrops) -> None:
        raise KeyboardInterrupt

    found = search(memory, Goal(), seconds=60, progress=press)
    assert found.interrupted and found.levels.peak_bytes <= greedy(memory, Goal()).levels.peak_bytes


def test_the_same_seed_finds_the_same() -> None:
    _, memory = memory_of(attention())
    goal = Goal(8.0 * ELEMENTWISE_NS)
    assert searched(memory, goal).dropped == searched(memory, goal).dropped


def test_a_choice_that_moves_lead_to_again_is_not_simulated_again() -> None:
    _, memory = memory_of(rnn())
    simulated = []
    levels_if_dropped = memory.levels_if_dropped
    memory.levels_if_dropped = lambda dropped: simulated.append(frozenset(dropped)) or levels_if_dropped(dropped)  # type: ignore[method-assign, func-returns-value]
    found = search(memory, Goal(replay_ns=10 * ELEMENTWISE_NS, products=False), seconds=60, evaluations=1_500)
    assert found.evaluations < 400
    again = len(simulated) - len(set(simulated))
    assert again < 30  # those with which the search begins, and better ones


def test_the_search_ends_where_no_choice_could_lower_the_peak() -> None:
    weights = torch.randn(400, 400, requires_grad=True)
    x = torch.randn(4, 400)

    def make_loss() -> Tensor:
        return torch.tanh(x @ weights).sum()

    _, memory = memory_of(make_loss)
    candidates = Candidates(memory)
    assert any(candidates.may_drop)
    assert candidates.lowest_peak_bytes() <= memory.plain_peak_bytes
    found = search(memory, Goal(), seconds=60)  # no limit on moves
    assert found.evaluations < 100 and found.seconds < 60


def test_no_choice_has_a_lower_peak_than_the_lowest() -> None:
    for make_loss in (rnn(), lambda: torch.tanh(torch.randn(8, 8, requires_grad=True) @ torch.randn(8, 8)).exp().sum()):
        _, memory = memory_of(make_loss)
        candidates = Candidates(memory)
        lowest = candidates.lowest_peak_bytes()
        numbers = candidates.kept()[:8]
        for chosen in chain.from_iterable(combinations(numbers, count) for count in range(len(numbers) + 1)):
            assert memory.levels_if_dropped(chosen).peak_bytes >= lowest


def test_the_blocks_of_gpt2_are_searched_until_rounds_find_nothing_better() -> None:
    _, make_loss = ts.workload("gpt2").build(vocabulary=64, context=64, width=64, batch=8, heads=4, layers=3)
    program, memory = memory_of(make_loss)
    goal = Goal(replay_ns=sum(each.replay_ns for each in memory.storages) / 20)
    found = search(memory, goal, seconds=120, evaluations=8_000)
    assert found.levels.peak_bytes < 0.9 * memory.plain_peak_bytes and program.saved
    assert found.evaluations <= 4_000
