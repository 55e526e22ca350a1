"""Ready queues side by side: a look finds the task that is chosen then, and changes and copies nothing."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tapescope as ts
from tapescope.engine.planning.policies import find_policy
from tapescope.engine.schedule.dependencies import Pending
from tapescope.engine.schedule.device_queues import DeviceQueues
from tapescope.engine.schedule.policy import AnyPolicy, Policy, QueueState

from ..backward_programs import random_program

DYNAMIC = Policy("dynamic", "the shortest name", key=lambda task, arrival: (len(task.name),), dynamic=True)


def middle(ready: list[ts.Task], state: QueueState) -> ts.Task:
    return ready[len(ready) // 2]


POLICIES: list[AnyPolicy] = ["heap", "bfs", "dfs", "random(3)", "delay_accumulate", DYNAMIC, middle]


class Replayed:
    """Queues that are filled anew, from all that has happened, each time they are to choose."""

    def __init__(self, graph: ts.Graph, policy: AnyPolicy, durations_ns: list[int], devices: list[str]) -> None:
        self._given = graph, find_policy(policy)
        self._times = durations_ns, devices
        self._events: list[tuple[str, int]] = []

    def push(self, task_id: int) -> None:
        self._events.append(("push", task_id))

    def remove(self, task_id: int) -> None:
        self._events.append(("remove", task_id))

    @property
    def queues(self) -> DeviceQueues:
        order: list[int] = []
        queues = DeviceQueues(*self._given, order, *self._times)
        for what, task_id in self._events:
            getattr(queues, what)(task_id)
            if what == "remove":
                order.append(task_id)
        return queues


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(POLICIES))
def test_a_look_finds_what_queues_choose_on_which_nobody_has_looked(seed: int, policy: AnyPolicy) -> None:
    _, loss = random_program(seed)
    graph, draw = ts.graph(loss), Random(seed)
    devices = [draw.choice(["cpu", "far", "near"]) for _ in graph.tasks]
    durations_ns = [draw.choice([0, 1, 1, 5, 20]) for _ in graph.tasks]
    order: list[int] = []
    queues = DeviceQueues(graph, find_policy(policy), order, durations_ns, devices)
    replayed = Replayed(graph, policy, durations_ns, devices)
    pending = Pending(graph)

    def look() -> None:
        if draw.random() < 0.7:
            expected = replayed.queues.choose() if queues else None
            assert queues.first() == expected
            assert queues.first(ask=False) == expected

    for task_id in pending.start():
        queues.push(task_id)
        replayed.push(task_id)
    while queues:
        look()
        by_hand = draw.random() < 0.2
        ready = [entry.task.id for entry in queues.entries()]
        task_id = draw.choice(ready) if by_hand else replayed.queues.choose()
        assert by_hand or queues.choose() == task_id
        assert queues.remove(task_id) is not None
        replayed.remove(task_id)
        look()  # as from a hook: the task runs, and has not given its outputs
        order.append(task_id)
        for next_task in pending.run(task_id):
            queues.push(next_task)
            replayed.push(next_task)
            look()
    assert len(order) == len(graph) and queues.first() is None


@pytest.mark.parametrize("policy", ["heap", "bfs", "dfs"])
@pytest.mark.parametrize("ask", [True, False])
def test_a_look_copies_no_queue(policy: str, ask: bool) -> None:
    leaves = [torch.ones(1, requires_grad=True) for _ in range(2000)]
    graph = ts.graph(torch.stack(leaves).sum())
    devices = ["cpu" if task.id % 2 else "far" for task in graph.tasks]
    order: list[int] = []
    queues = DeviceQueues(graph, find_policy(policy), order, [1] * len(graph), devices)
    pending = Pending(graph)
    waiting = pending.start()
    while len(queues) < 1500:  # of the two queues each has taken some of these
        for task_id in waiting:
            queues.push(task_id)
        order.append(queues.choose())
        queues.remove(order[-1])
        waiting = pending.run(order[-1])
    queues.first(ask)
    tracemalloc.start()
    try:
        for _ in range(100):
            queues.remove(queues.choose())
            before_bytes, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            assert queues.first(ask) is not None
            assert tracemalloc.get_traced_memory()[1] - before_bytes < 4_000, "a list of 1,400 tasks takes 11,000 bytes"
    finally:
        tracemalloc.stop()
