"""The input buffers of a backward under way, and how many gradients each task still waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Never

from torch import Tensor

from ...inspector.graph.graph import Edge, Graph
from ..schedule.dependencies import dependencies
from .input_buffer import InputBuffer, Waiting
from .undo_history import Ran, Waited


class InputBuffers:
    """What waits for the tasks of a backward.

    Args:
        graph: the graph that is run.
        needed: the tasks that run at all; None: all. To others nothing is given.
        make: an empty buffer for a task.

    Attributes:
        by_task: the buffers to which something has been given, if only that nothing comes.
        missing: by task how many gradients have not come.
    """

    def __init__(self, graph: Graph, needed: frozenset[int] | None, make: Callable[[int], InputBuffer]) -> None:
        self.by_task: dict[int, InputBuffer] = {}
        self._tasks = graph.tasks
        self._needed = needed
        self._make = make
        self._all_missing = dependencies(graph)
        self.missing = list(self._all_missing)

    def of(self, task_id: int) -> InputBuffer:
        """The buffer of a task, which is made if there is none."""
        buffer = self.by_task.get(task_id)
        if buffer is None:
            buffer = self.by_task[task_id] = self._make(task_id)
        return buffer

    def add(self, edge: Edge, outputs: list[Tensor | None], entry: Ran | None = None) -> bool:
        """Puts an output into the next task's buffer. Says whether that was the last it waited for.

        Args:
            entry: notes what is there before, where the task may be taken back.
        """
        next_task, gradient = edge.next_task, outputs[edge.output]
        if self._needed is not None and next_task not in self._needed:
            return False
        buffer = self.of(next_task)
        if entry is not None:
            entry.note(edge, buffer)
        if gradient is not None and buffer.add(edge.input, gradient):
            outputs[edge.output] = None  # the buffer alone holds it
        self.missing[next_task] -= 1
        return not self.missing[next_task]

    def shown(self, task_id: int) -> tuple[Tensor | None, ...]:
        """The gradients that wait for a task, one per input number."""
        buffer = self.by_task.get(task_id)
        return buffer.shown() if buffer else (None,) * len(self._tasks[task_id].inputs)

    def waiting(self) -> dict[int, Waiting]:
        """By task all that waits."""
        return {task_id: buffer.waiting() for task_id, buffer in self.by_task.items()}

    def fill(self, task_id: int, waiting: Waiting) -> None:
        """A new buffer for the task, with this in it."""
        buffer = self.by_task[task_id] = self._make(task_id)
        buffer.put(waiting)

    def take_back(self, entry: Ran) -> None:
        """Takes what a task gave out of the buffers again, and puts back what it was given."""
        assert entry.gradients is not None and entry.sums is not None
        added = zip(entry.edges, entry.sums.tensors, entry.counts, strict=True)
        for edge, before, count in reversed(list(added)):
            self.by_task[edge.next_task].take_back(edge.input, before, count)
            self.missing[edge.next_task] += 1
            if self.missing[edge.next_task] == self._all_missing[edge.next_task]:
                del self.by_task[edge.next_task]
        self.fill(entry.task, entry.gradients.waiting)

    def begin_again(self, waited: Mapping[int, Waited], missing: Sequence[int]) -> None:
        """All as it was at an earlier moment."""
        self.by_task.clear()
        for task_id, each in waited.items():
            self.fill(task_id, each.waiting)
        self.missing[:] = missing

    def let_go(self) -> None:
        """The backward is over: nothing waits any more, and no buffer is made."""
        self.by_task.clear()
        self._make = _over  # the other has the graph's nodes


def _over(task_id: int) -> Never:
    raise RuntimeError(f"this backward is over: no gradient can wait for task {task_id} any more")
