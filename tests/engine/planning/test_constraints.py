from __future__ import annotations

import doctest
import graphlib
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import tapescope as ts
from tapescope.engine.planning import constraints as precedence
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.dependencies import dependencies
from tapescope.inspector.text.sizes_and_counts import nth
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ..backward_programs import random_program
from .chunked import State, chunked_loss


def oldest(ready: Sequence[ts.Task], state: object) -> ts.Task:
    return min(ready, key=lambda task: task.id)


PLANNED = ts.Policy("planned", "by a plan", plan=lambda problem, ran: schedule(problem.graph, "dfs", ran=ran))
ALL: list[Any] = ["bfs", "dfs", "heap", "delay_accumulate", "random(7)", "critical_path", oldest, PLANNED]


def states_last_first(loss: Tensor) -> list[set[int]]:
    """The tasks that unpack each state of the cache, as what the pack hook gave says."""
    found: dict[int, set[int]] = {}
    for row in ts.orders.unpack_order(loss):
        if isinstance(row.packed, State):
            found.setdefault(row.packed.number, set()).add(row.task)
    return [found[number] for number in sorted(found, reverse=True)]


def test_a_language_models_chunks_are_rebuilt_in_pytorchs_order_and_a_policy_gradients_are_not() -> None:
    _, loss, hooks = chunked_loss(policy_gradient=False)
    assert ts.orders.check_order(loss, [states_last_first(loss)])
    loss.backward()
    assert hooks.asked == sorted(hooks.asked, reverse=True)

    _, loss, hooks = chunked_loss(policy_gradient=True)
    check = ts.orders.check_order(loss, [states_last_first(loss)])
    assert not check
    with pytest.raises(RuntimeError, match="state 1 is asked for, and state 0 is the last that is left"):
        loss.backward()


@pytest.mark.parametrize("engine", ["native", "direct"])
@pytest.mark.parametrize("policy", ["heap", "bfs", "random(1)"])
def test_constrained_each_state_is_rebuilt_from_the_next_and_gradients_are_pytorchs(engine: Any, policy: str) -> None:
    model, loss, hooks = chunked_loss()
    chain = states_last_first(loss)
    remedy = ts.orders.check_order(loss, [chain], policy).remedy
    assert remedy is not None
    says(remedy.name, policy, 1)
    run = ts.backward(loss, policy=remedy, engine=engine)
    assert hooks.asked == sorted(hooks.asked, reverse=True)
    assert set(hooks.asked) == set(range(5))
    assert ts.orders.check_order(run, [chain])
    plain, expected, _ = chunked_loss(rebuild=False)
    expected.backward()
    for mine, its in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad)


def random_constraints(order: Sequence[int], pick: random.Random) -> list[list[frozenset[int]]]:
    """Constraints that this order keeps."""
    found = []
    for _ in range(4):
        cuts = sorted(pick.sample(range(len(order)), 4))
        pieces = [order[low:high] for low, high in pairwise(cuts)]
        found.append([frozenset(pick.sample(piece, min(2, len(piece)))) for piece in pieces])
    return found


def keeps(order: Sequence[int], constraints: Sequence[Sequence[frozenset[int]]]) -> bool:
    place = {task: number for number, task in enumerate(order)}
    return all(
        max(place[task] for task in first) < min(place[task] for task in then)
        for chain in constraints
        for first, then in pairwise(chain)
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(ALL))
def test_a_constrained_order_is_legal_and_keeps_the_constraints_and_where_they_bind_nothing_changes(
    seed: int, policy: Any
) -> None:
    graph = ts.graph(random_program(seed)[1])
    pick = random.Random(seed)
    constraints = random_constraints(schedule(graph, f"random({seed})"), pick)
    order = schedule(graph, ts.orders.constrained(policy, constraints))
    assert sorted(order) == list(range(len(graph)))
    place = {task: number for number, task in enumerate(order)}
    assert all(place[edge.task] < place[edge.next_task] for edge in graph.edges)
    assert keeps(order, constraints)
    assert ts.orders.check_order(graph, constraints, ts.orders.constrained(policy, constraints))
    assert bool(ts.orders.check_order(graph, constraints, policy)) == keeps(schedule(graph, policy), constraints)

    own = schedule(graph, policy)
    assert schedule(graph, ts.orders.constrained(policy, random_constraints(own, pick))) == own
    assert schedule(graph, ts.orders.constrained(policy, [])) == own


