"""The past of a backward under way: of each task that ran what it found, and the branches on which it went."""

from __future__ import annotations

from collections.abc import Sequence

from ...inspector.graph.graph import Graph
from ...inspector.torch_internals.modes import without_torch_function
from ...inspector.torch_internals.random_states import random_states
from ..tasks.history import Edited, History, Ran, Waited, drawn_since
from ..tasks.input_buffer import InputBuffer
from ..tasks.input_buffers import InputBuffers
from ..tasks.runner import Runner
from .branches import Branches


class Past:
    """Notes what is needed to take tasks back, as they run: what a `Rewinder` goes by.

    As long as there is one, nodes keep what they saved, and gradients that it refers to are neither added to in place
    nor taken for a .grad without a copy: the values are the same, the memory is not.

    Args:
        runner: runs the tasks.
        buffers: what waits for them.
        order: the ids of the tasks that have run, where whoever runs them notes it.
        budget_bytes: for gradients.
        why: it begins where it does, if not at the start.

    Attributes:
        history: what ran since it began.
        branches: what the session has gone back from.
        begins: why the history begins where it does; "" at the start.
    """

    def __init__(
        self, runner: Runner, buffers: InputBuffers, order: Sequence[int], budget_bytes: int, why: str
    ) -> None:
        self._runner, self._buffers, self._order = runner, buffers, order
        self._graph: Graph = runner.graph
        self.branches = Branches(budget_bytes)
        self.history = self._new_history(budget_bytes, ())
        self.history.retaining = runner.retaining()
        self.begins = why
        runner.frees = False

    def forget(self, why: str) -> None:
        """Lets go all that is kept: it begins here. To be called inside the backward."""
        self.free_ran()
        self.branches = Branches(self.history.budget_bytes)
        self._begin_again((), why)

    def begin_task(self, task_id: int, buffer: InputBuffer, by_hand: bool) -> Ran:
        """A task is going to run: notes what it finds."""
        history, runner = self.history, self._runner
        self.branches.go_on(len(self._order), task_id, history.edits)
        entry = Ran(task_id, by_hand, runner.callbacks_left, Waited(buffer.waiting()))
        got = self._graph.tasks[task_id].is_leaf and any(gradient is not None for gradient in buffer.gradients)
        with without_torch_function():
            history.begin(entry, runner.leaf(task_id) if got else None)
            runner.begin(entry)
            entry.random = random_states(self._graph.devices)
        return entry

    def end_task(self, entry: Ran) -> None:
        """It has run, and its gradients are in the buffers of the next ones."""
        assert entry.random is not None
        with without_torch_function():
            if not drawn_since(entry.random):
                entry.random = None
            for grad in entry.grads:
                grad.leave()
            self._runner.end(entry)
            self.history.end(entry)
        self._runner.spend(self._graph.tasks[entry.task])
        why = self._runner.why_not_back(entry)
        if why is not None:
            self.free_ran()
            place = self._order.index(entry.task) if entry.task in self._order else len(self._order)
            self._begin_again(self.history.edits, f"{self._graph.describe(entry.task, place)} {why}")

    def free_ran(self) -> None:
        """Lets the nodes that ran free what they saved, which was kept. To be called inside the backward."""
        if self._runner.keep_graph:
            return
        tasks = [self._graph.tasks[entry.task] for entry in self.history.ran]
        for task in tasks:
            self._runner.unspend(task)
        for task in tasks:
            self._runner.free(task)

    def _begin_again(self, edits: Sequence[Edited], why: str) -> None:
        before = self.history
        self.history = self._new_history(before.budget_bytes, edits)
        self.history.retaining = before.retaining
        self.begins = why

    def _new_history(self, budget_bytes: int, edits: Sequence[Edited]) -> History:
        return History(
            self._graph,
            len(self._order),
            self._buffers.waiting(),
            self._buffers.missing,
            edits,
            self.branches,
            budget_bytes,
            self._runner.keep_graph,
        )
