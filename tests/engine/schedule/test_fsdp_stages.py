"""The order constraints of `fully_shard`, in one process: a stand-in reduces as its own Function does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import Function

import tapescope as ts
from tapescope.engine.planning.exact_search import exact
from tapescope.engine.planning.local_search import search
from tapescope.engine.planning.lower_bound import lower_bound
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.policy import policy_name
from tapescope.tests.says import Snapshots, raises, says

NAMES = [name for name in ts.orders.POLICIES if name not in ("search", "optimal", "comm_first")]


def newest_leaf_last(ready: Sequence[ts.Task], state: object) -> ts.Task:
    return min(ready, key=lambda task: (task.is_leaf, task.id))


POLICIES: list[Any] = [*NAMES, "random(3)", "search(0.05)", "optimal(0.2)", "comm_first(kind:Tanh*)", newest_leaf_last]


class Group:
    """Parameters that are gathered from a call of the module to the end of its backward, and reduced there."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.parameters = [nn.Parameter(torch.randn(*shape, dtype=torch.float64)) for shape in shapes]
        self.reduced: list[Tensor | None] = [None] * len(shapes)

    def post_backward(self) -> None:
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                sum_before = self.reduced[number]
                self.reduced[number] = parameter.grad if sum_before is None else sum_before + parameter.grad
                parameter.grad = None


class RegisterPostBackwardFunction(Function):
    """The same as in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py."""

    @staticmethod
    def forward(ctx: Any, group: Group, x: Tensor) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.group.post_backward()
        return None, *gradients


def layer(group: Group, x: Tensor) -> Tensor:
    weight, bias = group.parameters
    x = RegisterPostBackwardFunction.apply(group, x)
    return (x @ weight).tanh() + x.sin() * bias


def model(seed: int = 0, width: int = 2, depth: int = 3) -> tuple[list[Group], Tensor]:
    """Layers in rows and side by side; some are called twice."""
    torch.manual_seed(seed)
    shapes = random.Random(seed)
    groups = [Group((4, 4), (4,)) for _ in range(width * depth)]
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    for row in range(depth):
        chosen = [groups[row * width + shapes.randrange(width)] for _ in range(width)]
        x = sum((layer(group, x) for group in chosen), x * 0.5)
    return groups, x.square().mean()


def gradients(groups: list[Group]) -> list[Tensor | None]:
    for group in groups:
        group.post_backward()  # as the callback at the end does for groups whose inputs need no gradient
    return [each for group in groups for each in group.reduced]


def late(graph: ts.Graph, order: Sequence[int]) -> list[int]:
    """The tasks that HEAP runs before some group is reduced, and this order after."""
    place_of = {task: place for place, task in enumerate(order)}
    heap = schedule(graph, "heap")
    found = []
    for place, task in enumerate(heap):
        if graph.tasks[task].name == "RegisterPostBackwardFunctionBackward":
            found += [each for each in heap[:place] if place_of[each] > place_of[task]]
            found += [each for each in heap[place + 1 :] if place_of[each] < place_of[task]]
    return found


@pytest.mark.parametrize("policy", POLICIES, ids=policy_name)
def test_each_policy_runs_what_a_group_waits_for_before_it_is_reduced(policy: Any) -> None:
    groups, loss = model()
    loss.backward()
    wanted = gradients(groups)
    groups, loss = model()
    run = ts.backward(loss, policy=policy, trace="off")
    assert len(run.order) == len(run.graph) and run.order == run.planned
    for one, other in zip(gradients(groups), wanted, strict=True):
        torch.testing.assert_close(one, other)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["bfs", "dfs", "random", "lpmf", "liu", "postorder"]))
def test_no_order_leaves_a_stage_before_it_is_over(seed: int, policy: str) -> None:
    _, loss = model(seed, width=1 + seed % 3, depth=1 + seed % 4)
    graph = ts.graph(loss)
    order = schedule(graph, policy)
    assert sorted(order) == list(range(len(graph))) and not late(graph, order)
    if policy == "bfs":
        assert order != schedule(graph, "heap")


def test_no_search_proves_or_promises_what_no_order_can_do() -> None:
    _, loss = model(width=2, depth=1)
    graph = ts.graph(loss)
    problem = Problem(graph)
    least_found = exact(problem, seconds=20.0)
    searched = search(problem, problem.heap_order, seconds=0.2)
    assert not late(graph, least_found.order) and not late(graph, searched.order)
    least = min(problem.peak_bytes(order) for order in legal_orders(graph, 300))
    assert lower_bound(problem).nbytes <= least_found.peak_bytes <= least
    plan = ts.plan_order(loss, seconds=0.2)
    assert not [row.policy for row in plan.rows if late(graph, row.order)]
    gantt = ts.makespan(loss, policies=["bfs", "heap"])
    assert gantt is not None


def legal_orders(graph: ts.Graph, count: int) -> list[list[int]]:
    return [schedule(graph, f"random({seed})") for seed in range(count)]


