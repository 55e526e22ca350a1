"""Branches of a session, and the records that undo keeps of each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import is_
from weakref import ref

import torch
from torch import Tensor

from ...inspector.graph.graph import Graph
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.random_states import random_states
from ...inspector.torch_private.thread_state import without_torch_function
from ..execution.input_buffer import InputBuffer
from ..execution.node_runner import Runner
from ..execution.pending_inputs import InputBuffers
from ..execution.undo_history import Edited, History, Ran, Waited, nbytes_of
from ..recording.task_records import Trace
from ..schedule.policy import Choice, Policy, names_in_turn


@dataclass(eq=False, slots=True, repr=False)
class Branch:
    """One sequence of tasks that a session has run.

    Attributes:
        number: its number, from 1, in the order in which branches began.
        parent: number of the branch from which it forked; None for the first.
        forked_at: the number of tasks it has in common with its parent.
        order: ids of the tasks that ran, in order.
        by_hand: those of them that were chosen by hand.
        edits: the gradients that were replaced by hand.
        terms: the policies, each with the position at which it took over.
        trace: the records, if any; None for the current branch, whose records the session has.
        is_current: whether this is the session's current branch.
        gradients: the .grad of each undone leaf after its task, by task id, with the leaf's shape. None if they
            exceeded the history's budget.
        shared: how many of its first tasks have run in the session's current state.
        ahead: for the current branch, how many more tasks had run before the undo.
    """

    number: int
    parent: int | None
    forked_at: int
    order: tuple[int, ...]
    by_hand: frozenset[int]
    edits: tuple[Edited, ...]
    terms: tuple[tuple[int, Policy | Choice], ...]
    trace: Trace | None
    is_current: bool = False
    gradients: dict[int, Tensor | None] | None = field(default_factory=dict)
    shared: int = 0
    ahead: int = 0

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    @property
    def name(self) -> str:
        """The name, `branch 2`."""
        return f"branch {self.number}"

    @property
    def policy(self) -> str:
        """The policy's name; "bfs, then dfs" if one took over from another."""
        return names_in_turn(policy for _, policy in self.terms)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients kept with the branch; several branches may share some of them."""
        return sum(nbytes_of(each) for each in (self.gradients or {}).values() if each is not None)

    def describe(self) -> str:
        """Return a description, `branch 2, 40 tasks under heap, forked from branch 1 after 12 tasks, 1 edit`."""
        parts = [f"{self.name}, {counted(len(self.order), 'task')} under {self.policy}"]
        if self.ahead:
            parts.append(f"{self.ahead:,} more undone")
        if self.parent is not None:
            parts.append(f"forked from branch {self.parent} after {counted(self.forked_at, 'task')}")
        if self.edits:
            parts.append(counted(len(self.edits), "edit"))
        return ", ".join(parts)

    def continues_with(self, position: int, task: int, edits: Sequence[Edited]) -> bool:
        """Return whether this task, with these edits in force, ran next on this branch."""
        if position >= len(self.order) or self.order[position] != task:
            return False
        others = [edit for edit in self.edits if edit.position <= position]
        return len(edits) == len(others) and all(
            (one.position, one.task) == (other.position, other.task) and all(map(is_, one.after, other.after))
            for one, other in zip(edits, others, strict=True)
        )


class Branches:
    """The branches a session has left.

    The session follows one branch, `current`. After an undo, the undone tasks are this branch's `future` as long as
    they run again in the same order. Once another task runs, that future is kept as a branch, and a new branch begins.

    Args:
        budget_bytes: limit for the gradients kept with branches.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.current = 1
        self.origins: dict[int, tuple[int | None, int]] = {1: (None, 0)}  # parent, forked_at
        self.future: Branch | None = None
        self.kept: dict[int, Branch] = {}
        self._at_most = 0  # upper bound of gradient_bytes, which is counted exactly only above the budget

    @property
    def gradient_bytes(self) -> int:
        kept = {id(each): each for branch in self._left for each in (branch.gradients or {}).values()}
        return sum(nbytes_of(each) for each in kept.values() if each is not None)

    @property
    def _left(self) -> list[Branch]:
        return [*self.kept.values(), *([] if self.future is None else [self.future])]

    def leave(self, snapshot: Callable[[], Branch]) -> None:
        """Record the current branch before an undo, unless the session is already repeating undone tasks."""
        if self.future is None:
            self.future = snapshot()
            self.future.is_current = False

    def take_back(self, position: int, entry: Ran, is_leaf: bool) -> None:
        """Record that the task at this position is being undone; its leaf's .grad still has its result."""
        after = entry.grads[0].after() if is_leaf and entry.grads else None
        for branch in self._left:
            if branch.shared > position:
                branch.shared = position
                if is_leaf and branch.gradients is not None:
                    branch.gradients[entry.task] = after
        if after is None:
            return
        self._at_most += nbytes_of(after)
        for branch in self._left:  # drop the oldest branch's gradients first
            if self._at_most > self.budget_bytes:
                self._at_most = self.gradient_bytes
            if self._at_most <= self.budget_bytes:
                return
            branch.gradients = None
        self._at_most = self.gradient_bytes

    def follow(self, position: int, task: int, edits: Sequence[Edited]) -> None:
        """Follow or fork the branch for the task that runs next at this position."""
        future = self.future
        if future is not None and not future.continues_with(position, task, edits):
            self.kept[future.number] = future
            self.future = next(
                (each for each in self._left if each.shared == position and each.continues_with(position, task, edits)),
                None,
            )
            if self.future is None:
                parent, self.current = self.current, max(self.origins) + 1
                self.origins[self.current] = (parent, position)
            else:
                self.current = self.future.number
                del self.kept[self.current]
        for branch in self._left:
            if branch.shared == position and branch.continues_with(position, task, edits):
                branch.shared += 1
        if self.future is not None and position + 1 == len(self.future.order):
            self.future = None  # all undone tasks have run again


