"""What a stepped backward needs from the nodes it runs, for PyTorch's nodes and those of another tape."""

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
from .fast_loop import BareLoop
from .find_hooks import HookWatch
from .input_buffer import InputBuffer
from .run_hooks import Gradients, OnHook
from .streams import TaskStreams
from .undo_history import HasGrad, Ran


class CodeChanges:
    """What is noted while tasks run that may be taken back. Of a tape's nodes there is nothing: they are pure."""

    @property
    def callbacks_left(self) -> int:
        """How many callbacks tasks have left for the end of the backward."""
        return 0

    def begin(self, entry: Ran) -> None:
        """A task is going to run that may be taken back: notes what it may change besides gradients."""

    def end(self, entry: Ran) -> None:
        """It has run: notes what its code changed."""

    def why_not_back(self, entry: Ran) -> str | None:
        """Why a task that has run can't be taken back; None: it can."""
        return None

    @property
    def why_end_stays(self) -> str | None:
        """Why what was done after the last task can't be undone; None: it can."""
        return None

    def undo_end(self) -> None:
        """Tasks are going to be taken back: what was done after the last one is undone first."""

    def reopen(self, callbacks: int, another: bool) -> None:
        """Tasks have been taken back: so many callbacks had been left by then. In a checkpoint's eyes what follows is
        `another` backward: it computes again what it computes once in each."""

    def retaining(self) -> dict[int, list[ref[Tensor]]]:
        """By task the tensors which its node made, as far as Python has them: they may be told to `retain_grad`."""
        return {}


OnOutputs = Callable[[int, Sequence[Tensor | None], Sequence[Tensor | None], Sequence[Tensor | None] | None], None]
OnEnd = Callable[[Sequence[Tensor | None]], None]
Measuring = Callable[[Graph, Sequence[object], Sequence[bool], bool, bool], "TaskMemory"]
"""Begins to measure: the graph, outputs, whether each one's gradient is given, `keep_graph` and `create_graph`."""


class TaskMemory(Protocol):
    """What measures the memory of each task: it is told of these moments, see `MemoryWatch`."""

    def begin(self, task_id: int) -> None: ...

    def summed(self, task_id: int) -> None: ...

    def start(self, task_id: int, gradients: Sequence[Tensor | None]) -> None: ...

    def end(self, task_id: int, outputs: Sequence[Tensor | None]) -> None: ...

    def over(self) -> None: ...

    def apart(self) -> AbstractContextManager[None]: ...


class Runner(Protocol):
    """The nodes of one backward, each of which runs when it is told to.

    All that flows between them are tensors, whatever the nodes compute with: buffers, traces, watchpoints and a history
    look at those.

    Attributes:
        graph: the graph.
        needed: the tasks that run at all; None: all.
        keep_graph: whether the nodes keep what they saved.
        roots: by root of the graph the gradient from which the backward starts.
        frees: whether a node frees what it saved right after its task; else `free` does later.
        on_hook: is told of each hook before it runs.
        on_outputs: is told of what a task takes and gives, while the node still has what it saved: its inputs, its
            outputs as the next tasks get them, and as the node gave them. Of a leaf's task right
            before it runs.
        memory: is told of each task right before its node runs, after its hooks, and right after the hooks that
            follow.
        changes: notes what tasks change besides gradients, while they may be taken back.
        records_bare: whether tasks that `run_bare` runs can be recorded.
        streams: those of accelerators, on which tasks run; None: there are none.
        inside: calls its first argument as tasks are run; the second returns all tasks in the order in which they ran
            or are going to.
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
    records_bare: bool = False
    streams: TaskStreams | None = None
    inside: Callable[[Callable[[], None], Callable[[], Sequence[int]]], None]

    @abstractmethod
    def buffer(self, task_id: int, accumulate: Accumulate) -> InputBuffer:
        """An empty input buffer for a task."""

    @abstractmethod
    def run(
        self, task: Task, gradients: list[Tensor | None], hooks: bool, on_end: OnEnd | None = None
    ) -> list[Tensor | None]:
        """Runs a task on its input buffer, with its hooks, lets the buffer go, and frees its node.

        Args:
            gradients: the input buffer, which nobody else holds. It is empty afterwards.
            hooks: whether there may be any. Not looking for them saves most of the time.
            on_end: is told of the outputs as its node and its hooks gave them.

        Returns:
            The outputs as the next tasks take them, one per output number.
        """

    def fitted_roots(self) -> list[Tensor | None]:
        """Those gradients as the tasks take them, in a new list. To be called with the grad mode of the backward."""
        return list(self.roots)

    @abstractmethod
    def free(self, task: Task) -> None:
        """Lets a node that has run free what it saved, where it has not; what can't be freed stays spent. To be called
        `inside`."""

    def spend(self, task: Task) -> None:
        """A task has run whose node keeps what it saved for going back: to everybody else it is freed, where it would
        have been."""

    def unspend(self, task: Task) -> None:
        """The task has been taken back: anybody may run it again."""

    @abstractmethod
    def leaf(self, task_id: int) -> HasGrad:
        """What gets the gradient of a leaf's task."""

    @property
    def leaves(self) -> Mapping[int, HasGrad]:
        """By the id of its task each leaf."""
        return {task.id: self.leaf(task.id) for task in self.graph.tasks if task.is_leaf}

    def hook_watch(self) -> HookWatch | None:
        """What knows whether there are hooks, where that is cheaper than to look for them at each task."""
        return None

    def run_bare(self, loop: BareLoop, last: Collection[int], watch: HookWatch) -> None:
        """Runs tasks up to one of `last` as the session does, while nobody hooks them; none, if it has no such way.

        Args:
            watch: its own, which has seen no hook.
        """

    def retain_inputs(self) -> None:
        """Make the tensors of `inputs=` retain their gradients: the backward begins. Does nothing a second time."""

    def pass_by(self) -> None:
        """No task of the backward was to run, for `inputs=` are not reached: what happens to the root all the same. To
        be called `inside`."""

    def finish(self, again: bool) -> None:
        """The last task has run: the callbacks for the end of the backward are due. To be called `inside`.

        Args:
            again: tasks may be taken back, and the end be reached again.
        """

    def rest(self) -> None:
        """No task runs now."""

    def failed(self, task: Task) -> None:
        """The task has raised: says what else is known of that."""


APPLIED = {Kind.FUNCTION, Kind.CHECKPOINT, Kind.MODULE_HOOK, Kind.COMPILED}  # Python nodes: not callable themselves


def by_edge(task: Task, node: Any, outputs: tuple[Any, ...]) -> Gradients:
    """Sorts what a custom Function gives, one per argument of its forward, to its edges (python_function.cpp)."""
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
