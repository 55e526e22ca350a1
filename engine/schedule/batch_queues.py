"""Ready queues that hold a task back until all tasks of its batch are ready."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Self

from ...inspector.graph.graph import Graph
from .dependencies import Pending
from .device_queues import AnyQueue, MakeQueue
from .policy import Choice, Key, Policy
from .ready_queue import ChoiceQueue, KeyedQueue, ReadyTask, push, sort_key

Together = Callable[[int], Sequence[int]]
"""Returns the tasks that run together with a task, including itself; empty for a task that runs alone."""


class _Grouped:
    """A queue in which groups of tasks run together: each task is held back until its whole group is ready."""

    _arrivals: dict[int, int]
    _together: Together
    _missing: dict[int, int]  # by the group's first task: the number of its tasks not ready

    def _complete(self, task_id: int) -> Sequence[int]:
        """Record a ready task. Return the tasks that may run now: none while others of its group are missing."""
        group = self._together(task_id)
        if not group:
            return (task_id,)
        missing = self._missing.pop(group[0], len(group)) - 1
        if missing:
            self._missing[group[0]] = missing
            return ()
        return group

    def next_step(self, ask: bool = True) -> list[int]:
        """Return the tasks that run together next: the first, and those of its group if they are ready."""
        first = self.first(ask)
        if first is None:
            return []
        group, ready = self._together(first), dict(self._arrivals)
        if not all(each in ready for each in group):
            return [first]
        return [first, *(each for each in self.in_order(group) if each != first)]

    @abstractmethod
    def first(self, ask: bool = True) -> int | None: ...

    @abstractmethod
    def in_order(self, task_ids: Collection[int]) -> list[int]: ...


class HoldingQueue(KeyedQueue, _Grouped):
    """A holding queue under a policy of fixed keys. Held-back tasks keep their keys and enter with the last of their
    group."""

    def __init__(self, graph: Graph, policy: Policy, together: Together) -> None:
        super().__init__(graph, policy)
        self.graph = graph
        self._together = together
        self._missing = {}
        self._held: dict[int, tuple[Key, int]] = {}

    def push(self, task_id: int) -> Key:
        key = sort_key(self._policy, self._graph, task_id, self._arrive(task_id))
        self._held[task_id] = key, task_id
        self.release(self._complete(task_id))
        return key

    def choose(self) -> int:
        """Return the task that runs next; if all are held back, the policy's choice among them."""
        return self._heap[0][1] if self._heap else min(self._held.values())[1]

    def first(self, ask: bool = True) -> int | None:
        first = KeyedQueue.first(self)
        return first if first is not None else min(list(self._held.values()), default=(None, None))[1]

    def remove(self, task_id: int) -> None:
        if self._held.pop(task_id, None) is None:
            super().remove(task_id)
        else:
            del self._arrivals[task_id]

    def release(self, task_ids: Collection[int]) -> None:
        """Stop holding these tasks back."""
        for task_id in task_ids:
            entry = self._held.pop(task_id, None)
            if entry is not None:
                push(self._heap, entry)

    def in_order(self, task_ids: Collection[int]) -> list[int]:
        """Return these ready tasks in the order in which the queue would choose them."""
        wanted = frozenset(task_ids)
        entries = [entry for entry in (*self._heap, *self._held.values()) if entry[1] in wanted]
        return [task_id for _, task_id in sorted(entries) if task_id in self._arrivals]

    def copy(self, order: Sequence[int] | None = None) -> Self:
        found = super().copy(order)
        found._held = dict(self._held)
        found._missing = dict(self._missing)
        return found

    def entries(self) -> list[ReadyTask]:
        """Return all entries, those held back last."""
        arrivals, label = dict(self._arrivals), self._policy.label
        held = [self._tasks[task_id] for _, task_id in sorted(self._held.values()) if task_id in arrivals]
        return [*super().entries(), *(ReadyTask(each, (at := arrivals[each.id]), label(each, at)) for each in held)]


class HoldingChoiceQueue(ChoiceQueue, _Grouped):
    """A holding queue under a user's own choice. Held-back tasks are offered only if there are no others."""

    def __init__(self, graph: Graph, choice: Choice, order: Sequence[int], together: Together) -> None:
        super().__init__(graph, choice, order)
        self.graph = graph
        self._together = together
        self._missing = {}
        self._held: set[int] = set()

    def push(self, task_id: int) -> None:
        self._held.add(task_id)
        self._held.difference_update(self._complete(task_id))
        super().push(task_id)

    def remove(self, task_id: int) -> None:
        self._held.discard(task_id)
        super().remove(task_id)

    def release(self, task_ids: Collection[int]) -> None:
        """Stop holding these tasks back."""
        self._held.difference_update(task_ids)
        self._chosen = {}

    def in_order(self, task_ids: Collection[int]) -> list[int]:
        """Return these ready tasks in order of arrival."""
        wanted = frozenset(task_ids)
        return [task_id for task_id in list(self._arrivals) if task_id in wanted]

    def copy(self, order: Sequence[int] | None = None) -> Self:
        found = super().copy(order)
        found._held = set(self._held)
        found._missing = dict(self._missing)
        return found

    def _offered(self) -> Collection[int]:
        ready = list(self._arrivals)
        return [task_id for task_id in ready if task_id not in self._held] or ready


def planned_order(
    queue: HoldingQueue | HoldingChoiceQueue,
    order: Sequence[int],
    missing: Sequence[int],
    needed: Collection[int] | None,
) -> list[int]:
    """Return all tasks in the order in which they ran and will run. O(tasks log tasks), except for a user's own choice.

    Args:
        queue: the queue after `order`; it is copied.
        order: the tasks that have run.
        missing: by task, the number of gradients that it waits for.
        needed: the tasks that run; None for all.

    Raises:
        PolicyError: If a user's policy returns an invalid choice.
    """
    missing, order = list(missing), list(order)
    queue = queue.copy(order)
    while queue:
        tasks = queue.next_step()
        for task_id in tasks:
            queue.remove(task_id)
        order += tasks
        for edge in (edge for task_id in tasks for edge in queue.graph.out_edges[task_id]):
            missing[edge.next_task] -= 1
            if not missing[edge.next_task] and (needed is None or edge.next_task in needed):
                queue.push(edge.next_task)
    return order


def holding_queue(
    graph: Graph, policy: Policy | Choice, order: Sequence[int], together: Together
) -> HoldingQueue | HoldingChoiceQueue:
    """Return an empty queue, as `ready_queue` does, that holds tasks back."""
    if isinstance(policy, Policy):
        return HoldingQueue(graph, policy, together)
    return HoldingChoiceQueue(graph, policy, order, together)


def queue_after(
    graph: Graph,
    policy: Policy | Choice,
    order: Sequence[int],
    needed: Collection[int] | None,
    make_queue: MakeQueue,
    missing: Sequence[int],
) -> AnyQueue:
    """Return the queue of this policy as it would be after these tasks.

    Args:
        needed: the tasks that run; None for all.
        missing: by task, the number of gradients that it waits for; the last task may still be passing some on.
    """
    in_order = list(order)  # other threads may run more of them meanwhile
    queue = make_queue(graph, policy, order)
    pending = Pending(graph, needed)
    for task_id in pending.start():
        queue.push(task_id)
    for ran in in_order:
        queue.remove(ran)
        for task_id in pending.run(ran):
            if not missing[task_id]:
                queue.push(task_id)
    return queue
