"""Orders of policies that choose task by task, and the check that an order is legal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from operator import index, lt
from weakref import WeakKeyDictionary

from torch import Tensor

from ...inspector.graph.graph import Graph
from ...inspector.text.sizes_and_counts import nth
from .dependencies import Pending
from .device_queues import MakeQueue
from .fsdp_stages import POST_BACKWARD, has_stages
from .policy import HEAP, Choice, Key, Policy
from .ready_queue import bad_key, pop, push, ready_queue

_stages: WeakKeyDictionary[Graph, dict[frozenset[int] | None, list[int]]] = WeakKeyDictionary()


class _Staged(Pending):
    """Pending tasks that also wait for their stage (`stages`)."""

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
        """Set aside tasks of a later stage, and add those set aside for a stage that begins."""
        ready: list[int] = []
        for task_id in arrived:
            stage = self._stages[task_id]
            (ready if stage <= self._stage else self._aside[stage]).append(task_id)
        while not self._left[self._stage] and self._stage + 1 < len(self._left):
            self._stage += 1
            ready += self._aside[self._stage]
        return ready


def stages(graph: Graph, needed: Collection[int] | None = None) -> list[int] | None:
    """Return the stage of each task, from 0, and -1 for tasks that do not run; None if there is only one stage."""
    if not has_stages(graph):
        return None
    known = _stages.setdefault(graph, {})
    runs = None if needed is None else frozenset(needed)
    if runs not in known:
        found = known[runs] = [-1] * len(graph)
        stage = 0
        for task_id in chosen_order(graph, HEAP, Pending(graph, needed)):
            alone = graph.tasks[task_id].name == POST_BACKWARD
            stage += alone
            found[task_id] = stage
            stage += alone
    return known[runs]


def allowed(graph: Graph, needed: Collection[int] | None = None) -> Pending:
    """Return the pending tasks, which under `fully_shard` also wait for their stage."""
    numbers = stages(graph, needed)
    return Pending(graph, needed) if numbers is None else _Staged(graph, needed, numbers)


def heap_order(graph: Graph, needed: Collection[int] | None = None) -> list[int]:
    """Return PyTorch's own order."""
    return chosen_order(graph, HEAP, allowed(graph, needed))


def chosen_order(
    graph: Graph,
    policy: Policy | Choice,
    pending: Pending,
    ran: Sequence[int] = (),
    make_queue: MakeQueue = ready_queue,
) -> list[int]:
    """Return all tasks in the order of a policy's choices among the ready ones, after those that `ran`."""
    # Only for the plain queue, by identity: keys are enough for it; other queues hold tasks back.
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
    """Return the order of a policy of fixed keys that chooses all tasks."""
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


def legal_order(graph: Graph, order: Sequence[int], edges: tuple[Sequence[int], Sequence[int]]) -> Sequence[int]:
    """Check that an order is legal, and return the ids of its tasks.

    Args:
        graph: the graph.
        order: the order.
        edges: the tasks where the graph's edges start, and those where they end.

    Raises:
        ValueError: If the order is not legal.
        TypeError: If an id in it is not an integer.
    """
    if isinstance(order, Tensor) and (order.dim() != 1 or order.is_floating_point()):
        raise TypeError("order must be a 1-dimensional Tensor of integers, the ids of all tasks")
    order = tuple(order)
    if set(map(type, order)) - {int}:
        order = tuple(graph.task(index(each) if hasattr(each, "__index__") else each).id for each in order)
    count = len(graph)
    place_of = [-1] * count
    for place, task_id in enumerate(order):
        if not 0 <= task_id < count:
            graph.task(task_id)  # raises
        if place_of[task_id] >= 0:
            first, again = nth(place_of[task_id] + 1), nth(place + 1)
            raise ValueError(f"not a legal order: {graph.describe(task_id)} is in it twice, {first} and {again}")
        place_of[task_id] = place
    first_places, then_places = (map(place_of.__getitem__, tasks) for tasks in edges)
    keeps_edges = len(order) == count and all(map(lt, first_places, then_places))
    for edge in () if keeps_edges else graph.edges:
        after = place_of[edge.next_task]
        if after >= 0 and not 0 <= place_of[edge.task] < after:
            describe = graph.in_order(order).describe
            first, then = describe(edge.task), describe(edge.next_task)
            if place_of[edge.task] < 0:
                raise ValueError(f"not a legal order: it lacks {first}, whose gradient {then} needs")
            raise ValueError(f"not a legal order: {then} comes before {first}, whose gradient it needs")
    numbers = stages(graph, frozenset(order)) or ()
    for before, after in pairwise(order) if numbers else ():
        if numbers[after] < numbers[before]:
            describe = graph.in_order(order).describe
            raise ValueError(
                f"not a legal order: {describe(after)} comes after {describe(before)}; under fully_shard, which "
                "reduces a group's gradients in a separate task, it must run before it"
            )
    return order
