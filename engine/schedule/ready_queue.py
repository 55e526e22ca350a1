"""The ready queue: tasks whose inputs have all arrived, in the order of a policy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass
from threading import get_ident
from typing import Self, TypeVar
from weakref import WeakValueDictionary

from ...inspector.graph.graph import Graph, Task, unique_name
from ...inspector.threads import Caller
from .policy import Choice, Key, Policy, QueueState, policy_name

Item = TypeVar("Item")
Entry = tuple[tuple[int, ...], Item]
"""A key, of which the lowest comes first, and its item."""


# Equal keys must come in the order of the engine's std::priority_queue, so these follow libstdc++'s heap and compare
# only keys. heapq would also compare the items.
def push(heap: list[Entry[Item]], entry: Entry[Item]) -> None:
    heap.append(entry)
    if (last := len(heap) - 1) and heap[(last - 1) // 2][0] > entry[0]:  # otherwise it stays at the end
        _rise(heap, last, entry)


def pop(heap: list[Entry[Item]]) -> Entry[Item]:
    """Remove and return the entry with the lowest key."""
    first, last = heap[0], heap.pop()
    hole, size = 0, len(heap)
    while (right := 2 * hole + 2) < size:  # move the hole at the top down until it has no children
        child = right - 1 if heap[right][0] > heap[right - 1][0] else right
        heap[hole] = heap[child]
        hole = child
    if right == size:  # only a left child
        heap[hole] = heap[right - 1]
        hole = right - 1
    if heap:
        _rise(heap, hole, last)
    return first


def _rise(heap: list[Entry[Item]], place: int, entry: Entry[Item]) -> None:
    """Move the entry up from `place` as far as its key allows."""
    key = entry[0]
    while place and heap[parent := (place - 1) // 2][0] > key:
        heap[place] = heap[parent]
        place = parent
    heap[place] = entry


class PolicyError(RuntimeError):
    """A policy's choice, plan or key is invalid, or the policy cannot prove the property it promises."""


@dataclass(frozen=True, slots=True, repr=False)
class ReadyTask:
    """An entry of the ready queue.

    Attributes:
        task: the task that is ready.
        arrival: its place in the order in which tasks became ready, from 0.
        label: the policy's key in readable form.
    """

    task: Task
    arrival: int
    label: str

    def __repr__(self) -> str:
        return f"<{self.label} {self.task!r}>"


AnyTask = Task | ReadyTask | int
"""A task: itself, its entry in the ready queue, or its number."""


def sort_key(policy: Policy, graph: Graph, task_id: int, arrival: int) -> Key:
    """Return the policy's key for a task that becomes ready; equal keys of a dynamic policy run in order of arrival.

    Raises:
        PolicyError: If the policy is dynamic and the key is not a tuple.
    """
    key = policy.key(graph.tasks[task_id], arrival)
    if policy.dynamic and not isinstance(key, tuple):
        raise bad_key(policy, graph, task_id, key)
    return (*key, arrival) if policy.dynamic else key


def bad_key(policy: Policy, graph: Graph, task_id: int, key: object) -> PolicyError:
    """Return the error for a key that does not compare with other tasks' keys."""
    return PolicyError(
        f"policy {policy.name} returned the key {key!r} for {unique_name(graph, task_id)}; expected a tuple of numbers "
        "that compares with the other tasks' keys"
    )