def test_simulate_refuses_an_order_that_leaves_a_leaf_behind(snapshot: Snapshots) -> None:
    _, loss = model(width=1, depth=2)
    graph = ts.graph(loss)
    heap = schedule(graph, "heap")
    place = next(place for place, task in enumerate(heap) if graph.tasks[task].name.startswith("RegisterPost"))
    leaf = next(task for task in heap[:place] if graph.tasks[task].is_leaf)
    order = [task for task in heap if task != leaf] + [leaf]
    assert len(order) == 23
    with raises(ValueError, "AccumulateGrad (23rd)", "(22nd)", "fully_shard") as raised:
        ts.simulate(graph, order)
    snapshot("simulate", raised.value)
    assert ts.simulate(graph, heap).order == tuple(heap)


def test_constraints_against_a_stage_are_told(snapshot: Snapshots) -> None:
    _, loss = model(width=1, depth=2)
    graph = ts.graph(loss)
    _, second = (task.id for task in graph.tasks if task.name.startswith("RegisterPost"))
    leaves = {edge.next_task for edge in graph.edges if graph.tasks[edge.next_task].is_leaf and edge.task > second}
    late_leaf = min(
        leaf for leaf in leaves if schedule(graph, "heap").index(leaf) < schedule(graph, "heap").index(second)
    )
    check = ts.orders.check_order(loss, [(second, late_leaf)])
    assert not check and check.remedy is None
    reduces = f"#{second} RegisterPostBackwardFunctionBackward"
    says(check.obstacle, f"#{late_leaf} AccumulateGrad", reduces, "fully_shard")
    snapshot("check_order", check.obstacle)
    with raises(ValueError, reduces, "fully_shard"):
        ts.backward(loss, policy=ts.orders.constrained("bfs", [(second, late_leaf)]))
    tanh = next(task.id for task in graph.tasks if task.name.startswith("Tanh"))
    sin = next(task.id for task in graph.tasks if task.name.startswith("Cos") or task.name.startswith("Sin"))
    for pair in ((tanh, sin), (sin, tanh)):
        run = ts.backward(loss, retain_graph=True, policy=ts.orders.constrained("dfs", [pair]))
        assert run.order.index(pair[0]) < run.order.index(pair[1]) and not late(graph, run.order)


def test_inputs_leave_the_stages_that_run() -> None:
    groups, loss = model(width=1, depth=3)
    graph = ts.graph(loss)
    wanted = groups[1].parameters
    run = ts.backward(loss, inputs=wanted, policy="bfs")
    ran = [graph.tasks[task].name for task in run.order]
    assert ran.count("RegisterPostBackwardFunctionBackward") == 1 and run.order == run.planned


def test_another_policy_at_a_stop_keeps_the_stages() -> None:
    groups, loss = model()
    loss.backward()
    wanted = gradients(groups)
    groups, loss = model()
    with ts.debug(loss, policy="dfs", engine="native") as session:
        for count, policy in enumerate(["bfs", "random", "delay_accumulate", "lpmf", "heap"]):
            for _ in range(count + 2):
                session.step()
            if policy != "lpmf":  # would plan by memory of which nothing is known any more
                session.policy = policy
        run = session.run()
    assert not late(run.graph, run.order)
    for one, other in zip(gradients(groups), wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_what_decides_while_it_runs_and_the_direct_engine_refuse_before_anything_runs(snapshot: Snapshots) -> None:
    groups, loss = model()
    live = ts.Policy("live", "any", lambda task, arrival: (task.id,), dynamic=True)
    with raises(ts.PolicyError, "live", "fully_shard", '"heap"') as raised:
        ts.backward(loss, policy=live)
    snapshot("backward", raised.value)
    with ts.debug(loss, engine="native") as session, raises(ts.PolicyError, "live", "fully_shard"):
        session.policy = live
    groups, loss = model()
    with raises(NotImplementedError, "fully_shard", "FullyShardedDataParallel", 'engine="native"') as refused:
        ts.backward(loss, engine="direct")
    snapshot("backward", refused.value)
    assert all(each is None for each in gradients(groups))
    loss.backward()


def test_a_task_of_fully_shards_own_that_is_not_known_takes_pytorchs_order_alone(snapshot: Snapshots) -> None:
    class SomethingNew(RegisterPostBackwardFunction):
        pass

    SomethingNew.__module__ = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
    group = Group((4, 4), (4,))
    loss = SomethingNew.apply(group, torch.ones(4, requires_grad=True)).sum()
    with raises(ts.PolicyError, "bfs", "SomethingNewBackward", "fully_shard", 'policy="heap"') as raised:
        ts.backward(loss, policy="bfs")
    snapshot("backward", raised.value)
    ts.backward(loss, policy="heap")


def test_one_stage_after_the_other_in_what_planners_see() -> None:
    _, loss = model(width=2, depth=2)
    graph = ts.graph(loss)
    problem = Problem(graph)
    order = schedule(graph, "random(5)")
    place_of = {task: place for place, task in enumerate(order)}
    assert all(place_of[task] < place_of[then] for task, thens in enumerate(problem.nexts) for then in thens)
    reduces = [task for task in order if graph.tasks[task].name.startswith("RegisterPost")]
    for first, then in pairwise(reduces):
        seen, stack = set[int](), [first]
        while stack:
            stack += [each for each in problem.nexts[stack.pop()] if each not in seen and not seen.add(each)]  # type: ignore[func-returns-value]
        assert then in seen
