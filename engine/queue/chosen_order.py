"""The order in which a policy takes what is ready, where it needs no plan; under `fully_shard` stage by stage."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from weakref import WeakKeyDictionary

from ...inspector.graph.graph import Graph
from .binary_heap import pop, push
from .device_queues import MakeQueue
from .pending import Pending
from .policy import HEAP, Choice, Key, Policy
from .ready_queue import bad_key, ready_queue
from .stages import has_stages, stage_numbers

_stages: WeakKeyDictionary[Graph, dict[frozenset[int] | None, list[int]]] = WeakKeyDictionary()


class _Staged(Pending):
    """`Pending` where tasks wait for their stage, too (`stages`)."""

    def __init__(self, graph: Graph, needed: Collection[int] | None, stages: Sequence[int]) -> None:
        super().__init__(graph, needed)
        self._stages = stages
        self._stage = 0
        self._left = [0] * (max(stages, default=0) + 1)
        self._aside: list[list[int]] = [[] for _ in self._left]
        for stage in stages:
            if stage >= 0:
                self._left[stage] += 1

    def start(self) -> list[int]:
        return self._among_allowed(super().start())

    def run(self, task_id: int) -> list[int]:
        self._left[self._stages[task_id]] -= 1
        return self._among_allowed(super().run(task_id))

    def _among_allowed(self, arrived: list[int]) -> list[int]:
        """Puts aside what belongs to a later stage, and adds what was put aside for one that begins."""
        ready: list[int] = []
        for task_id in arrived:
            stage = self._stages[task_id]
            (ready if stage <= self._stage else self._aside[stage]).append(task_id)
        while not self._left[self._stage] and self._stage + 1 < len(self._left):
            self._stage += 1
            ready += self._aside[self._stage]
        return ready


def stages(graph: Graph, needed: Collection[int] | None = None) -> list[int] | None:
    """By task the stage in which it runs, -1 for those that don't; None where there is one alone."""
    if not has_stages(graph):
        return None
    known = _stages.setdefault(graph, {})
    runs = None if needed is None else frozenset(needed)
    if runs not in known:
        known[runs] = stage_numbers(graph, chosen_order(graph, HEAP, Pending(graph, needed)))
    return known[runs]


def allowed(graph: Graph, needed: Collection[int] | None = None) -> Pending:
    """What gets ready, of that what may run: the same but under `fully_shard`, whose stages every order keeps."""
    numbers = stages(graph, needed)
    return Pending(graph, needed) if numbers is None else _Staged(graph, needed, numbers)


def heap_order(graph: Graph, needed: Collection[int] | None = None) -> list[int]:
    """PyTorch's own order."""
    return chosen_order(graph, HEAP, allowed(graph, needed))


def chosen_order(
    graph: Graph,
    policy: Policy | Choice,
    pending: Pending,
    ran: Sequence[int] = (),
    make_queue: MakeQueue = ready_queue,
) -> list[int]:
    """All tasks, of the ready ones always that which a policy chooses, after those that `ran`."""
    if make_queue is ready_queue and isinstance(policy, Policy) and not policy.dynamic and not ran:
        return _order_by_keys(graph, policy, pending)
    order: list[int] = []
    queue = make_queue(graph, policy, order)
    for task_id in pending.start():
        queue.push(task_id)
    given = iter(ran)
    while queue:
        task_id = next(given, -1)
        if task_id < 0:
            task_id = queue.choose()
        queue.remove(task_id)
        order.append(task_id)
        for next_task in pending.run(task_id):
            queue.push(next_task)
    return order


def _order_by_keys(graph: Graph, policy: Policy, pending: Pending) -> list[int]:
    """The same where each task's key is fixed as it gets ready, and all tasks are the policy's to choose."""
    tasks, key_of, run = graph.tasks, policy.key, pending.run
    order: list[int] = []
    heap: list[tuple[Key, int]] = []
    arrived = 0
    ready = pending.start()
    while ready or heap:
        for task_id in ready:
            key = key_of(tasks[task_id], arrived)
            try:
                push(heap, (key, task_id))
            except TypeError:
                raise bad_key(policy, graph, task_id, key) from None
            arrived += 1
        task_id = pop(heap)[1]
        order.append(task_id)
        ready = run(task_id)
    return order