def by_hand(graph: ts.Graph, constraints: Sequence[Sequence[frozenset[int]]], policy: str) -> list[int]:
    """BFS or DFS among the ready tasks that the constraints allow, as slowly and plainly as can be."""
    missing = dependencies(graph)
    arrived: list[int] = []
    order: list[int] = []

    def arrive(task: int) -> None:
        missing[task] -= 1
        if not missing[task]:
            arrived.append(task)

    def allowed(task: int) -> bool:
        links = [link for chain in constraints for link in pairwise(chain)]
        return all(task not in then or first <= set(order) for first, then in links)

    for root in graph.roots:
        arrive(root.task)
    while arrived:
        may = [task for task in arrived if allowed(task)]
        order.append(may[0 if policy == "bfs" else -1])
        arrived.remove(order[-1])
        for edge in graph.out_edges[order[-1]]:
            arrive(edge.next_task)
    return order


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["bfs", "dfs"]))
def test_a_constrained_policy_is_its_own_rule_among_the_tasks_that_are_allowed(seed: int, policy: str) -> None:
    graph = ts.graph(random_program(seed)[1])
    constraints = random_constraints(schedule(graph, f"random({seed})"), random.Random(seed))
    assert schedule(graph, ts.orders.constrained(policy, constraints)) == by_hand(graph, constraints, policy)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_constraints_are_refused_exactly_where_no_order_keeps_them(seed: int) -> None:
    graph = ts.graph(random_program(seed, operations=8)[1])
    pick = random.Random(seed)
    pairs = [pick.sample(range(len(graph)), 2) for _ in range(pick.randrange(1, 5))]
    waits: dict[int, set[int]] = {task: set() for task in range(len(graph))}
    for edge in graph.edges:
        waits[edge.next_task].add(edge.task)
    for first, then in pairs:
        waits[then].add(first)
    try:
        tuple(graphlib.TopologicalSorter(waits).static_order())
        possible = True
    except graphlib.CycleError:
        possible = False
    policy = ts.orders.constrained("heap", pairs)
    if possible:
        assert keeps(schedule(graph, policy), [[frozenset({task}) for task in pair] for pair in pairs])
    else:
        with raises(ValueError, "constraint"):
            schedule(graph, policy)
        check = ts.orders.check_order(graph, pairs)
        assert not check
        assert check.remedy is None
        assert check.obstacle is not None and check.obstacle in str(check).splitlines()[-1]


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.trunk(x).tanh()
        result: Tensor = self.left(hidden).sum() + self.right(hidden).sum()
        return result


def two_heads() -> tuple[TwoHeads, Tensor]:
    model = TwoHeads()
    with ts.capture():
        return model, model(torch.randn(2, 4))


def test_modules_parameters_and_kinds_of_node_are_named_as_for_breakpoints(snapshot: Snapshots) -> None:
    model, loss = two_heads()
    assert ts.orders.check_order(loss, [("right", "left")])
    check = ts.orders.check_order(loss, [("left", "right"), ("left.weight", "right.weight"), ("Sum", "Tanh")])
    assert [each.constraint.number for each in check.broken] == [1, 2]
    first = check.broken[0]
    says(first.constraint.text, '"left"', '"right"')
    assert (check.order.index(first.first), check.order.index(first.then)) == first.places
    assert check.graph.module(first.then) == "right"
    assert check.graph.module(first.first) == "left"
    (sentence,) = [each for each in check.sentences if first.constraint.text in each]
    says(sentence, 1, *(nth(place + 1) for place in first.places), len(check.order))
    says(sentence, *(f"AddmmBackward0 ({module}, test_constraints.py:" for module in ("left", "right")))
    says(check, sentence, 'constrained("heap", constraints)')
    snapshot("check_order", check)
    run = ts.backward(loss, policy=check.remedy or "heap")
    assert ts.orders.check_order(run, [("left", "right"), ("left.weight", "right.weight")])
    assert model.left.weight.grad is not None


def test_a_constraint_against_the_graph_is_refused_with_the_path_that_it_contradicts(snapshot: Snapshots) -> None:
    _, loss = two_heads()
    with raises(ValueError, "constraint 2", '"Tanh"', '"left"') as raised:
        ts.backward(loss, policy=ts.orders.constrained("heap", [("right", "left"), ("Tanh", "left")]))
    snapshot("backward", raised.value)
    path = str(raised.value).split(" → ")
    says(path[0], "AddmmBackward0 (left, test_constraints.py:")
    assert path[-1].startswith("TanhBackward0 (test_constraints.py:")
    loss.backward()  # nothing had run


