"""The interface through which a session runs nodes, for PyTorch's nodes and those of another tape."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol
from weakref import ref

from torch import Tensor

from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.kinds import Kind
from ...inspector.validation import a_kind
from .accumulation_rule import Accumulate
from .fast_loop import LoopSession
from .find_hooks import HookWatch
from .graph_task import GraphTask
from .input_buffer import InputBuffer
from .run_hooks import Gradients, OnHook
from .streams import TaskStreams
from .undo_history import HasGrad, Ran


class CodeChanges:
    """The record of tasks' side effects, for undo. A tape's nodes have none: they are pure.

    Attributes:
        graph_task: the graph task of the backward, which has the callbacks for its end; None for a tape.
    """

    graph_task: GraphTask | None = None

    @property
    def callbacks_left(self) -> int:
        """The number of callbacks that tasks have queued for the end of the backward."""
        return 0 if self.graph_task is None else len(self.graph_task.callbacks)

    def seconds_of_history(self) -> float:
        """Return how long reading the state of hooks and Functions before all tasks will take, from three samples."""
        return 0.0

    def begin(self, entry: Ran) -> None:
        """Record the state besides gradients that a task may change, before it runs."""

    def end(self, entry: Ran) -> None:
        """Record the changes that the task's code made."""

    def why_not_back(self, entry: Ran) -> str | None:
        """Return why a task that has run cannot be undone; None if it can."""
        return None

    def retaining(self) -> dict[int, list[ref[Tensor]]]:
        """Return the Python tensors that each task's node created, on which `retain_grad` may be called."""
        return {}


OnOutputs = Callable[[int, Sequence[Tensor | None], Sequence[Tensor | None], Sequence[Tensor | None] | None], None]
OnEnd = Callable[[Sequence[Tensor | None]], None]
Measuring = Callable[[Graph, Sequence[object], Sequence[bool], bool, bool], "TaskMemory"]
"""Begins to measure. Arguments: graph, outputs, whether each gradient was passed, `keep_graph`, `create_graph`."""


class TaskMemory(Protocol):
    """Observer that measures the memory of each task, called at these moments, see `MemoryWatch`."""

    def begin(self, task_id: int) -> None: ...

    def summed(self, task_id: int) -> None: ...

    def start(self, task_id: int, gradients: Sequence[Tensor | None]) -> None: ...

    def end(self, task_id: int, outputs: Sequence[Tensor | None]) -> None: ...

    def over(self) -> None: ...

    def apart(self) -> AbstractContextManager[None]: ...