class _Arrivals:
    """The ready tasks, in order of arrival.

    One thread at a time pushes, chooses and removes. Any thread may read meanwhile (`first`, `entries`): reads change
    nothing, and copy in one step what they iterate over.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._tasks = graph.tasks
        self._arrivals: dict[int, int] = {}
        self.arrived = 0  # tasks that have become ready so far

    def __len__(self) -> int:
        return len(self._arrivals)

    def __contains__(self, task_id: int) -> bool:
        return task_id in self._arrivals

    def _arrive(self, task_id: int) -> int:
        arrival = self._arrivals[task_id] = self.arrived
        self.arrived += 1
        return arrival

    def copy(self, order: Sequence[int] | None = None) -> Self:
        """Return a copy of the queue in its current state. `order` is the list of tasks that ran, for a user's policy
        in another run; None for this run's.
        """
        found = copy(self)
        found._arrivals = dict(self._arrivals)
        return found


class KeyedQueue(_Arrivals):
    """A queue under a policy of fixed keys: a binary heap, from which tasks can also be removed by hand."""

    def __init__(self, graph: Graph, policy: Policy) -> None:
        super().__init__(graph)
        self._policy = policy
        self._heap: list[tuple[Key, int]] = []
        self._held: Collection[int] = ()  # the ready tasks that a subclass holds back

    def push(self, task_id: int) -> Key:
        """Add a ready task, and return its sort key."""
        policy = self._policy
        arrival = self._arrivals[task_id] = self.arrived
        self.arrived = arrival + 1
        key = policy.key(self._tasks[task_id], arrival)
        try:
            if policy.dynamic:
                key = (*key, arrival)  # as in `sort_key`, without a call per task
            push(self._heap, (key, task_id))
        except TypeError:
            raise bad_key(policy, self._graph, task_id, key) from None
        return key

    def label(self, task_id: int) -> str:
        """Return the label of a ready task, its key in readable form."""
        return self._policy.label(self._tasks[task_id], self._arrivals[task_id])

    def choose(self) -> int:
        """Return the task that runs next; it stays in the queue."""
        return self._heap[0][1]

    def first(self, ask: bool = True) -> int | None:
        """Return the task that runs next; None if none is ready."""
        for _, task_id in self._heap[:1]:
            if task_id in self._arrivals:
                return task_id
        in_order = self._in_order()  # because another thread is removing the first
        return in_order[0][0] if in_order else None

    def first_with(self, arriving: Sequence[int], ask: bool = True) -> int | None:
        """Return the task that would run next if these became ready now, in this order, without pushing them."""
        if not arriving:
            return self.first()
        first = next((entry for entry in self._heap[:1] if entry[1] in self._arrivals), None)
        for arrival, task_id in enumerate(arriving, self.arrived):
            key = sort_key(self._policy, self._graph, task_id, arrival)
            try:
                if first is None or first[0] > key:  # the same comparison as in `push`
                    first = key, task_id
            except TypeError:
                raise bad_key(self._policy, self._graph, task_id, key) from None
        return None if first is None else first[1]

    def remove(self, task_id: int) -> None:
        del self._arrivals[task_id]
        self._drop_removed()

    def _drop_removed(self) -> None:
        """Drop tasks from the top of the heap that were removed by hand, so that the first is ready."""
        heap, arrivals = self._heap, self._arrivals
        while heap and heap[0][1] not in arrivals:
            pop(heap)

    def entries(self) -> list[ReadyTask]:
        """Return all ready tasks in the order in which they would run if no other arrived."""
        label = self._policy.label
        return [
            ReadyTask(self._tasks[task_id], arrival, label(self._tasks[task_id], arrival))
            for task_id, arrival in self._in_order()
        ]

    def copy(self, order: Sequence[int] | None = None) -> Self:
        found = super().copy(order)
        found._heap = list(self._heap)
        return found

    def _in_order(self) -> list[tuple[int, int]]:
        """Return the tasks that are not held back, each with its arrival, in the order in which they would run.

        While another thread changes the heap, an entry may appear twice and another may be missing.
        """
        heap, arrivals = list(self._heap), dict(self._arrivals)
        for task_id in list(self._held):
            arrivals.pop(task_id, None)
        for task_id in arrivals.keys() - {task_id for _, task_id in heap}:
            push(heap, (sort_key(self._policy, self._graph, task_id, arrivals[task_id]), task_id))
        in_order = dict.fromkeys(pop(heap)[1] for _ in range(len(heap)))
        return [(task_id, arrivals[task_id]) for task_id in in_order if task_id in arrivals]


class ChoiceQueue(_Arrivals):
    """A queue under a user's own policy, which is called for each choice."""

    def __init__(self, graph: Graph, choice: Choice, order: Sequence[int]) -> None:
        super().__init__(graph)
        self._choice = choice
        self._state = QueueState(graph, order)
        self._chosen: dict[None, int] = {}  # the choice for this state; each change replaces the dict

    def push(self, task_id: int) -> None:
        """Add a ready task."""
        self._arrive(task_id)
        self._chosen = {}

    def label(self, task_id: int) -> str:
        """Return the label of a ready task, its place in the order of arrival."""
        return f"@{self._arrivals[task_id]}"

    def choose(self) -> int:
        """Return the task that runs next; the user's policy is called once for each state of the queue."""
        chosen = self._chosen
        return chosen[None] if chosen else chosen.setdefault(None, self._ask(self._offered()))

    def first(self, ask: bool = True) -> int | None:
        """Return the task that runs next; None if none is ready.

        Args:
            ask: whether the user's policy may be called; if not, the first to arrive is returned.
        """
        chosen, ready = self._chosen, list(self._offered())
        if chosen or not ready:
            return next(iter(chosen.values()), None)
        return chosen.setdefault(None, self._ask(ready)) if ask else ready[0]

    def first_with(self, arriving: Sequence[int], ask: bool = True) -> int | None:
        """Return the task that would run next if these became ready now, in this order, without pushing them."""
        if not arriving:
            return self.first(ask)
        found = self.copy()
        for task_id in arriving:
            found.push(task_id)
        return found.first(ask)

    def _ask(self, offered: Collection[int]) -> int:
        graph, name = self._graph, policy_name(self._choice)
        ready = [self._tasks[task_id] for task_id in offered]
        question = get_ident(), id(self._choice), id(graph)
        if (other := _asked.get(question)) is not None and other.is_under_way:
            raise PolicyError(
                f"policy {name} read session.current or session.planned while choosing the next task, but these call "
                "the policy; use its arguments, the ready tasks and the state"
            )
        caller = _asked[question] = Caller(f"the policy {name}")
        try:
            chosen = self._choice(ready, self._state)
        finally:
            caller.ended = True
        if not any(chosen is task for task in ready):
            names = ", ".join(unique_name(graph, task) for task in ready[:5])
            more = ", ..." if len(ready) > 5 else ""
            several = f"one of the {len(ready)} ready tasks: {names}{more}"
            expected = several if len(ready) > 1 else f"{names}, the only ready task"
            raise PolicyError(f"policy {name} returned {self._described(chosen)}; expected {expected}")
        return chosen.id

    def _described(self, chosen: object) -> str:
        """Describe what the user's policy returned in place of a ready task."""
        graph, known = self._graph, range(len(self._tasks))
        if isinstance(chosen, int) and not isinstance(chosen, bool):
            meant = f"the id of {unique_name(graph, chosen)}" if chosen in known else "an unknown id"
            return f"{chosen}, {meant} and not a ts.Task"
        if not isinstance(chosen, Task):
            return f"{chosen!r}, which is not a ts.Task"
        if chosen.id not in known or self._tasks[chosen.id] != chosen:
            return f"{chosen!r}, a task of another graph"
        return f"{unique_name(graph, chosen)}, which is not ready"

    def _offered(self) -> Collection[int]:
        """Return the tasks offered to the user's policy, in order of arrival."""
        return list(self._arrivals)

    def remove(self, task_id: int) -> None:
        del self._arrivals[task_id]
        self._chosen = {}

    def entries(self) -> list[ReadyTask]:
        """Return all ready tasks in order of arrival, because the user's later choices are unknown."""
        arrivals = dict(self._arrivals)
        return [ReadyTask(self._tasks[task_id], arrival, f"@{arrival}") for task_id, arrival in arrivals.items()]

    def copy(self, order: Sequence[int] | None = None) -> Self:
        found = super().copy(order)
        found._chosen = dict(self._chosen)
        if order is not None:
            found._state = QueueState(self._graph, order)
        return found


_asked: WeakValueDictionary[tuple[int, int, int], Caller] = WeakValueDictionary()
"""The running calls of users' policies, by thread, policy and graph."""

ReadyQueue = KeyedQueue | ChoiceQueue


def ready_queue(graph: Graph, policy: Policy | Choice, order: Sequence[int]) -> ReadyQueue:
    """Return an empty queue. `order` is the caller's list of tasks that ran, which a user's policy may read."""
    return KeyedQueue(graph, policy) if isinstance(policy, Policy) else ChoiceQueue(graph, policy, order)
