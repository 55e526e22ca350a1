"""The input buffers of a running backward, and the number of gradients that each task still waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Never

from torch import Tensor

from ...inspector.graph.graph import Edge, Graph
from ..schedule.dependencies import dependencies
from .input_buffer import InputBuffer, Waiting
from .undo_history import Ran, Waited


class InputBuffers:
    """The input buffers of a backward's tasks.

    Args:
        graph: the graph that is run.
        needed: the tasks that run; None for all. Others receive no gradients.
        make: returns an empty buffer for a task.

    Attributes:
        by_task: the buffers of tasks that have received an input, even an undefined one.
        missing: by task, the number of gradients that have not arrived.
    """

    def __init__(self, graph: Graph, needed: frozenset[int] | None, make: Callable[[int], InputBuffer]) -> None:
        self.by_task: dict[int, InputBuffer] = {}
        self._tasks = graph.tasks
        self._needed = needed
        self._make = make
        self._all_missing = dependencies(graph)
        self.missing = list(self._all_missing)

    def of(self, task_id: int) -> InputBuffer:
        """Return the buffer of a task, creating it if necessary."""
        buffer = self.by_task.get(task_id)
        if buffer is None:
            buffer = self.by_task[task_id] = self._make(task_id)
        return buffer

    def add(self, edge: Edge, outputs: list[Tensor | None], entry: Ran | None = None) -> bool:
        """Add an output to the next task's buffer. Return whether it was the last one that the task waited for.

        Args:
            edge: the edge from the output to the next task.
            outputs: all outputs; the list's entry is dropped if the buffer keeps it.
            entry: the undo record of the task, which stores the previous gradient.
        """
        next_task, gradient = edge.next_task, outputs[edge.output]
        if self._needed is not None and next_task not in self._needed:
            return False
        buffer = self.of(next_task)
        if entry is not None:
            entry.note(edge, buffer)
        if gradient is not None and buffer.add(edge.input, gradient):
            outputs[edge.output] = None  # now only the buffer holds it, so the next sum can be in place
        self.missing[next_task] -= 1
        return not self.missing[next_task]

    def shown(self, task_id: int) -> tuple[Tensor | None, ...]:
        """Return the gradients that wait for a task, one per input number."""
        buffer = self.by_task.get(task_id)
        return buffer.shown() if buffer else (None,) * len(self._tasks[task_id].inputs)

    def waiting(self) -> dict[int, Waiting]:
        """Return all waiting gradients by task."""
        return {task_id: buffer.waiting() for task_id, buffer in self.by_task.items()}

    def fill(self, task_id: int, waiting: Waiting) -> None:
        """Create a new buffer for the task with these gradients."""
        buffer = self.by_task[task_id] = self._make(task_id)
        buffer.put(waiting)

    def take_back(self, entry: Ran) -> None:
        """Remove a task's outputs from the buffers, and restore its inputs."""
        assert entry.gradients is not None and entry.sums is not None
        added = zip(entry.edges, entry.sums.tensors, entry.counts, strict=True)
        # Last first: several outputs may have gone into one buffer, and each record has the state just before it.
        for edge, before, count in reversed(list(added)):
            self.by_task[edge.next_task].take_back(edge.input, before, count)
            self.missing[edge.next_task] += 1
            if self.missing[edge.next_task] == self._all_missing[edge.next_task]:
                del self.by_task[edge.next_task]
        self.fill(entry.task, entry.gradients.waiting)

    def restore(self, waited: Mapping[int, Waited], missing: Sequence[int]) -> None:
        """Restore all buffers from an earlier moment."""
        self.by_task.clear()
        for task_id, each in waited.items():
            self.fill(task_id, each.waiting)
        self.missing[:] = missing

    def close(self) -> None:
        """Drop all buffers after the backward; no buffer can be created afterwards."""
        self.by_task.clear()
        self._make = _over  # the previous function holds the graph's nodes


def _over(task_id: int) -> Never:
    raise RuntimeError(f"this backward has ended; no gradient can be added for task {task_id}")