def test_constraints_that_contradict_each_other_are_named_with_the_way_around(snapshot: Snapshots) -> None:
    _, loss = two_heads()
    with raises(ValueError, "constraint 1", "constraint 3", '"left"', '"right"') as raised:
        ts.backward(
            loss, policy=ts.orders.constrained("heap", [("left", "right"), ("Tanh", "trunk"), ("right", "left")])
        )
    says_none_of(raised.value, "constraint 2", '"trunk"')
    snapshot("backward", raised.value)


def test_what_is_no_constraint_is_told_in_a_sentence(snapshot: Snapshots) -> None:
    _, loss = two_heads()
    for constraints, kind, facts in (
        ([("right", "left"), ("*", "left")], ValueError, ("constraint 2", '"*"', '"left"', "TBackward0")),
        ([("right", "left"), (0, 0)], ValueError, ("constraint 2", "#0", "TBackward0")),
        ([("left",)], ValueError, ("constraint 1", 1)),
        (["left", "right"], TypeError, ("constraint 1", '"left"')),
        ("left", TypeError, ('"left"',)),
        ([("left", "rigth")], ValueError, ("constraint 1", '"rigth"', "right")),
        ([("left", 1.5)], TypeError, ("constraint 1", "task", "float")),
    ):
        with raises(kind, *facts) as raised:
            ts.orders.check_order(loss, constraints)  # type: ignore[arg-type]
        snapshot("check_order", raised.value)
    dynamic = ts.Policy("by memory", "by memory", lambda task, arrival: (arrival,), dynamic=True)
    with raises(ValueError, "by memory") as refused:
        ts.orders.constrained(dynamic, [("left", "right")])
    snapshot("constrained", refused.value)


def test_without_constraints_every_order_keeps_them_all(snapshot: Snapshots) -> None:
    _, loss = two_heads()
    check = ts.orders.check_order(loss, [])
    assert check and not check.broken and len(check.sentences) == 1
    says(check.sentences[0], "heap")
    snapshot("check_order", check.sentences[0])


def named(graph: ts.Graph, constraint: Sequence[Any]) -> list[list[str]]:
    """Return the kinds of nodes on each side of a constraint."""
    (step,) = ts.orders.check_order(graph, [constraint]).precedences
    return [sorted(graph.tasks[task].short_name for task in tasks) for tasks in (step.first, step.then)]


def test_a_tensor_stands_for_the_tasks_that_unpack_it_or_a_view_of_all_of_it(snapshot: Snapshots) -> None:
    x = torch.randn(4, 4, requires_grad=True)
    weight = torch.randn(5, 4, requires_grad=True)
    hidden = x.tanh()
    above, below = hidden.chunk(2)
    loss = above.exp().sum() + below.sin().sum() + nn.functional.linear(hidden, weight).sum()
    graph = ts.graph(loss)
    assert named(graph, (below, hidden)) == [["Sin"], ["Mm", "Tanh"]]
    assert named(graph, (below, weight)) == [["Sin"], ["Mm"]]  # its transpose
    with raises(ValueError, "constraint 1", "4×4", "float32") as raised:
        ts.orders.check_order(graph, [(below, hidden.detach().clone())])
    snapshot("check_order", raised.value)
    run = ts.backward(loss, policy=ts.orders.constrained("heap", [(below, weight)]))
    with raises(ValueError, "constraint 1", "2×4", "float32"):
        ts.orders.check_order(run, [(below, weight)])


@pytest.mark.parametrize("pack", [lambda x: x, lambda x: (x.device, x), lambda x: {"kept": x}, lambda x: [0, x]])
def test_a_tensor_is_found_in_what_the_users_hooks_packed(pack: Any) -> None:
    def unpack(packed: Any) -> Tensor:
        parts = packed.values() if isinstance(packed, dict) else packed
        return packed if isinstance(packed, Tensor) else next(each for each in parts if isinstance(each, Tensor))

    x = torch.randn(3, requires_grad=True)
    with saved_tensors_hooks(pack, unpack):
        first, second = x * 2, x * 3
        loss = first.sin().sum() + second.cos().sum()
    assert named(ts.graph(loss), (first, second)) == [["Sin"], ["Cos"]]
    run = ts.backward(loss, policy=ts.orders.constrained("heap", [(first, second)]))
    ran = [run.graph.tasks[task].short_name for task in run.order]
    assert ran.index("Sin") < ran.index("Cos")


