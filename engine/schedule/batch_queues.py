"""Ready queues that hold a task back until those that run with it are ready, too."""

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
"""By task those that are to run with it, itself among them; empty for one that runs by itself."""


class _Grouped:
    """A queue in which some tasks run together: each is held back until all of them are ready."""

    _arrivals: dict[int, int]
    _together: Together
    _missing: dict[int, int]  # by the group's first task how many of it are not ready

    def _complete(self, task_id: int) -> Sequence[int]:
        """The task got ready: return what may run now, which is nothing while others of its group are missing."""
        group = self._together(task_id)
        if not group:
            return (task_id,)
        missing = self._missing.pop(group[0], len(group)) - 1
        if missing:
            self._missing[group[0]] = missing
            return ()
        return group

    def next_step(self, ask: bool = True) -> list[int]:
        """The tasks that run next, at one moment: the first, and those that run with it, if they are ready."""
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
    """Under a policy of fixed keys. What is held back keeps its key: the last of its group to get ready brings all."""

    def __init__(self, graph: Graph, policy: Policy, together: Together) -> None:
        super().__init__(graph, policy)
        self.graph = graph
        self._together = together
        self._missing = {}
        self._held: dict[int, tuple[Key, int]] = {}

    def push(self, task_id: int) -> Key:
        key = sort_key(self._policy, self._graph, task_id, self._arrive(task_id))
        self._held[task_id] = key, task_id
        self.let_go(self._complete(task_id))
        return key

    def choose(self) -> int:
        """The task which runs next; where all are held back the policy's pick of them."""
        return self._heap[0][1] if self._heap else min(self._held.values())[1]

    def first(self, ask: bool = True) -> int | None:
        first = KeyedQueue.first(self)
        return first if first is not None else min(list(self._held.values()), default=(None, None))[1]

    def remove(self, task_id: int) -> None:
        if self._held.pop(task_id, None) is None:
            super().remove(task_id)
        else:
            del self._arrivals[task_id]

    def let_go(self, task_ids: Collection[int]) -> None:
        """These are not held back any more."""
        for task_id in task_ids:
            entry = self._held.pop(task_id, None)
            if entry is not None:
                push(self._heap, entry)

    def in_order(self, task_ids: Collection[int]) -> list[int]:
        """Of the ready tasks these, in the order in which they would pop."""
        wanted = frozenset(task_ids)
        entries = [entry for entry in (*self._heap, *self._held.values()) if entry[1] in wanted]
        return [task_id for _, task_id in sorted(entries) if task_id in self._arrivals]

    def copy(self, order: Sequence[int] | None = None) -> Self:
        found = super().copy(order)
        found._held = dict(self._held)
        found._missing = dict(self._missing)
        return found

    def entries(self) -> list[ReadyTask]:
        """What is held back comes last."""
        arrivals, label = dict(self._arrivals), self._policy.label
        held = [self._tasks[task_id] for _, task_id in sorted(self._held.values()) if task_id in arrivals]
        return [*super().entries(), *(ReadyTask(each, (at := arrivals[each.id]), label(each, at)) for each in held)]

    @property
    def _outside(self) -> Collection[int]:
        return list(self._held)


class HoldingChoiceQueue(ChoiceQueue, _Grouped):
    """Under a user's own choice, which is not offered what is held back, as long as there is anything else."""

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

    def let_go(self, task_ids: Collection[int]) -> None:
        """These are not held back any more."""
        self._held.difference_update(task_ids)
        self._chosen = {}

    def in_order(self, task_ids: Collection[int]) -> list[int]:
        """Of the ready tasks these, in order of arrival."""
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
    """All tasks, in the order in which they ran and are going to. O(tasks log tasks), but for a user's own choice.

    Args:
        order: the tasks that have run.
        missing: by task for how many gradients it waits.
        needed: the tasks that run at all; None: all.

    Raises:
        PolicyError: a user's choice is none.
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
    """An empty queue, as `ready_queue` makes it."""
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
    """The queue as it would be under this policy after these tasks.

    Args:
        needed: the tasks that run at all; None: all.
        missing: by task for how many gradients it waits: the last of those that ran may still be giving some.
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
