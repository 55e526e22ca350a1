"""The ready queue as it was, from the order in which tasks got ready and started."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ...inspector.graph.graph import Graph, Task
from ..queue.policy import Choice, Policy, QueueState
from ..queue.ready_queue import ReadyQueue, ReadyTask, ready_queue
from .trace_columns import Columns, PolicyTerm, term_at


class Replay:
    """The queue at one place of a trace, from which it moves on.

    Where another policy takes over, all is replayed under it from the start, as the engines do: among equal keys the
    order depends on what went before.
    """

    def __init__(self, graph: Graph, columns: Columns, terms: Sequence[PolicyTerm]) -> None:
        self._graph = graph
        self._columns = columns
        self._terms = terms
        self._lock = threading.Lock()
        self._begin(terms[0])

    def length(self, place: int) -> int:
        with self._lock:
            return len(self._at(place))

    def first(self, place: int) -> int | None:
        """The task which the policy would run; None under a user's own choice, or if none is ready."""
        with self._lock:
            queue = self._at(place)
            return queue.choose() if self._term.key is not None and len(queue) else None

    def holds(self, place: int, task_id: int) -> bool:
        with self._lock:
            return task_id in self._at(place)

    def entries(self, place: int) -> list[ReadyTask]:
        """In the order in which the policy would run them; under a user's own choice in order of arrival."""
        with self._lock:
            return self._at(place).entries()

    def _begin(self, term: PolicyTerm) -> None:
        self._term = term
        self._place = self._arrived = 0
        policy: Policy | Choice = _nobody
        if (key := term.key) is not None:
            policy = Policy(term.policy, term.rule or "", lambda task, arrival: key(arrival))
        self._queue: ReadyQueue = ready_queue(self._graph, policy, ())

    def _at(self, place: int) -> ReadyQueue:
        term = term_at(self._terms, place)
        if place < self._place or term is not self._term:
            self._begin(term)
        columns = self._columns
        while self._place < place:
            task_id = columns.order[self._place]
            self._arrive(columns.arrived[task_id])
            if task_id in self._queue:
                self._queue.remove(task_id)
            self._place += 1
        self._arrive(columns.arrived[columns.order[place]] if place < len(columns.order) else len(columns.arrivals))
        return self._queue

    def _arrive(self, arrived: int) -> None:
        for task_id in self._columns.arrivals[self._arrived : arrived]:
            self._queue.push(task_id)
        self._arrived = max(arrived, self._arrived)


def _nobody(ready: Sequence[Task], state: QueueState) -> Task:
    raise AssertionError("a replay asks nobody")