class Past:
    """The recorder of undo: notes the state that a `Rewinder` needs, as tasks run.

    While it is active, nodes keep their saved tensors, and gradients it refers to are neither added to in place nor
    stolen as a .grad: the values are the same, the memory is not.

    Args:
        runner: runs the tasks.
        buffers: the input buffers.
        order: ids of the tasks that have run; the engine appends to it.
        budget_bytes: limit for kept gradients.
        why: the reason why the history begins here, if not at the start.

    Attributes:
        history: the records of the tasks since it began.
        branches: the branches the session has left.
        begins: the reason why the history begins where it does; "" at the start.
    """

    def __init__(
        self, runner: Runner, buffers: InputBuffers, order: Sequence[int], budget_bytes: int, why: str
    ) -> None:
        self._runner, self._buffers, self._order = runner, buffers, order
        self._graph: Graph = runner.graph
        self.branches = Branches(budget_bytes)
        self._begin(budget_bytes, (), runner.changes.retaining(), why)
        runner.frees = False  # engine.cpp calls fn.release_variables() after each node; undo needs the saved tensors

    def forget(self, why: str) -> None:
        """Discard all records, so that the history begins here. Must be called inside the backward."""
        self.free_ran()
        self.branches = Branches(self.history.budget_bytes)
        self._begin(self.history.budget_bytes, (), self.history.retaining, why)

    def begin_task(self, task_id: int, buffer: InputBuffer, by_hand: bool) -> Ran:
        """Record the state that a task finds before it runs."""
        history, runner = self.history, self._runner
        self.branches.follow(len(self._order), task_id, history.edits)
        entry = Ran(task_id, by_hand, runner.changes.callbacks_left, Waited(buffer.waiting()))
        got = self._graph.tasks[task_id].is_leaf and any(gradient is not None for gradient in buffer.gradients)
        with without_torch_function():
            history.begin(entry, runner.leaf(task_id) if got else None)
            runner.changes.begin(entry)
            entry.random = random_states(self._graph.devices)
        return entry

    def end_task(self, entry: Ran) -> None:
        """Record the end of a task, after its outputs are in the next tasks' input buffers."""
        assert entry.random is not None
        with without_torch_function():
            now = random_states(entry.random)
            if all(torch.equal(state, entry.random[device]) for device, state in now.items()):
                entry.random = None  # the task drew no random numbers
            for grad in entry.grads:
                grad.leave()
            self._runner.changes.end(entry)
            self.history.end(entry)
        self._runner.spend(self._graph.tasks[entry.task])
        why = self._runner.changes.why_not_back(entry)
        if why is not None:
            self.free_ran()
            place = self._order.index(entry.task) if entry.task in self._order else len(self._order)
            why = f"{self._graph.describe(entry.task, place)} {why}"
            self._begin(self.history.budget_bytes, self.history.edits, self.history.retaining, why)

    def free_ran(self) -> None:
        """Free the saved tensors of the nodes that ran. Must be called inside the backward."""
        if self._runner.keep_graph:
            return
        tasks = [self._graph.tasks[entry.task] for entry in self.history.ran]
        for task in tasks:
            self._runner.unspend(task)
        for task in tasks:
            self._runner.free(task)

    def _begin(
        self, budget_bytes: int, edits: Sequence[Edited], retaining: dict[int, list[ref[Tensor]]], why: str
    ) -> None:
        """Begin an empty history at this position."""
        branches = self.branches  # the history must not refer to self, which would be a cycle
        self.history = History(
            self._graph,
            len(self._order),
            self._buffers.waiting(),
            self._buffers.missing,
            edits,
            lambda: branches.gradient_bytes,
            budget_bytes,
            self._runner.keep_graph,
        )
        self.history.retaining = retaining
        self.begins = why