class Runner(Protocol):
    """The nodes of one backward, run one at a time.

    Tensors flow between them, whatever the nodes compute with: buffers, traces, watchpoints and the history use those.

    Attributes:
        graph: the graph.
        needed: the tasks that run; None for all.
        keep_graph: whether the nodes keep their saved tensors.
        roots: the gradient of each root, from which the backward starts.
        frees: whether a node frees its saved tensors right after its task; otherwise `free` does so later.
        on_hook: called with each hook before it runs.
        on_outputs: called with a task's inputs, its outputs as the next tasks receive them, and its outputs as the node
            returned them, while the node still has its saved tensors. For a leaf's task, called right before it runs.
        memory: called right before each task's node runs, after its hooks, and right after the following hooks.
        changes: records side effects of tasks that may be undone.
        fast_loop_records: whether tasks run by `run_fast` can be recorded.
        streams: the streams of accelerators on which tasks run; None without accelerators.
        inside: calls its first argument in the context in which tasks run; the second returns all tasks in the order in
            which they ran or will run.
    """

    graph: Graph
    needed: frozenset[int] | None = None
    keep_graph: bool
    roots: list[Tensor | None]
    frees: bool
    on_hook: OnHook | None = None
    on_outputs: OnOutputs | None = None
    memory: TaskMemory | None = None
    changes: CodeChanges = CodeChanges()
    fast_loop_records: bool = False
    streams: TaskStreams | None = None
    inside: Callable[[Callable[[], None], Callable[[], Sequence[int]]], None]

    @abstractmethod
    def buffer(self, task_id: int, accumulate: Accumulate) -> InputBuffer:
        """Return an empty input buffer for a task."""

    @abstractmethod
    def run(
        self, task: Task, gradients: list[Tensor | None], hooks: bool, on_end: OnEnd | None = None
    ) -> list[Tensor | None]:
        """Run a task on its input buffer with its hooks, free the buffer, and free the node's saved tensors.

        Args:
            task: the task.
            gradients: the input buffer, which nothing else may hold. It is empty afterwards.
            hooks: whether there may be hooks. Skipping their search saves most of the time.
            on_end: called with the outputs as the node and its hooks returned them.

        Returns:
            The outputs converted for the next tasks, one per output number.
        """

    def fitted_roots(self) -> list[Tensor | None]:
        """Return the root gradients converted for their tasks, in a new list. Must be called in the backward's grad
        mode."""
        return list(self.roots)

    @abstractmethod
    def free(self, task: Task) -> None:
        """Free the saved tensors of a node that has run. If that is impossible, it stays marked as freed. Must be
        called `inside`."""

    def spend(self, task: Task) -> None:
        """Mark the node of a task as freed although it keeps its saved tensors for undo: others must not run it."""

    def unspend(self, task: Task) -> None:
        """Remove the mark of `spend` after the task was undone: it may run again."""

    @abstractmethod
    def leaf(self, task_id: int) -> HasGrad:
        """Return the leaf of a leaf's task."""

    @property
    def leaves(self) -> Mapping[int, HasGrad]:
        """Each leaf by the id of its task."""
        return {task.id: self.leaf(task.id) for task in self.graph.tasks if task.is_leaf}

    def hook_watch(self) -> HookWatch | None:
        """Return a watch for hooks if it is cheaper than a search at each task."""
        return None

    def run_fast(self, loop: LoopSession, last: Collection[int], watch: HookWatch) -> None:
        """Run tasks in a fast loop up to one of `last`, as long as there are no hooks; none if there is no fast loop.

        Args:
            loop: the session.
            last: the tasks at which to stop.
            watch: its own hook watch, which has found no hooks.
        """

    def retain_inputs(self) -> None:
        """Make the tensors of `inputs=` retain their gradients as the backward begins. A second call does nothing."""

    def pass_by(self) -> None:
        """Run the root's hooks in a backward without tasks, whose `inputs=` are not reached. Must be called
        `inside`."""

    def finish(self, again: bool) -> None:
        """Run the callbacks for the end of the backward after the last task. Must be called `inside`.

        Args:
            again: whether tasks may be undone and the end be reached again.
        """

    def rest(self) -> None:
        """Record that no task is running."""

    def failed(self, task: Task) -> None:
        """Show more information about a task that raised."""


APPLIED = {Kind.FUNCTION, Kind.CHECKPOINT, Kind.MODULE_HOOK, Kind.COMPILED}  # Python nodes: not callable themselves


def by_edge(task: Task, node: Any, outputs: tuple[Any, ...]) -> Gradients:
    """Map the outputs of a custom Function, one per argument of its forward, to its edges (python_function.cpp)."""
    needed = node.needs_input_grad
    while len(outputs) > len(needed) and outputs[-1] is None:
        outputs = outputs[:-1]
    if len(outputs) != len(needed):
        raise RuntimeError(
            f"function {task.name} returned an incorrect number of gradients "
            f"(expected {len(needed)}, got {len(outputs)})"
        )
    unwanted = sum(output is not None and not need for output, need in zip(outputs, needed, strict=True))
    if unwanted > sum(child is None for child, _ in node.next_functions):
        raise RuntimeError(
            f"function {task.name} returned a gradient different than None for an argument of its forward that was "
            "not a Variable"
        )
    wanted = iter([output for output, need in zip(outputs, needed, strict=True) if need])
    found = [next(wanted, None) if child is not None else None for child, _ in node.next_functions]
    for output in found:
        if output is not None and not isinstance(output, Tensor):
            raise TypeError(f"function {task.name} returned {a_kind(output)} as a gradient; expected a Tensor or None")
    return found
