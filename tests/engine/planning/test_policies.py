from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tapescope as ts
from tapescope.engine.planning.policies import CLASSIC, POLICIES
from tapescope.engine.planning.simulate import schedule
from tapescope.engine.schedule.dependencies import dependencies, queue_lengths
from tapescope.engine.schedule.policy import QueueState
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.inspector.graph.kinds import Kind
from tapescope.tests.says import Snapshots, raises

from ..backward_programs import random_program


def names(graph: ts.Graph, order: list[int]) -> list[str]:
    return [graph.tasks[task].name.removesuffix("Backward0").rsplit("::", 1)[-1] for task in order]


def fan() -> ts.Graph:
    """(exp, sin, cos of one leaf) stacked: the three get ready together, created in this order."""
    x = torch.ones(1, requires_grad=True)
    return ts.graph(torch.stack([x.exp(), x.sin(), x.cos()]))


def test_bfs_runs_what_got_ready_first() -> None:
    graph = fan()
    assert names(graph, schedule(graph, "bfs")) == ["Stack", "Exp", "Sin", "Cos", "AccumulateGrad"]


def test_dfs_runs_what_got_ready_last() -> None:
    graph = fan()
    assert names(graph, schedule(graph, "dfs")) == ["Stack", "Cos", "Sin", "Exp", "AccumulateGrad"]


def test_heap_runs_what_was_created_last_and_leaves_first_of_all() -> None:
    x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    early = x.exp()
    late = y.sin()
    graph = ts.graph(torch.stack([late.cos(), early]))
    assert names(graph, schedule(graph, "heap")) == ["Stack", "Cos", "Sin", "AccumulateGrad", "Exp", "AccumulateGrad"]


def brute_force(graph: ts.Graph, policy: str) -> list[int]:
    """The policies once more, as slowly and plainly as can be."""
    missing = dependencies(graph)
    arrived: list[int] = []
    order: list[int] = []

    def arrive(task: int) -> None:
        missing[task] -= 1
        if not missing[task]:
            arrived.append(task)

    for root in graph.roots:
        arrive(root.task)
    while arrived:
        if policy == "bfs":
            task = arrived[0]
        elif policy == "dfs":
            task = arrived[-1]
        else:
            task = max(arrived, key=lambda task: graph.tasks[task].sequence_nr)
        arrived.remove(task)
        order.append(task)
        for edge in graph.out_edges[task]:
            arrive(edge.next_task)
    return order


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(CLASSIC))
def test_a_schedule_is_the_policy_taken_literally(seed: int, policy: str) -> None:
    _, loss = random_program(seed)
    graph = ts.graph(loss)
    assert schedule(graph, policy) == brute_force(graph, policy)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_every_schedule_is_legal_and_complete(seed: int) -> None:
    _, loss = random_program(seed)
    graph = ts.graph(loss)
    pick = random.Random(seed)
    for policy in [*CLASSIC, lambda ready, state: pick.choice(ready)]:
        order = schedule(graph, policy)
        place = {task: position for position, task in enumerate(order)}
        assert sorted(order) == list(range(len(graph)))
        assert all(place[edge.task] < place[edge.next_task] for edge in graph.edges)


def test_a_users_policy_sees_the_ready_tasks_first_arrived_first_and_what_has_run() -> None:
    graph = fan()
    seen = []

    def smallest_id(ready: list[ts.Task], state: QueueState) -> ts.Task:
        assert state.graph is graph
        seen.append(([task.id for task in ready], list(state.order)))
        return min(ready, key=lambda task: task.id)

    assert schedule(graph, smallest_id) == [3, 0, 1, 2, 4]
    assert seen == [([3], []), ([0, 1, 2], [3]), ([1, 2], [3, 0]), ([2], [3, 0, 1]), ([4], [3, 0, 1, 2])]


def test_under_bfs_all_weight_gradients_of_a_reused_linear_wait_at_once_under_heap_and_dfs_one() -> None:
    _, make_loss = WORKLOADS["linear50"].build()
    graph = ts.graph(make_loss())
    transposes = {task.id for task in graph.tasks if task.name == "TBackward0"}

    def most_waiting(policy: str) -> int:
        waiting, most = set(), 0
        for task in schedule(graph, policy):
            waiting.discard(task)
            waiting |= {edge.next_task for edge in graph.out_edges[task]} & transposes
            most = max(most, len(waiting))
        return most

    assert {policy: most_waiting(policy) for policy in CLASSIC} == {"bfs": 50, "dfs": 1, "heap": 1}


def test_queue_lengths_count_the_ready_tasks_at_each_pick() -> None:
    graph = fan()
    assert queue_lengths(graph, schedule(graph, "bfs")) == [1, 3, 2, 1, 1]


def test_an_unknown_policy_is_told_with_those_there_are(snapshot: Snapshots) -> None:
    with raises(ValueError, "'best'", "bfs", "dfs", "heap"):
        schedule(fan(), "best")
    with raises(TypeError, "policy", "int", "bfs", "dfs", "heap") as raised:
        schedule(fan(), 7)  # type: ignore[arg-type]
    snapshot("backward", raised.value)


def test_a_policy_that_returns_what_is_not_ready_is_told_what_is(snapshot: Snapshots) -> None:
    graph = fan()

    def eager(ready: list[ts.Task], state: QueueState) -> ts.Task:
        return state.graph.tasks[4]

    with raises(ts.PolicyError, "eager", "AccumulateGrad", "StackBackward0"):
        schedule(graph, eager)
    with raises(ts.PolicyError, "None", "ts.Task", "StackBackward0") as no_task:
        schedule(graph, lambda ready, state: None)  # type: ignore[arg-type,return-value]
    other = fan()
    with raises(ts.PolicyError, "<Task 3 Stack>", "StackBackward0") as of_another:
        schedule(graph, lambda ready, state: other.tasks[ready[0].id])

    def again(ready: list[ts.Task], state: QueueState) -> ts.Task:
        return state.graph.tasks[state.order[0]] if state.order else ready[0]

    with raises(
        ts.PolicyError, "again", "StackBackward0", 3, "ExpBackward0", "SinBackward0", "CosBackward0"
    ) as not_ready:
        schedule(graph, again)
    for raised in (no_task, of_another, not_ready):
        snapshot("backward", raised.value)


def test_labels_are_arrivals_or_creation_ranks() -> None:
    graph = fan()
    task, leaf = graph.tasks[1], graph.tasks[4]
    assert leaf.kind is Kind.ACCUMULATE_GRAD
    assert POLICIES["heap"].label(task, 5) == "#1" and POLICIES["heap"].label(leaf, 5) == "leaf"
    assert POLICIES["bfs"].label(task, 5) == POLICIES["dfs"].label(task, 5) == "@5"