def test_a_tensor_that_hooks_packed_beyond_recognition_is_told(snapshot: Snapshots) -> None:
    x = torch.randn(3, requires_grad=True)
    kept: list[Tensor] = []
    with saved_tensors_hooks(lambda tensor: kept.append(tensor) or len(kept), lambda number: kept[number - 1]):
        loss = x.sin().sum()
    with raises(ValueError, "constraint 1", "SinBackward0", "saved_tensors_hooks", "unpack_order(loss)") as raised:
        ts.orders.check_order(loss, [(x, "AccumulateGrad")])
    snapshot("check_order", raised.value)


def test_a_chain_passes_over_what_inputs_leave_out() -> None:
    model = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    with ts.capture(model):
        loss = torch.stack([part(torch.ones(2, 4)).exp() for part in model]).sum()
    wanted = [model[0].weight, model[2].weight]
    policy = ts.orders.constrained("heap", [["grad:0.*", "grad:1.*", "grad:2.*"]])
    for engine in ("native", "direct"):
        run = ts.backward(loss, retain_graph=True, inputs=wanted, policy=policy, engine=engine)  # type: ignore[arg-type]
        ran = [run.graph.tasks[task].parameter for task in run.order if run.graph.tasks[task].is_leaf]
        assert ran == ["0.weight", "2.weight"]
        (step,) = ts.orders.check_order(run, [["grad:0.*", "grad:1.*", "grad:2.*"]]).precedences
        says(step.text, '"grad:0.*"', '"grad:2.*"')


def test_a_constrained_policy_can_be_constrained_again() -> None:
    _, loss = two_heads()
    once = ts.orders.constrained("heap", [("left", "right")])
    twice = ts.orders.constrained(once, [("left.weight", "left.bias")])
    says(twice.name, "heap", 2)
    assert ts.orders.check_order(loss, [("left", "right"), ("left.weight", "left.bias")], twice)
    assert not ts.orders.check_order(loss, [("left", "right"), ("left.weight", "left.bias")], once)


def test_what_was_run_by_hand_against_a_constraint_stays_and_the_rest_keeps_it() -> None:
    graph = ts.graph(two_heads()[1])
    policy = ts.orders.constrained("bfs", [("left", "right")])
    assert policy.plan is not None
    (step,) = ts.orders.check_order(graph, [("left", "right")]).precedences
    start = schedule(graph, "dfs")  # begins with the right head
    start = start[: 1 + min(start.index(task) for task in step.then)]
    assert not step.first.intersection(start)
    order = policy.plan(Problem(graph), start)
    assert order[: len(start)] == start
    assert sorted(order) == list(range(len(graph)))
    ran = [task in step.then for task in order[len(start) :] if task in step.first | step.then]
    assert ran == sorted(ran)
    assert ran.count(True) == len(step.then) - 1


def test_with_policy_and_compare_take_it() -> None:
    model, loss = two_heads()
    constraints = [("left", "right")]
    policy = ts.orders.constrained("dfs", constraints)
    runs: list[ts.Run] = []
    with ts.policy(policy, on_run=runs.append):
        loss.backward()
    says(runs[0].policy, "dfs", 1)
    assert ts.orders.check_order(runs[0], constraints)
    x = torch.randn(2, 4)
    comparison = ts.compare(lambda: model(x), [ts.orders.constrained("dfs", [("Tanh", "grad:*trunk*")])], repetitions=1)
    assert [row.policy for row in comparison.rows] == [policy.name]


def test_a_check_in_a_notebook_is_a_table_in_which_names_are_data() -> None:
    module = nn.Module()
    module.add_module("<b>", nn.Linear(2, 2))
    with ts.capture(module):
        loss = torch.stack(
            [module.get_submodule("<b>")(torch.ones(2)).sin(), torch.ones(2).requires_grad_().cos()]
        ).sum()
    check = ts.orders.check_order(loss, [("<b>", "Cos")])
    assert not check
    page = check._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>&quot;" not in page
    assert "(<b>" not in page
    says(check.records()[0]["text"], '"<b>"', '"Cos"')
    assert ts.orders.check_order(loss, [("Cos", "<b>")])._repr_html_().count("<p>") == 1


def test_the_example_in_the_documentation_runs() -> None:
    found = doctest.testmod(precedence)
    assert (found.failed, found.attempted > 0) == (0, True)
