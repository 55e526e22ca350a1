"""Which tasks are known to have given gradients that are not finite, and which of these came to a leaf."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ...inspector.graph.graph import Graph
from ..trace.trace import Trace
from .origin import Known
from .readings import Reading


class BadGradients:
    """What watchpoints, and the trace before them, have seen of NaN and infinite gradients.

    Args:
        trace: gives what has been recorded so far; None: nothing is.
    """

    def __init__(self, trace: Callable[[], Trace] | None) -> None:
        self._trace = trace
        self._of_task: dict[int, bool] = {}  # whether it gave a gradient that is not finite
        self._outputs: set[tuple[int, int]] = set()  # of those that were looked at in time

    @property
    def as_received(self) -> Collection[int]:
        """The tasks whose gradients watchpoints have looked at, as the next tasks get them."""
        return self._of_task.keys()

    def note(self, task_id: int, read: Reading, number: int | None = None) -> None:
        """A gradient was read.

        Args:
            number: which output of its task it is, where it was looked at before the next task ran.
        """
        bad = read.nan or read.inf
        self._of_task[task_id] = self._of_task.get(task_id, False) or bad
        if bad and number is not None:
            self._outputs.add((task_id, number))

    def gave_none(self, task_id: int) -> None:
        self._of_task[task_id] = False

    def forget(self, task_id: int) -> None:
        """The task runs anew, or has not run after all."""
        self._of_task.pop(task_id, None)

    def let_go(self) -> None:
        self._trace = None

    def known(self) -> Known:
        """What tells whether a task that has run gave a gradient that is not finite; None: nobody looked."""
        trace: list[Trace] = []  # made when it is asked for, and once: it copies all that was recorded

        def known(task_id: int) -> bool | None:
            if task_id in self._of_task or self._trace is None:
                return self._of_task.get(task_id)
            if not trace:
                trace.append(self._trace())
            record = trace[0].of(task_id)
            if record is None:
                return None
            found = [None if each is None else each.statistics for each in record.outputs]
            if any(each is not None and (each.nan_count or each.inf_count) for each in found):
                return True
            return False if any(each is not None and each.nan_count is not None for each in found) else None

        return known

    def reaching_leaves(self, graph: Graph, unread: Collection[int]) -> frozenset[int]:
        """Return the ids of tasks whose non-finite gradients reach a leaf in the end.

        Gradients of `unread` tasks may not be finite either.
        """
        stack = [task.id for task in graph.tasks if task.is_leaf]
        found: set[int] = set()
        while stack:
            for edge in graph.in_edges[stack.pop()]:
                may_be_bad = (edge.task, edge.output) in self._outputs or edge.task in unread
                if may_be_bad and edge.task not in found:
                    found.add(edge.task)
                    stack.append(edge.task)
        return frozenset(found)
