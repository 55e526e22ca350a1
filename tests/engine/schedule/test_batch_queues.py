"""Queues that hold tasks back: a group is offered when all of it is ready, and nobody starves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tapescope as ts
from tapescope.engine.planning.policies import POLICIES
from tapescope.engine.schedule.batch_queues import HoldingChoiceQueue, HoldingQueue, holding_queue
from tapescope.engine.schedule.policy import Policy


def wide_graph() -> ts.Graph:
    leaves = [torch.ones(2, requires_grad=True) for _ in range(6)]
    return ts.graph(torch.stack([leaf.sin() for leaf in leaves]).sum())


GRAPH = wide_graph()
GROUP = (2, 4, 5)


def together(task_id: int) -> tuple[int, ...]:
    return GROUP if task_id in GROUP else ()


def last(ready, state):
    return ready[-1]


@pytest.mark.parametrize("policy", [POLICIES["bfs"], POLICIES["dfs"], last])
@settings(max_examples=30, deadline=None)
@given(arrivals=st.permutations(range(7)))
def test_a_group_runs_when_all_of_it_is_ready(policy, arrivals):
    queue = holding_queue(GRAPH, policy, [], together)
    assert isinstance(queue, HoldingQueue if isinstance(policy, Policy) else HoldingChoiceQueue)
    came = set()
    for task_id in arrivals:
        queue.push(task_id)
        came.add(task_id)
        if len(queue) > len(came.intersection(GROUP)) or came.issuperset(GROUP):
            assert queue.choose() not in GROUP or came.issuperset(GROUP)
    ran = []
    while queue:
        tasks = queue.next_step()
        assert set(tasks) == set(GROUP) or len(tasks) == 1
        for task_id in tasks:
            queue.remove(task_id)
        ran += tasks
    assert sorted(ran) == list(range(7))


@pytest.mark.parametrize("policy", [POLICIES["heap"], last])
def test_what_is_held_back_runs_if_nothing_else_is_there_or_the_group_is_given_up(policy):
    queue = holding_queue(GRAPH, policy, [], together)
    for task_id in (4, 1, 2):
        queue.push(task_id)
    assert queue.choose() == 1
    assert queue.next_step() == [1]
    assert len(queue.entries()) == 3
    queue.remove(1)
    assert queue.choose() in GROUP
    assert len(queue.next_step()) == 1
    queue.push(1)
    queue.release(GROUP)
    assert queue.choose() == (4 if isinstance(policy, Policy) else 1)
    queue.remove(2)
    assert {entry.task.id for entry in queue.entries()} == {1, 4}
