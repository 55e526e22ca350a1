"""A custom policy that picks or plans something impossible: one sentence, and nothing changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.planning.scheduling_problem import Problem
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.policy import AnyPolicy, QueueState, policy_name
from tapescope.tests.says import Snapshots, raises

Ready = Sequence[ts.Task]


def leaf_first(ready: Ready, state: QueueState) -> ts.Task:
    return next(task for task in state.graph.tasks if task.is_leaf)


def by_id(ready: Ready, state: QueueState) -> Any:
    return ready[0].id


def by_unknown_id(ready: Ready, state: QueueState) -> Any:
    return 1234


def by_name(ready: Ready, state: QueueState) -> Any:
    return ready[0].name


def legal(problem: Problem) -> list[int]:
    return schedule(problem.graph, "bfs", problem.needed)


def swapped(order: list[int]) -> list[int]:
    return [order[1], order[0], *order[2:]]


def planning(name: str, plan: Callable[[Problem], Any]) -> ts.Policy:
    return ts.Policy(name, "as the test says", plan=lambda problem, ran: plan(problem))


CHOICES = {
    leaf_first: ("leaf_first", "AccumulateGrad", "0.weight", "test_bad_policies.py:", "SumBackward0"),
    by_id: ("by_id", 5, "ts.Task", "SumBackward0", "test_bad_policies.py:"),
    by_unknown_id: ("by_unknown_id", 1234, "ts.Task", "SumBackward0"),
    by_name: ("by_name", "'SumBackward0'", "ts.Task", "SumBackward0"),
}
"""By policy what its error names."""

PLANS = {
    planning("nothing", lambda problem: None): ("nothing", "None", "plan"),
    planning("text", lambda problem: "0, 1"): ("text", "str", "plan"),
    planning("names", lambda problem: ["Sum"]): ("names", "'Sum'"),
    planning("unknown", lambda problem: [*legal(problem), 99]): ("unknown", 99, 0),
    planning("partly", lambda problem: legal(problem)[:-1]): ("partly", "test_bad_policies.py:"),
    planning("twice", lambda problem: [*legal(problem), legal(problem)[2]]): (
        "twice",
        "MulBackward0",
        "test_bad_policies.py:",
    ),
    planning("early", lambda problem: swapped(legal(problem))): (
        "early",
        "AddBackward0",
        "SumBackward0",
        "test_bad_policies.py:",
    ),
    ts.Policy("none", "chooses nothing", plan=lambda problem, ran: legal(problem), choose=lambda problem, ran: None): (  # type: ignore[arg-type,return-value]
        "none",
        "None",
        "choose",
        "ts.Policy",
    ),
}

NO_KEY: Any = None

KEYS = {
    ts.Policy("no_key", "has none", key=lambda task, arrival: NO_KEY): ("no_key", "None"),
    ts.Policy("later", "has none", key=lambda task, arrival: NO_KEY, dynamic=True): ("later", "None"),
}


def step(loss: Tensor, **options: Any) -> None:
    with ts.debug(loss, **options) as session:
        session.step()


def under_policy(loss: Tensor, policy: AnyPolicy) -> None:
    with ts.policy(policy):
        loss.backward()


VERBS: dict[str, Callable[[Tensor, Tensor, Any], object]] = {
    "direct": lambda loss, hidden, policy: ts.backward(loss, inputs=[hidden, loss], engine="direct", policy=policy),
    "direct, measured": lambda loss, hidden, policy: ts.backward(
        loss, inputs=[hidden, loss], engine="direct", policy=policy, memory=True
    ),
    "native": lambda loss, hidden, policy: ts.backward(loss, inputs=[hidden, loss], policy=policy),
    "native, traced": lambda loss, hidden, policy: ts.backward(loss, policy=policy, trace="cheap"),
    "debug": lambda loss, hidden, policy: step(loss, policy=policy),
    "debug, inputs": lambda loss, hidden, policy: step(loss, inputs=[hidden, loss], policy=policy),
    "debug, native": lambda loss, hidden, policy: step(loss, policy=policy, engine="native"),
    "simulate": lambda loss, hidden, policy: ts.simulate(ts.graph(loss), policy),
    "policy": lambda loss, hidden, policy: under_policy(loss, policy),
}


PICKED = [(verb, policy) for verb in VERBS for policy in (*CHOICES, *PLANS)]
PICKED.remove(("simulate", next(policy for policy in PLANS if policy.name == "none")))  # which asks `plan` alone


@pytest.mark.parametrize(
    ("verb", "policy"), PICKED, ids=lambda each: each if isinstance(each, str) else policy_name(each)
)
def test_a_policy_that_fails_at_its_first_pick_changes_nothing(
    verb: str, policy: AnyPolicy, snapshot: Snapshots
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    batch = torch.randn(2, 3)

    def forward(model: nn.Module) -> tuple[Tensor, Tensor]:
        hidden = model(batch)
        return hidden, (hidden * 2 + hidden).sum()

    expected = copy.deepcopy(model)
    forward(expected)[1].backward()
    with ts.capture(model):
        hidden, loss = forward(model)
    facts = {**CHOICES, **PLANS}[policy]  # type: ignore[index]
    with raises(ts.PolicyError, *facts) as raised:
        VERBS[verb](loss, hidden, policy)
    if verb == "direct":
        snapshot("backward", raised.value)
    assert not hidden.retains_grad and not loss.retains_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not hidden._backward_hooks and not loss._backward_hooks
    loss.backward()
    pairs = zip(model.parameters(), expected.parameters(), strict=True)
    assert all(torch.equal(ours.grad, plain.grad) for ours, plain in pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [*CHOICES, *PLANS, *KEYS], ids=policy_name)
def test_compare_says_which_policy_failed_and_leaves_the_model_as_it_was(policy: AnyPolicy) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    before = copy.deepcopy(model.state_dict())

    def make_loss() -> Tensor:
        hidden = model(torch.ones(2, 3))
        return (hidden * 2 + hidden).sum()

    with raises(ts.PolicyError, *{**CHOICES, **PLANS, **KEYS}[policy]):  # type: ignore[index]
        ts.compare(make_loss, policies=["heap", policy])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


@pytest.mark.parametrize("engine", ["direct", "native"])
@pytest.mark.parametrize("policy", KEYS, ids=policy_name)
def test_a_key_that_does_not_compare_is_named_with_its_task(
    policy: ts.Policy, engine: Any, snapshot: Snapshots
) -> None:
    x = torch.ones(2, requires_grad=True)
    with raises(ts.PolicyError, *KEYS[policy]) as raised:
        ts.backward((x * 2 + x.exp()).sum(), policy=policy, engine=engine)
    if engine == "direct":
        snapshot("backward", raised.value)
    assert x.grad is None


def test_a_session_goes_on_under_its_policy_where_another_cannot_plan() -> None:
    x = torch.ones(2, requires_grad=True)
    for engine in ("direct", "native"):
        with ts.debug((x * 2 + x.exp()).sum(), policy="bfs", engine=engine) as session:  # type: ignore[arg-type]
            session.step()
            session.step()
            planned = list(session.planned)
            for policy in PLANS:
                if policy.name != "early":  # the tasks it puts first have run
                    with raises(ts.PolicyError, policy.name):
                        session.policy = policy  # type: ignore[assignment]
            assert session.policy == "bfs" and list(session.planned) == planned
            session.run()
        assert torch.equal(x.grad, 2 + x.detach().exp())
        x.grad = None


def test_a_plan_may_name_tasks_that_inputs_leaves_out_and_those_that_ran_anywhere() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    whole = ts.Policy("whole", "all tasks of the graph", plan=lambda problem, ran: schedule(problem.graph, "dfs"))
    ts.backward((x.exp() * y.sin()).sum(), inputs=[x], policy=whole)
    assert torch.equal(x.grad, x.detach().exp() * y.detach().sin()) and y.grad is None
    graph = ts.graph((x.exp() * y.sin()).sum())
    own = schedule(graph, "dfs")
    ran = schedule(graph, "bfs")[:3]
    assert schedule(graph, whole, ran=ran) == ran + [task for task in own if task not in ran]
