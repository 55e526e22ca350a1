"""Undo: a backward of the direct engine returns to an earlier position, may continue differently, and keeps both
branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...inspector.graph.graph import Task
from ...inspector.graph.source_lines import warn
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.random_states import random_states, set_random_states
from ..execution.input_buffer import alone
from ..execution.undo_history import History, Ran, Waited, expect_budget
from ..memory.task_memory import Footprints
from .branches import Branch, Past
from .compare_branches import BranchComparison, compare_branches
from .direct_engine import DirectBackward

_NOTICED_S = 2.0  # reading state for longer than this is announced


class Rewinder:
    """Undoes the tasks of a backward with the records of its `Past`, and knows its branches. The verbs are documented
    in `Stepper`.

    Undoing a task restores its input buffer, the sums to which it added, and the .grad of its leaf. Gradients that are
    no longer available are recomputed from the beginning of the history.
    """

    def __init__(self, backward: DirectBackward) -> None:
        self._backward = backward

    @property
    def history(self) -> History | None:
        past = self._backward.past
        return None if past is None else past.history

    @property
    def branches(self) -> tuple[Branch, ...]:
        past = self._backward.past
        if past is None:
            return ()
        return tuple(sorted([*past.branches.kept.values(), self._now(past)], key=lambda branch: branch.number))

    def keep(self, budget_bytes: int | str) -> None:
        """Start recording a history, so that tasks can be undone."""
        backward = self._backward
        nbytes = expect_budget(budget_bytes, "budget_bytes")
        if (groups := backward.groups) is not None:
            undone_alone = "a history can undo {} only if it runs alone".format
            backward.inside(lambda: groups.dissolve_all(backward, undone_alone))
        if backward.past is None:
            why = f"the history was started after {counted(len(backward.order), 'task')}" if backward.order else ""
            if (streams := backward.runner.streams) is not None:
                streams.use_one_stream(
                    gradient for task in backward.buffers.by_task for gradient in backward.buffers.shown(task)
                )
            backward.past = Past(backward.runner, backward.buffers, backward.order, nbytes, why)
            seconds = backward.runner.changes.seconds_of_history()
            if seconds > _NOTICED_S:
                warn(
                    f"a history reads the Python state that hooks and custom Functions hold before each task, which "
                    f"takes about {seconds:.0f} s for the {counted(len(backward.runner.graph), 'task')} of this "
                    "backward, as with FSDP's or offloading hooks; pass history=False, or call keep_history() shortly "
                    "before the tasks to undo"
                )

    def forget(self) -> None:
        """Discard the history; undo can then return to this position at the earliest."""
        backward = self._backward
        if (past := backward.past) is not None:
            backward.inside(lambda: past.forget(f"forget() was called after {counted(len(backward.order), 'task')}"))

    def back(self, count: int) -> Task | None:
        """Undo the last `count` tasks."""
        past, order = self._past(), self._backward.order
        if count < 1:
            raise ValueError(f"back({count}): count must be at least 1")
        can = len(order) - past.history.reach
        if count > can:
            tasks = counted(can, "task")
            why = f": {past.begins}" if past.begins and len(order) >= count else ""
            raise ValueError(
                f"back({count}): only {tasks} can be undone{why}"
                if can
                else f"back({count}): no task can be undone{why}"
            )
        self._rewind(len(order) - count)
        return self._backward.current

    def go_to(self, task_id: int) -> Task | None:
        """Undo or run tasks until this one is next."""
        order = self._backward.order
        if task_id in order:
            return self.back(len(order) - order.index(task_id))
        self._backward.run_to(task_id)
        return self._backward.current

    def restore(self, task_id: int | None) -> None:
        """Undo the edits of a task's input buffer."""
        backward, history = self._backward, self._past().history
        about = backward.pick(None) if task_id is None else task_id
        edits = [edit for edit in history.edits if edit.task == about]
        if not edits or about in backward.order:
            raise ValueError(f"the gradients of {backward.described(about)} were not edited")
        position = len(backward.order)
        if any(edit.position != position for edit in edits):  # undoing the tasks since must find the edit
            backward.put(about, edits[0].before)
            return
        history.edits = [edit for edit in history.edits if edit.task != about]
        backward.buffers.by_task[about].put(edits[0].waited)
        if backward.recorder is not None:
            backward.recorder.forget_edits(about)

    def compare(self, footprints: Footprints | None) -> BranchComparison:
        """Compare the branches."""
        self._past()
        backward = self._backward
        return compare_branches(
            backward.graph,
            backward.runner.leaves,
            self.branches,
            backward.needed,
            backward.runner.keep_graph,
            footprints,
            backward.accumulation,
        )

    def _past(self) -> Past:
        past = self._backward.past
        if past is None:
            raise RuntimeError(
                "this session keeps no history; start it with ts.debug(loss, history=True), or call keep_history() "
                "before the tasks that are to be undone"
            )
        return past

    def _rewind(self, position: int) -> None:
        """Undo all tasks from this position on."""
        past, backward = self._past(), self._backward
        lost = self._needs_recomputation(position, past.history)
        try:
            trace = None if backward.recorder is None else backward.recorder.trace
            past.branches.leave(lambda: replace(self._now(past), trace=None if trace is None else trace()))
            self._rewind_to(position, past, lost)
        except BaseException as error:  # an interrupt leaves the state half undone, so the session ends
            if backward.over is None:
                backward.over = f"{type(error).__name__} during undo"
            raise

    def _needs_recomputation(self, position: int, history: History) -> bool:
        """Return whether gradients needed to undo to this position are lost and have to be recomputed.

        Raises:
            RuntimeError: undo is not possible; nothing has been undone yet.
        """
        graph_task = self._backward.runner.changes.graph_task
        if graph_task is not None and graph_task.end is not None and graph_task.end.unrestorable:
            raise RuntimeError(f"the end of the backward cannot be undone: it {graph_task.end.unrestorable}")
        undone = history.ran[position - history.reach :]
        for entry in undone:
            if any(grad.changed_since for grad in entry.grads):
                raise RuntimeError(
                    f"the .grad of {self._backward.described(entry.task)} was modified after its task, by another "
                    "backward, an optimizer or your code, and undo would lose that; set it to None to discard it"
                )
        lost = any(kept is None or not kept.intact for entry in undone for kept in (entry.gradients, entry.sums))
        if lost and not all(gradients.intact for gradients in history.first_waiting.values()):
            raise RuntimeError(
                "the gradients at that position cannot be recomputed: a gradient at the beginning of the history was "
                "modified in place, by a hook or your code"
            )
        return lost

    def _rewind_to(self, position: int, past: Past, lost: bool) -> None:
        backward, runner = self._backward, self._backward.runner
        packed = False
        backward.stops.forget_undone(backward.order[position:])
        # The callbacks at the end ran after the last task, so they are undone first.
        graph_task = runner.changes.graph_task
        if graph_task is not None and graph_task.end is not None:
            graph_task.end.undo()
            graph_task.end = None
        callbacks = runner.changes.callbacks_left
        while len(backward.order) > position:
            entry = self._take_back(past, lost)
            backward.consumed.pop(entry.task, None)
            packed = packed or entry.packed
            callbacks = entry.callbacks
            if not lost:
                backward.buffers.take_back(entry)
        again = past.history.ran if lost else ()
        # torch.utils.checkpoint stores recomputed tensors by graph task id (checkpoint.py). A region that was unpacked
        # needs another id, so that it is recomputed when its tasks run again.
        if graph_task is not None:
            graph_task.reopen(callbacks, another=packed or any(entry.packed for entry in again))
        while backward.terms[-1][0] > position:
            backward.terms.pop()
        backward.policy = backward.terms[-1][1]
        if lost:
            self._recompute(past.history)
        backward.queue = backward.queue_under(backward.policy)
        if backward.recorder is not None:
            backward.recorder.rewind(position)
        backward.stops.stopped = None

    def _take_back(self, past: Past, lost: bool) -> Ran:
        """Undo the last task, except for the next tasks' input buffers."""
        backward = self._backward
        position = len(backward.order) - 1
        # Edits at this position were made after the task ran, so they are undone before it.
        edits = past.history.edits
        while edits and edits[-1].position > position:
            edit = edits.pop()
            if not lost:
                backward.buffers.by_task[edit.task].put(edit.waited)
        entry = past.history.take_last()
        task = backward.graph.tasks[entry.task]
        backward.runner.unspend(task)
        past.branches.take_back(position, entry, task.is_leaf)
        # In reverse, so that a .grad changed twice ends at its first value.
        for grad in reversed(entry.grads):
            grad.put_back()
        entry.undo_state()
        if entry.random is not None:
            set_random_states(entry.random)
        del backward.order[position]
        return entry

    def _recompute(self, history: History) -> None:
        """Recompute the input buffers at this position from those at the beginning of the history.

        Tasks run again with the random numbers of their first run. Leaves are left out: their .grad already has their
        gradients.
        """
        backward, runner = self._backward, self._backward.runner
        backward.buffers.restore(history.first_waiting, history.first_missing)
        ran = list(history.ran)
        history.clear()
        for entry in reversed(ran):
            entry.undo_state()
        # The repeated tasks draw random numbers again; later tasks must not notice.
        now = random_states(backward.graph.devices)
        callbacks = runner.changes.callbacks_left
        on_hook, runner.on_hook = runner.on_hook, None  # the trace already has these hook calls
        try:
            backward.inside(lambda: self._run_again(history, ran))
        finally:
            if backward.over is None:
                runner.on_hook = on_hook
                if runner.changes.graph_task is not None:  # drop the callbacks that were queued a second time
                    runner.changes.graph_task.reopen(callbacks, another=False)
            set_random_states(now)

    def _run_again(self, history: History, ran: Sequence[Ran]) -> None:
        backward, runner = self._backward, self._backward.runner
        for position, entry in enumerate(ran, history.reach):
            self._edit_again(history, position)
            if entry.random is not None:
                set_random_states(entry.random)
            buffer = backward.buffers.by_task.pop(entry.task)
            entry.gradients = Waited(buffer.waiting())
            task = backward.graph.tasks[entry.task]
            if task.is_leaf:
                if entry.kept is not None:
                    entry.kept.redo()
            else:
                before = [(kept.tensor, kept.tensor.grad) for kept in entry.grads]
                for kept in entry.grads:
                    kept.tensor.grad = kept.grad
                # Saved tensors were kept because `Past` sets `runner.frees` to False; only the mark is removed here.
                runner.unspend(task)
                runner.changes.begin(entry)
                outputs = runner.run(task, buffer.take(), hooks=True)
                for tensor, grad in before:  # tensors with retain_grad(): the gradient was added a second time
                    tensor.grad = grad
                entry.edges.clear()
                entry.counts.clear()
                for edge in backward.graph.out_edges[entry.task]:
                    backward.buffers.add(edge, outputs, entry)
                runner.changes.end(entry)
                runner.spend(task)
            history.end(entry)
        self._edit_again(history, history.reach + len(ran))

    def _edit_again(self, history: History, position: int) -> None:
        """Repeat the active edits made at this position."""
        for edit in history.edits:
            if edit.position == position:
                self._backward.buffers.by_task[edit.task].put(alone(edit.after))

    def _now(self, past: Past) -> Branch:
        """Return the current branch, up to the current position."""
        backward, branches = self._backward, past.branches
        parent, forked_at = branches.origins[branches.current]
        return Branch(
            branches.current,
            parent,
            forked_at,
            tuple(backward.order),
            frozenset(entry.task for entry in past.history.ran if entry.by_hand),
            tuple(past.history.edits),
            tuple(backward.terms),
            None,
            is_current=True,
            shared=len(backward.order),
            ahead=0 if branches.future is None else len(branches.future.order) - len(backward.order),
        )

    def go_to_branch(self, number: int) -> None:
        """Go to the end of a branch: undo to its fork, then repeat its tasks and edits."""
        past, backward = self._past(), self._backward
        known = {branch.number: branch for branch in self.branches}
        if (future := past.branches.future) is not None:
            known[future.number] = future
        branch = known.get(number)
        if branch is None:
            raise ValueError(f"unknown branch {number}; expected one of {', '.join(map(str, known))}")
        if branch.shared < past.history.reach:
            raise ValueError(f"{branch.name} forked before the history begins: {past.begins}")
        if branch.shared == len(branch.order) == len(backward.order):
            return
        self._rewind(branch.shared)
        first = branch.shared
        trailing = [edit for edit in past.history.edits if edit.position == first]
        for edit in reversed(trailing):
            backward.buffers.by_task[edit.task].put(edit.waited)
            past.history.edits.remove(edit)
            if backward.recorder is not None:
                backward.recorder.forget_edits(edit.task)
        policies = dict(branch.terms)
        policies.setdefault(first, next(policy for begins, policy in reversed(branch.terms) if begins <= first))

        def body() -> None:
            for position in range(first, len(branch.order) + 1):
                if position in policies:
                    backward.follow(policies[position])
                for edit in branch.edits:
                    if edit.position == position:
                        backward.put(edit.task, edit.after)
                if position < len(branch.order):
                    task_id = branch.order[position]
                    backward.execute(task_id, hooks=True, by_hand=task_id in branch.by_hand)

        backward.inside(body, ends=True)
