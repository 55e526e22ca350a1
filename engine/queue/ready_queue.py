"""The ready queue: tasks whose inputs are all there, in the order in which a policy would run them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...inspector.graph.graph import Graph, Task, told_apart
from .binary_heap import pop, push
from .policy import Choice, Key, Policy, QueueState, policy_name


class PolicyError(RuntimeError):
    """A policy gives no order, or one that can't be run: a user's failed to choose a ready task, for one."""


@dataclass(frozen=True, slots=True, repr=False)
class ReadyTask:
    """An entry of the ready queue.

    Attributes:
        task: the task that is ready.
        arrival: its place in the order in which tasks got ready, from 0.
        label: the policy's key, as people read it.
    """

    task: Task
    arrival: int
    label: str

    def __repr__(self) -> str:
        return f"<{self.label} {self.task!r}>"


AnyTask = Task | ReadyTask | int
"""A task as people name it: itself, its entry in the ready queue, or its number."""


def sort_key(policy: Policy, task: Task, arrival: int) -> Key:
    """The policy's key for a task that gets ready; where it is dynamic, first come first served among equals."""
    key = policy.key(task, arrival)
    return (*key, arrival) if policy.dynamic else key


class _Arrivals:
    """Which tasks are ready, in the order in which they got so."""

    def __init__(self, graph: Graph) -> None:
        self._tasks = graph.tasks
        self._arrivals: dict[int, int] = {}
        self._arrived = 0

    def __len__(self) -> int:
        return len(self._arrivals)

    def __contains__(self, task_id: int) -> bool:
        return task_id in self._arrivals

    @property
    def arrived(self) -> int:
        """How many tasks have got ready so far."""
        return self._arrived

    def _arrive(self, task_id: int) -> int:
        arrival = self._arrivals[task_id] = self._arrived
        self._arrived += 1
        return arrival


class KeyedQueue(_Arrivals):
    """A queue under a policy of fixed keys: a binary heap, from which a task can also be taken by hand."""

    def __init__(self, graph: Graph, policy: Policy) -> None:
        super().__init__(graph)
        self._policy = policy
        self._heap: list[tuple[Key, int]] = []

    def push(self, task_id: int) -> Key:
        """The task got ready. Returns its key, by which the queue sorts."""
        policy = self._policy
        arrival = self._arrivals[task_id] = self._arrived
        self._arrived = arrival + 1
        key = policy.key(self._tasks[task_id], arrival)
        if policy.dynamic:
            key = (*key, arrival)  # as `sort_key`, of which a call for each task would be felt
        push(self._heap, (key, task_id))
        return key

    def label(self, task_id: int) -> str:
        """The key of a ready task as people read it."""
        return self._policy.label(self._tasks[task_id], self._arrivals[task_id])

    def choose(self) -> int:
        """The task which runs next; it stays in the queue."""
        while self._heap[0][1] not in self._arrivals:  # was taken by hand
            pop(self._heap)
        return self._heap[0][1]

    def remove(self, task_id: int) -> None:
        del self._arrivals[task_id]
        if self._heap[0][1] == task_id:
            pop(self._heap)

    def entries(self) -> list[ReadyTask]:
        """All ready tasks in the order in which they would run if no other came."""
        label = self._policy.label
        heap = list(self._heap)
        in_order = [pop(heap)[1] for _ in self._heap]
        return [
            ReadyTask(self._tasks[task_id], arrival, label(self._tasks[task_id], arrival))
            for task_id in in_order
            if (arrival := self._arrivals.get(task_id)) is not None
        ]


class ChoiceQueue(_Arrivals):
    """A queue under a user's own choice, which is asked each time."""

    def __init__(self, graph: Graph, choice: Choice, order: Sequence[int]) -> None:
        super().__init__(graph)
        self._graph = graph
        self._choice = choice
        self._state = QueueState(graph, order)
        self._chosen: int | None = None

    def push(self, task_id: int) -> None:
        """The task got ready."""
        self._chosen = None
        self._arrive(task_id)

    def label(self, task_id: int) -> str:
        """The place of a ready task in the order of arrival."""
        return f"@{self._arrivals[task_id]}"

    def choose(self) -> int:
        """The task which runs next; the user is asked once for each state of the queue."""
        if self._chosen is not None:
            return self._chosen
        ready = [self._tasks[task_id] for task_id in self._offered()]
        chosen = self._choice(ready, self._state)
        name = policy_name(self._choice)
        if not isinstance(chosen, Task):
            raise PolicyError(
                f"policy {name} returned {chosen!r}; it must return one of the {len(ready)} ready tasks it got"
            )
        if chosen.id not in self._arrivals or self._tasks[chosen.id] is not chosen:
            described = (
                told_apart(self._graph, chosen.id) if chosen.id < len(self._tasks) else "a task of another graph"
            )
            raise PolicyError(
                f"policy {name} returned {described}, which is not ready; ready: "
                f"{', '.join(told_apart(self._graph, task) for task in ready[:5])}"
                f"{' and more' if len(ready) > 5 else ''}"
            )
        self._chosen = chosen.id
        return chosen.id

    def _offered(self) -> Collection[int]:
        """Of which the user may choose, first arrived first."""
        return self._arrivals.keys()

    def remove(self, task_id: int) -> None:
        self._chosen = None
        del self._arrivals[task_id]

    def entries(self) -> list[ReadyTask]:
        """All ready tasks, first arrived first: only the user's choice knows more."""
        return [ReadyTask(self._tasks[task_id], arrival, f"@{arrival}") for task_id, arrival in self._arrivals.items()]


ReadyQueue = KeyedQueue | ChoiceQueue


def ready_queue(graph: Graph, policy: Policy | Choice, order: Sequence[int]) -> ReadyQueue:
    """An empty queue. `order` is where the caller notes the tasks that ran; a user's policy may look at it."""
    return KeyedQueue(graph, policy) if isinstance(policy, Policy) else ChoiceQueue(graph, policy, order)
