"""Orders that are judged before anything runs, and the policy that takes the best."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

import tapescope as ts
from tapescope.engine.api.backward import run_backward
from tapescope.engine.planning import auto_policy as auto
from tapescope.engine.planning import local_search
from tapescope.engine.planning.order_cache import fingerprint, forget_orders
from tapescope.engine.planning.policies import POLICIES, PORTFOLIO, portfolio
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.dependencies import dependencies
from tapescope.engine.schedule.policy import Policy
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.torch_private.nodes import call_node
from tapescope.tests.says import Snapshots, raises, says

from ..backward_programs import random_program

_NEED_MORE = ("comm_first", "search", "optimal")  # the name of something, or time
PLANNED = [name for name, policy in POLICIES.items() if policy.plan is not None and name not in _NEED_MORE]


@pytest.fixture(autouse=True)
def nothing_planned() -> Iterator[None]:
    forget_orders()
    yield
    forget_orders()


def wide() -> Tensor:
    """Independent uses of one weight, each with a large gradient: the order decides how many are alive at once."""
    _, make_loss = workload("linear50").build(uses=6, width=64)
    return make_loss()


def is_legal(graph: ts.Graph, order: list[int]) -> bool:
    missing = dependencies(graph)
    for root in graph.roots:
        missing[root.task] -= 1
    for task in order:
        if missing[task]:
            return False
        for edge in graph.out_edges[task]:
            missing[edge.next_task] -= 1
    return sorted(order) == list(range(len(graph)))


@pytest.mark.parametrize("policy", [*PLANNED, "random(3)", "search(0.1)", "delay_accumulate"])
def test_a_planned_order_is_legal_and_runs_as_planned_on_both_engines_with_pytorchs_gradients(policy: str) -> None:
    for seed in range(2):
        leaves, loss = random_program(seed)
        graph = ts.graph(loss)
        expected = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
        order = schedule(graph, policy)
        assert is_legal(graph, order)
        for engine in ("native", "direct"):
            leaves, loss = random_program(seed)
            run = ts.backward(loss, policy=policy, engine=engine, trace="off")
            assert is_legal(graph, list(run.order))
            if policy != "search(0.1)":  # finds as much as there is time for
                assert list(run.order) == order
            for leaf, gradient in zip(leaves, expected, strict=True):
                assert (leaf.grad is None) == (gradient is None)
                if gradient is not None:
                    torch.testing.assert_close(leaf.grad, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["lpmf", "liu", "critical_path"])
def test_a_policy_that_plans_goes_on_from_what_has_run(policy: str) -> None:
    _, loss = random_program(1)
    graph = ts.graph(loss)
    ran = schedule(graph, "dfs")[:5]
    order = schedule(graph, policy, ran=ran)
    assert order[:5] == ran
    assert is_legal(graph, order)
    with ts.debug(loss, policy=policy) as session:
        for task in ran:
            session.step(task)
        session.policy = policy
        assert list(session.run().order) == order


def test_the_plan_names_the_least_peak_and_what_no_order_is_below(snapshot: Snapshots) -> None:
    planned = ts.plan_order(wide())
    peaks = {row.policy: row.peak_bytes for row in planned.rows}
    assert list(peaks) == list(PORTFOLIO)
    assert planned.best.peak_bytes == min(peaks.values()) < peaks["bfs"]
    assert all(row.peak_bytes >= planned.bound_bytes for row in planned.rows)
    graph = ts.graph(wide())
    assert all(ts.simulate(graph, row.order).peak_bytes == row.peak_bytes for row in planned.rows)
    says(planned, planned.best.policy, planned.bound)
    snapshot("plan_order", planned)


def test_a_plan_is_a_policy_for_the_same_forward_run_again_and_for_no_other(snapshot: Snapshots) -> None:
    planned = ts.plan_order(wide(), ("bfs", "dfs"))
    assert ts.backward(wide(), policy=planned.policy).order == planned.order
    with raises(ValueError, len(planned.order), 3) as raised:
        ts.backward(torch.ones(2, requires_grad=True).exp().sum(), policy=planned.policy)
    snapshot("plan_order", raised.value)


def test_time_finds_what_no_policy_does() -> None:
    _, make_loss = workload("din").build()
    short, long = ts.plan_order(make_loss(), "heap"), ts.plan_order(make_loss(), "heap", seconds=1.0)
    assert long.best.policy in ("optimal", "exact", "search")
    assert long.bound_bytes <= long.best.peak_bytes < short.best.peak_bytes


def test_what_can_not_be_planned_is_said(snapshot: Snapshots) -> None:
    late = ts.Policy("mine", "late", key=lambda task, arrival: (arrival,), dynamic=True)
    with raises(ValueError, "mine") as dynamic:
        ts.plan_order(wide(), late)
    with raises(ValueError, "'best'", "bfs", "dfs", "heap") as unknown:
        ts.plan_order(wide(), "best")
    with raises(ValueError, "footprints", 3, 16) as of_another:
        ts.plan_order(wide(), footprints=ts.profile(lambda: torch.ones(2, requires_grad=True).exp().sum()).footprints)
    for raised in (dynamic, unknown, of_another):
        snapshot("plan_order", raised.value)
    with raises(ValueError, "random", "'x'") as no_seed:
        ts.backward(wide(), policy="random(x)")
    with raises(ValueError, "heap", "random", "comm_first", "search", "optimal") as no_brackets:
        ts.backward(wide(), policy="heap(1)")
    for raised in (no_seed, no_brackets):
        snapshot("backward", raised.value)


def test_auto_takes_the_best_of_the_portfolio_by_prediction() -> None:
    loss = wide()
    graph = ts.graph(loss)
    order = auto.auto_order(Problem(graph), (), [POLICIES["bfs"], POLICIES["dfs"]])
    assert order == schedule(graph, "dfs")


def test_auto_leaves_pytorchs_order_alone_where_less_than_a_percent_is_won() -> None:
    loss = torch.randn(4, requires_grad=True).exp().tanh().sum()
    graph = ts.graph(loss)
    assert auto.auto_order(Problem(graph), (), portfolio()) == schedule(graph, "heap")


def training(model: nn.Module, make_loss: Callable[[], Tensor], steps: int) -> list[Tensor]:
    for _ in range(steps):
        model.zero_grad()
        make_loss().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("name", ["ensemble", "lstm_cell"])
def test_a_training_loop_plans_once_and_gets_pytorchs_gradients(name: str) -> None:
    model, make_loss = workload(name).build()
    expected = [gradient.clone() for gradient in training(model, make_loss, 1)]
    with mock.patch.object(auto, "_best", wraps=auto._best) as best:
        with ts.policy("auto") as installed:
            found = training(model, make_loss, 4)
        assert best.call_count == 1
        assert installed.backwards == 4
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other)


def test_a_plan_is_for_leaves_with_or_without_a_grad() -> None:
    weight = torch.ones(8, 8, requires_grad=True)

    def known() -> int:
        return fingerprint(Problem(ts.graph((weight @ weight).sum())))

    first = known()
    assert known() == first
    weight.grad = torch.ones(8, 8)
    assert known() != first


def test_a_graph_that_can_not_be_planned_keeps_pytorchs_order_and_says_so(snapshot: Snapshots) -> None:
    x = torch.ones(3, requires_grad=True)
    graph = ts.graph((x.sin() * x.cos()).sum())
    with (
        mock.patch("tapescope.engine.planning.auto_policy.planned_order", side_effect=RuntimeError("no values")),
        pytest.warns(UserWarning, match="no values") as told,
    ):
        assert auto.auto_order(Problem(graph), (), portfolio()) == schedule(graph, "heap")
    assert [each.filename for each in told] == [__file__]
    says(told[0].message, '"auto"', "PyTorch")
    snapshot("backward", told[0].message)


@pytest.mark.parametrize("name", ["ensemble", "recommender", "lstm_cell", "linear50", "unet"])
def test_auto_is_nowhere_worse_than_heap_predicted_and_measured(name: str) -> None:
    model, make_loss = workload(name).build()

    def profiled(policy: str) -> ts.Run:
        model.zero_grad()
        return ts.profile(make_loss, policy)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own, best = profiled("heap"), profiled("auto")
    assert best.peak_bytes <= own.peak_bytes
    model.zero_grad()  # another order is the best where gradients are there
    graph = ts.graph(make_loss())
    assert ts.simulate(graph, best.order).peak_bytes <= ts.simulate(graph, own.order).peak_bytes


def ordered(make_losses: Callable[[], list[Tensor]], model: nn.Module, steps: int) -> list[int]:
    """Return the number of backwards of each step that were read and ordered under auto."""
    counts = []
    with mock.patch("tapescope.engine.api.set_policy.run_backward", wraps=run_backward) as ours, ts.policy("auto"):
        for _ in range(steps):
            model.zero_grad()
            before = ours.call_count
            for loss in make_losses():
                loss.backward()
            counts.append(ours.call_count - before)
    return counts


def test_one_micro_batch_that_is_left_alone_leaves_no_other_alone_that_is_not() -> None:
    model, make_loss = workload("din").build()
    own = auto._best

    def best(problem: Problem, portfolio: Sequence[Policy]) -> auto._Adopted:  # HEAP is the best once there are .grad
        without = all(leaf.grad is None for leaf in problem.graph.leaves.values())
        return own(problem, portfolio) if without else auto._Adopted("heap")

    with mock.patch.object(auto, "_best", best):
        counts = ordered(lambda: [make_loss(), make_loss()], model, 5)
    assert counts[0] == 2 and all(count >= 1 for count in counts), counts


def test_a_backward_within_another_decides_nothing_for_it() -> None:
    model, make_loss = workload("din").build()

    def with_another_inside() -> list[Tensor]:
        loss = make_loss()
        small = torch.ones(2, requires_grad=True).exp().sum()
        assert loss.grad_fn is not None
        loss.grad_fn.register_hook(lambda *gradients: small.backward())
        return [loss]

    with mock.patch.object(auto, "_unsure", return_value=""):  # although there are hooks
        assert all(count >= 1 for count in ordered(with_another_inside, model, 5))


def test_a_dry_run_leaves_what_another_thread_accumulates() -> None:
    def call_node_slowly(*arguments: Any) -> Any:
        if weight.grad is None:
            thread = threading.Thread(target=lambda: other.backward())
            thread.start()
            thread.join()
        return call_node(*arguments)

    weight = torch.ones(3, requires_grad=True)
    other = (weight * 7).sum()
    with mock.patch("tapescope.engine.memory.dry_run.call_node", call_node_slowly):
        ts.plan_order((weight * 2).exp().sum(), "dfs")
    assert weight.grad is not None and weight.grad.tolist() == [7.0, 7.0, 7.0]


def test_what_a_prediction_does_not_know_is_said_with_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = torch.ones(2, 4, requires_grad=True)
    checkpointed = checkpoint.checkpoint(model, x, use_reentrant=True)
    says(ts.plan_order(checkpointed.sum()), "reentrant")


def test_an_optimum_that_is_not_proven_takes_no_row_and_says_so() -> None:
    _, make_loss = workload("lstm_cell").build()
    planned = ts.plan_order(make_loss(), ("heap", "optimal(0)"))
    assert [row.policy for row in planned.rows] == ["heap"]
    says("\n".join(planned.notes), "optimal", "0 s")
    says(planned, "optimal")


@pytest.mark.parametrize("seconds", ["3", -1, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds: object, snapshot: Snapshots) -> None:
    with raises(ValueError, "seconds", 0, repr(seconds)) as raised:
        ts.plan_order(wide(), seconds=seconds)  # type: ignore[arg-type]
    if seconds == -1:
        snapshot("plan_order", raised.value)


def test_midway_a_plan_by_memory_needs_to_know_of_it(snapshot: Snapshots) -> None:
    for engine in ("native", "direct"):
        with ts.debug(wide(), engine=engine) as session:
            session.step()
            with raises(ValueError, "session.footprints") as raised:
                session.policy = "lpmf"
            session.policy = "critical_path"
            session.run()
    snapshot("debug", raised.value)


def test_an_interrupt_ends_a_search_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal is sent from within the search: a clock's would hit another test where the search is quick."""
    try_move, tried = local_search._Search.try_move, []

    def interrupted(searching: local_search._Search) -> None:
        try_move(searching)
        tried.append(searching.tried)
        if len(tried) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(local_search._Search, "try_move", interrupted)
    monkeypatch.setattr(sys.modules["tapescope.engine.planning.plan_order"], "_EXACT_TASKS", 0)
    _, make_loss = workload("lstm_cell").build(steps=20)
    planned = ts.plan_order(make_loss(), "bfs", seconds=1e6)
    assert tried == [1, 2, 3]
    assert planned.best.peak_bytes <= planned["bfs"].peak_bytes
