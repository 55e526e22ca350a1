"""Going back: a session of the direct engine takes tasks back, goes on in another way, and keeps both."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from ..inspector.graph import Edge, Task
from .accumulation import Accumulation
from .branch_comparison import BranchComparison, compare_branches
from .branches import Branch, Branches
from .footprint import Footprints
from .group_runner import GroupRunner
from .history import (
    BUDGET_BYTES,
    Edited,
    History,
    Ran,
    Referenced,
    Waited,
    drawn_since,
    expect_budget,
    random_states,
    set_random_states,
)
from .holding import holding_queue
from .input_buffer import InputBuffer, Waiting, alone
from .policies import Choice, Policy
from .ready_queue import ReadyQueue, ready_queue
from .recorder import Recorder
from .runner import Runner
from .schedule import Pending
from .storage_words import counted
from .verbs import AnyTask, Verbs


class Rewinding(Verbs):
    """The part of a `Stepper` that goes back.

    A task is taken back by undoing what it did: its input buffer, the sums to which it added, the .grad of its leaf. As
    long as there is a history, nodes keep what they saved, and gradients that it refers to are neither added to in
    place nor taken for a .grad without a copy: the values are the same, the memory is not.
    """

    _order: list[int]
    accumulation: Accumulation
    _buffers: dict[int, InputBuffer]
    _consumed: dict[int, Waiting]
    _missing: list[int]
    _all_missing: Sequence[int]
    _queue: ReadyQueue
    _policy: Policy | Choice
    _recorder: Recorder | None
    _runner: Runner
    _groups: GroupRunner | None
    _keep_graph: bool
    _history: History | None = None
    _branches: Branches
    _terms: list[tuple[int, Policy | Choice]]
    _begins: str = ""  # why the history begins where it does, if not at the start

    @property
    def history(self) -> History | None:
        """What going back takes (`nbytes`), and how far one can go (`reach`); None where no history is kept."""
        return self._history

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The ways in which the session went, the current one included. Empty without a history."""
        if self._history is None:
            return ()
        kept = self._branches.kept
        return tuple(sorted([*kept.values(), self._now()], key=lambda branch: branch.number))

    def keep_history(self, budget_bytes: int = BUDGET_BYTES) -> None:
        """From here on tasks can be taken back. Does nothing where they can already.

        Args:
            budget_bytes: for gradients: beyond it the oldest are computed again when they are needed.
        """
        self._check_open()
        expect_budget(budget_bytes, "budget_bytes")
        if self._history is None:
            self._branches = Branches(budget_bytes)
            self._begin_history(budget_bytes, f"a history was asked for {self._after_so_many()}" if self.order else "")

    def forget(self) -> None:
        """Lets go all that is kept for going back: from here on one can go back to here. Branches go, too."""
        self._check_open()
        if self._history is not None:
            budget_bytes = self._history.budget_bytes
            self._inside(self._free_ran)
            self._branches = Branches(budget_bytes)
            self._history.edits.clear()
            self._begin_history(budget_bytes, f"forget() was called {self._after_so_many()}")

    def back(self, count: int = 1) -> Task | None:
        """Takes so many tasks back. Returns the current task.

        Gradients, .grad of leaves, the queue, the policy, the trace and torch's random numbers are then as they were,
        and so is what hooks and custom Functions keep in Python (`HookState`), and the buffers that a checkpointed
        region writes when it is computed again: each call of a hook finds what it found before. What was edited before
        the task that is now the current one stays edited (`restore` undoes that); later edits are undone. Callbacks for
        the end of the backward run at each end.

        Known limitations. What hooks and custom Functions did besides (printed, wrote) stays done, and is done again
        when their tasks run again.

        Raises:
            ValueError: not so many tasks can be taken back.
            RuntimeError: a .grad was changed by something else since, which would be lost; no history is kept, or the
                session is over.
        """
        history = self._kept()
        if count < 1:
            raise ValueError(f"back({count}): the number of tasks to take back must be at least 1")
        position = len(self.order) - count
        if position < history.reach:
            can = len(self.order) - history.reach
            tasks = counted(can, "task") if can else "no tasks"
            why = f": {self._begins}" if self._begins and len(self.order) >= count else ""
            raise ValueError(f"back({count}): {tasks} can be taken back{why}")
        self._rewind(position)
        return self.current

    def goto(self, task: AnyTask | None = None, *, branch: int | None = None) -> Task | None:
        """Goes to the moment before a task, back or on; or to the end of a branch, whose tasks run again from where it
        parted. Returns the current task. What was taken back of the current branch is kept until something else runs.

        Raises:
            ValueError: the task can't be reached: it is not going to run, or ran before the history begins; there is no
                such branch.
            RuntimeError: no history is kept, or the session is over.
        """
        if branch is not None:
            self._kept()
            self._follow(self._branch(branch))
        elif task is None:
            raise ValueError("goto() where? Give a task, or branch=")
        elif (wanted := self._task(task)).id in self.order:
            self.back(len(self.order) - self.order.index(wanted.id))
        else:
            self.run_to(wanted)
        return self.current

    def restore(self, task: AnyTask | None = None) -> None:
        """Puts the gradients that came to a task into its buffer again, the current task if none is given.

        Raises:
            ValueError: they were not edited.
            RuntimeError: no history is kept, or the session is over.
        """
        history = self._kept()
        about = self._about(task)
        edits = [edit for edit in history.edits if edit.task == about.id]
        if not edits or about.id in self.order:
            raise ValueError(f"the gradients of {self.graph.describe(about)} were not edited")
        position = len(self.order)
        if any(edit.position != position for edit in edits):  # an edit before tasks that have run: going back finds it
            self.replace(edits[0].before, about)
            return
        history.edits = [edit for edit in history.edits if edit.task != about.id]
        self._buffers[about.id].put(edits[0].waited)
        if self._recorder is not None:
            self._recorder.forget_edits(about.id)

    def compare_branches(self, footprints: Footprints | None = None) -> BranchComparison:
        """How the branches differ: in order, in the gradients of leaves, and in the memory that they would take.

        Args:
            footprints: what tasks allocate, where that is known; else each is asked, as `th.simulate` does.
        """
        self._kept()
        return compare_branches(
            self.graph,
            self._runner.leaves,
            self.branches,
            self._needed,
            self._keep_graph,
            footprints,
            self.accumulation,
        )

    @abstractmethod
    def _inside(self, body: Callable[[], None], ends: bool = False) -> None:
        """Calls something as tasks are run: inside the backward, with its grad mode. It `ends` with the last task."""

    @abstractmethod
    def _execute(self, task_id: int, hooks: bool, by_hand: bool = False) -> None: ...

    @abstractmethod
    def _let_go(self) -> None: ...

    @abstractmethod
    def _add(self, edge: Edge, outputs: list[Tensor | None], entry: Ran | None) -> bool:
        """Puts an output into the next task's buffer. Says whether that was the last it waited for."""

    def _kept(self) -> History:
        self._check_open()
        if self._history is None:
            raise RuntimeError(
                "this session keeps no history to go back in: start it with th.debug(loss, history=True), or call "
                "keep_history() before what is to be taken back"
            )
        return self._history

    def _after_so_many(self) -> str:
        return f"after {counted(len(self.order), 'task')}"

    def _begin_history(self, budget_bytes: int, why: str) -> None:
        waiting = {task: buffer.waiting() for task, buffer in self._buffers.items()}
        before = self._history
        edits = () if before is None else before.edits
        self._history = History(
            self.graph, len(self.order), waiting, self._missing, edits, self._branches, budget_bytes, self._keep_graph
        )
        self._begins = why
        self._runner.frees = False
        self._history.retaining = self._runner.retaining() if before is None else before.retaining

    def _begin_task(self, task_id: int, buffer: InputBuffer, by_hand: bool) -> Ran:
        """A task is going to run: notes what it finds."""
        history, runner = self._kept_while_running(), self._runner
        self._branches.go_on(len(self.order), task_id, history.edits)
        entry = Ran(task_id, by_hand, runner.callbacks_left, Waited(buffer.waiting()))
        got = self.graph.tasks[task_id].is_leaf and any(gradient is not None for gradient in buffer.gradients)
        history.begin(entry, runner.leaf(task_id) if got else None)
        runner.begin(entry)
        entry.random = random_states(self.graph.devices)
        return entry

    def _end_task(self, entry: Ran) -> None:
        """It has run, and its gradients are in the buffers of the next ones."""
        assert entry.random is not None
        if not drawn_since(entry.random):
            entry.random = None
        for grad in entry.grads:
            grad.leave()
        self._runner.end(entry)
        history = self._kept_while_running()
        history.end(entry)
        self._runner.spend(self.graph.tasks[entry.task])
        why = self._runner.why_not_back(entry)
        if why is not None:
            self._free_ran()
            self._begin_history(history.budget_bytes, f"{self.graph.describe(entry.task)} {why}")

    def _kept_while_running(self) -> History:
        assert self._history is not None
        return self._history

    def _rewind(self, position: int) -> None:
        """Takes back all tasks from this position on."""
        history = self._kept()
        lost = self._check_way(position, history)
        try:
            self._branches.leave(self._with_trace)
            self._rewind_to(position, history, lost)
        except BaseException as error:  # an interrupt: half of it is done
            if self._over is None:
                self._over = f"{type(error).__name__} on the way back"
                self._let_go()
            raise

    def _check_way(self, position: int, history: History) -> bool:
        """Whether gradients that waited on the way back to a position are lost, and have to be computed again.

        Raises:
            RuntimeError: something stands in the way. Nothing is undone yet.
        """
        if why := self._runner.why_end_stays:
            raise RuntimeError(f"the end of the backward can't be taken back: it {why}")
        undone = history.ran[position - history.reach :]
        for entry in undone:
            if any(grad.is_anothers for grad in entry.grads):
                raise RuntimeError(
                    f"the .grad of {self.graph.describe(entry.task)} was changed after its task, by another backward, "
                    "an optimizer or your code, and going back would lose that; set it to None if it may be lost"
                )
        lost = any(not (_intact(entry.gradients) and _intact(entry.sums)) for entry in undone)
        if lost and not all(gradients.intact for gradients in history.first_waiting.values()):
            raise RuntimeError(
                "what is needed to go back there can't be computed again: the gradient with which the history begins "
                "was modified in place, by a hook or your code"
            )
        return lost

    def _rewind_to(self, position: int, history: History, lost: bool) -> None:
        packed = False
        self.stops.taken_back(self.order[position:])
        self._runner.undo_end()
        callbacks = self._runner.callbacks_left
        while len(self.order) > position:
            entry = self._take_back(lost)
            self._consumed.pop(entry.task, None)
            packed = packed or entry.packed
            callbacks = entry.callbacks
            if not lost:
                self._empty_next(entry)
        again = history.ran if lost else ()
        self._runner.reopen(callbacks, another=packed or any(entry.packed for entry in again))
        while self._terms[-1][0] > position:
            self._terms.pop()
        self._policy = self._terms[-1][1]
        if lost:
            self._make_again(history)
        self._queue = self._queue_under(self._policy)
        if self._recorder is not None:
            self._recorder.rewind(position)
        self.stopped = None

    def _take_back(self, lost: bool) -> Ran:
        """Takes the last task back, but for the buffers of the next ones."""
        history = self._kept()
        position = len(self.order) - 1
        for edit in history.take_edits(position):
            if not lost:
                self._buffers[edit.task].put(edit.waited)
        entry = history.take_last()
        self._runner.unspend(self.graph.tasks[entry.task])
        self._branches.take_back(position, entry, self.graph.tasks[entry.task].is_leaf)
        for grad in reversed(entry.grads):
            grad.put_back()
        entry.undo_state()
        if entry.random is not None:
            set_random_states(entry.random)
        del self._order[position]
        return entry

    def _empty_next(self, entry: Ran) -> None:
        """Takes what a task gave out of the buffers again, and puts back what it was given."""
        assert entry.gradients is not None and entry.sums is not None
        added = zip(entry.edges, entry.sums.tensors, entry.counts, strict=True)
        for edge, before, count in reversed(list(added)):
            self._buffers[edge.next_task].take_back(edge.input, before, count)
            self._missing[edge.next_task] += 1
            if self._missing[edge.next_task] == self._all_missing[edge.next_task]:
                del self._buffers[edge.next_task]
        self._fill(entry.task, entry.gradients.waiting)

    def _fill(self, task_id: int, waiting: Waiting) -> None:
        buffer = self._buffers[task_id] = self._runner.buffer(task_id, self.accumulation.accumulate)
        buffer.put(waiting)

    def _make_again(self, history: History) -> None:
        """Computes what waits at this position from what waited where the history begins.

        Tasks run again with the random numbers of the first time. Leaves are left out: their .grad has what they gave.
        """
        self._buffers.clear()
        for task_id, waited in history.first_waiting.items():
            self._fill(task_id, waited.waiting)
        self._missing[:] = history.first_missing
        ran = list(history.ran)
        history.clear()
        for entry in reversed(ran):
            entry.undo_state()
        now = random_states(self.graph.devices)
        callbacks = self._runner.callbacks_left
        on_hook, self._runner.on_hook = self._runner.on_hook, None  # the trace has them
        try:
            self._inside(lambda: self._run_again(history, ran))
        finally:
            if self._over is None:
                self._runner.on_hook = on_hook
                self._runner.reopen(callbacks, another=False)  # they were left once
            set_random_states(now)

    def _run_again(self, history: History, ran: Sequence[Ran]) -> None:
        for position, entry in enumerate(ran, history.reach):
            self._edit_again(history.edits_at(position))
            if entry.random is not None:
                set_random_states(entry.random)
            buffer = self._buffers.pop(entry.task)
            entry.gradients = Waited(buffer.waiting())
            task = self.graph.tasks[entry.task]
            if task.is_leaf:
                if entry.kept is not None:
                    entry.kept.redo()
            else:
                before = [(kept.tensor, kept.tensor.grad) for kept in entry.grads]
                for kept in entry.grads:
                    kept.tensor.grad = kept.grad
                self._runner.unspend(task)
                self._runner.begin(entry)
                outputs = self._runner.run(task, buffer.take(), hooks=True)
                for tensor, grad in before:  # told to retain_grad: it would be added to a second time
                    tensor.grad = grad
                entry.edges.clear()
                entry.counts.clear()
                for edge in self.graph.out_edges[entry.task]:
                    self._add(edge, outputs, entry)
                self._runner.end(entry)
                self._runner.spend(task)
            history.end(entry)
        self._edit_again(history.edits_at(history.reach + len(ran)))

    def _edit_again(self, edits: Sequence[Edited]) -> None:
        for edit in edits:
            self._buffers[edit.task].put(alone(edit.after))

    def _now(self) -> Branch:
        """The branch on which the session stands, as far as it has come."""
        history, branches = self._kept_while_running(), self._branches
        parent, forked_at = branches.origins[branches.current]
        return Branch(
            branches.current,
            parent,
            forked_at,
            tuple(self.order),
            frozenset(entry.task for entry in history.ran if entry.by_hand),
            tuple(history.edits),
            tuple(self._terms),
            None,
            is_current=True,
            shared=len(self.order),
            ahead=0 if branches.future is None else len(branches.future.order) - len(self.order),
        )

    def _with_trace(self) -> Branch:
        return replace(self._now(), trace=None if self._recorder is None else self._recorder.trace())

    def _branch(self, number: int) -> Branch:
        future = self._branches.future
        if future is not None and future.number == number:
            return future
        found = next((branch for branch in self.branches if branch.number == number), None)
        if found is None:
            known = ", ".join(str(branch.number) for branch in self.branches)
            raise ValueError(f"there is no branch {number}; there is {known}")
        return found

    def _follow(self, branch: Branch) -> None:
        """Goes to where a branch ended: back to where the session parted from it, and on with its tasks and edits."""
        if branch.shared < self._kept().reach:
            raise ValueError(f"{branch.name} parted before the history begins: {self._begins}")
        if branch.shared == len(branch.order) == len(self.order):
            return
        self._rewind(branch.shared)
        first = branch.shared
        trailing = [edit for edit in self._kept().edits if edit.position == first]
        for edit in reversed(trailing):
            self._buffers[edit.task].put(edit.waited)
            self._kept().edits.remove(edit)
            if self._recorder is not None:
                self._recorder.forget_edits(edit.task)
        policies = dict(branch.terms)
        policies.setdefault(first, next(policy for begins, policy in reversed(branch.terms) if begins <= first))

        def body() -> None:
            for position in range(first, len(branch.order) + 1):
                if position in policies:
                    self._take_policy(policies[position])
                for edit in branch.edits:
                    if edit.position == position:
                        self._put(edit.task, edit.after)
                if position < len(branch.order):
                    task_id = branch.order[position]
                    self._execute(task_id, hooks=True, by_hand=task_id in branch.by_hand)

        self._inside(body, ends=True)

    def _put(self, task_id: int, after: Sequence[Tensor | None]) -> None:
        """Puts gradients into a waiting task's buffer, and notes it."""
        buffer = self._buffers[task_id]
        before, now = buffer.shown(), tuple(after)
        if self._recorder is not None:
            self._recorder.edit(task_id, before, now)
        if self._history is not None:
            self._history.edits.append(Edited(len(self.order), task_id, before, now, buffer.waiting()))
        buffer.put(alone(now))

    def _take_policy(self, policy: Policy | Choice) -> None:
        """From here on this one picks."""
        queue = self._queue_under(policy)
        position = len(self.order)
        if self._terms[-1][0] == position:
            self._terms.pop()
        self._terms.append((position, policy))
        self._policy, self._queue = policy, queue
        if self._recorder is not None:
            self._recorder.switch(policy)

    def _queue_under(self, policy: Policy | Choice) -> ReadyQueue:
        """The queue as this policy would have it after what has run."""
        queue = self._empty_queue(policy)
        pending = Pending(self.graph, self._needed)
        for task_id in pending.start():
            queue.push(task_id)
        for ran in self.order:
            queue.remove(ran)
            for task_id in pending.run(ran):
                queue.push(task_id)
        return queue

    def _empty_queue(self, policy: Policy | Choice) -> ReadyQueue:
        if self._groups is None:
            return ready_queue(self.graph, policy, self._order)
        return holding_queue(self.graph, policy, self._order, self._groups.together)

    def _free_ran(self) -> None:
        """Lets the nodes that ran free what they saved, which the history has kept."""
        if self._history is not None and not self._keep_graph:
            tasks = [self.graph.tasks[entry.task] for entry in self._history.ran]
            for task in tasks:
                self._runner.unspend(task)
            for task in tasks:
                self._runner.free(task)


def _intact(kept: Referenced | None) -> bool:
    return kept is not None and kept.intact
