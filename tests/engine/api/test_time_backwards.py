from __future__ import annotations

import time
from collections import Counter
from itertools import permutations, product
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from tapescope.engine.api import time_backwards as timing
from tapescope.engine.api.time_backwards import Spread, time_backward, turns
from tapescope.engine.planning.policies import POLICIES
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.policy import Policy
from tapescope.engine.studies.compare import compare
from tapescope.tests.says import Snapshots, raises, says


def test_of_three_six_rounds_are_all_the_orders_there_are() -> None:
    assert sorted(map(tuple, turns("abc", 6))) == sorted(permutations("abc"))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_each_has_each_place_equally_often(count: int) -> None:
    rounds = list(turns(range(count), 2 * count))
    assert all(sorted(each) == list(range(count)) for each in rounds)
    places = Counter((place, one) for each in rounds for place, one in enumerate(each))
    assert places == dict.fromkeys(product(range(count), repeat=2), 2)


def test_the_spread_is_the_middle_half() -> None:
    spread = Spread.of([9.0, 1.0, 2.0, 3.0, 100.0])
    assert (spread.low, spread.middle, spread.high) == (2.0, 3.0, 9.0)
    assert spread.half_width == pytest.approx(7 / 6)
    assert Spread.of([4.0]) == Spread(4.0, 4.0, 4.0) and Spread.of([4.0]).half_width == 0


def weights() -> Tensor:
    return torch.ones(3, requires_grad=True)


def test_a_backward_begins_when_devices_are_idle_and_ends_when_they_are_again(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = []

    def wait_for(devices: object) -> None:
        happened.append("wait")
        time.sleep(0.02)

    def make_loss() -> Tensor:
        loss = weights().exp().sum()
        happened.append("forward")
        loss.grad_fn.register_hook(lambda *gradients: happened.append("backward"))
        return loss

    monkeypatch.setattr(timing, "wait_for", wait_for)
    elapsed_ns = time_backward(make_loss, POLICIES["heap"])
    assert happened == ["forward", "wait", "backward", "wait"]
    assert elapsed_ns >= 20e6, "the second wait is in it"


def test_accelerators_are_waited_for_and_the_cpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    time_backward(lambda: weights().sum(), POLICIES["heap"])
    assert waited == []
    timing.wait_for([torch.device("cuda:0")])
    assert waited == [torch.device("cuda:0")]


def test_backwards_are_timed_in_turns_on_fresh_forwards_and_their_order_is_planned_once(snapshot: Snapshots) -> None:
    chosen, forwards = 0, Mock()  # a count of the program's own is put back

    def make_loss() -> Tensor:
        forwards()
        return (weights() * 2).exp().sum()

    def first(ready, state):
        nonlocal chosen
        chosen += 1
        return ready[0]

    told: list[str] = []
    compare(make_loss, ["bfs", first, "heap"], repetitions=6, progress=told.append)
    rounds = [[each.partition(",")[0] for each in told if f"round {number} of 6" in each] for number in range(1, 7)]
    assert sorted(map(tuple, rounds)) == sorted(permutations(["bfs", "first", "heap"]))
    for said, policy in zip(told[1:4], ("bfs", "first", "heap"), strict=True):
        says(said, policy)
    snapshot("compare", "\n".join(told[:4]))
    assert forwards.call_count == 2 + 3 * (1 + 6)  # one is read, one shows what has to be put back
    before = chosen
    compare(make_loss, ["bfs", first, "heap"], repetitions=1)
    assert chosen == 2 * before, "more rounds plan no more"


def test_a_policy_that_plans_does_so_once() -> None:
    planned = 0

    def backwards(problem, ran=()):
        nonlocal planned
        planned += 1
        return schedule(problem.graph, "dfs")

    policy = Policy("backwards", "a plan", plan=backwards)
    comparison = compare(lambda: (weights() * 2 + weights().exp()).sum(), ["bfs", policy], repetitions=3)
    assert planned == 1
    assert list(comparison["backwards"].timeline.order) == schedule(comparison.graph, "dfs")


def test_a_forward_that_changes_while_it_is_timed_is_refused(snapshot: Snapshots) -> None:
    calls = Mock()

    def make_loss() -> Tensor:
        calls()
        return weights().exp().sum() if calls.call_count < 5 else weights().sum()

    with raises(ValueError, "3 tasks", 2, "heap") as raised:
        compare(make_loss, ["heap"], repetitions=4)
    snapshot("compare", raised.value)
