"""The mixed-integer program as an oracle: no choice is below its bound, and its own is the best of small graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

import tapescope as ts
from tapescope.engine.mirroring import milp as mirror_milp
from tapescope.engine.mirroring.candidates import Candidates, Goal
from tapescope.engine.mirroring.milp import milp

from .test_mirror_planners import (
    ELEMENTWISE_NS,
    PRODUCT_NS,
    attention,
    connected,
    memory_of,
    names,
    rnn,
    searched,
    small,
    subsets,
)

pytestmark = pytest.mark.heavy

pytest.importorskip("scipy")


def test_on_a_small_graph_no_choice_is_better_nor_below_its_bound() -> None:
    _, memory = memory_of(small())
    numbers = [number for number, may in enumerate(Candidates(memory).may_drop) if may]
    every = [memory.mirrored(chosen) for chosen in subsets(numbers)]
    for limit in (2.0 * ELEMENTWISE_NS, 5.0 * ELEMENTWISE_NS, PRODUCT_NS * 1.1, PRODUCT_NS * 3.0):
        goal = Goal(limit)
        found = milp(memory, goal)
        best = min(each.peak_bytes for each in every if each.replay_ns <= limit)
        assert 0 < found.bound_bytes <= best == found.mirrored.peak_bytes
        assert found.mirrored == memory.mirrored(found.dropped) and found.mirrored.replay_ns <= limit
    least = min(each.peak_bytes for each in every)
    wanted = Goal(peak_bytes=(least + memory.plain_peak_bytes) // 2)
    assert wanted.rank(milp(memory, wanted).mirrored) == min(map(wanted.rank, every))


@pytest.mark.parametrize("workload", [rnn, attention, connected])
@pytest.mark.parametrize("products", [False, True])
def test_the_search_is_as_good(workload: Callable[[], Callable[[], Tensor]], products: bool) -> None:
    _, memory = memory_of(workload())
    goal = Goal(6.0 * ELEMENTWISE_NS + 2.0 * PRODUCT_NS * products, products=products)
    exactly, found = milp(memory, goal, seconds=5), searched(memory, goal)
    assert exactly.bound_bytes <= found.mirrored.peak_bytes <= exactly.mirrored.peak_bytes * 1.02


def test_an_rnn_cell_is_not_mirrored() -> None:
    program, memory = memory_of(rnn())
    assert names(program, milp(memory, Goal(products=False), seconds=5).dropped) <= {"zeros"}


def test_a_plan_may_be_asked_for_by_its_name() -> None:
    plan = ts.plan_mirror(attention(), budget=0.8, solver="milp", seconds=4, repetitions=1)
    assert plan.met and plan.solver == "milp"


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_milp, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install 'tapescope\\[mirror\\]'"):
        milp(memory_of(small())[1], Goal())
