"""The deck: a backward that runs task by task, shown in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from ...engine.execution.accumulation_rule import Accumulate, Release
from ...engine.execution.undo_history import History
from ...engine.recording.batch_report import Batches
from ...engine.recording.run import Run
from ...engine.recording.task_records import Trace
from ...engine.schedule.policy import AnyPolicy
from ...engine.schedule.ready_queue import AnyTask, ReadyTask
from ...engine.session.breakpoints.breakpoints import Breakpoint, Predicate, Stop, Where
from ...engine.session.compare_branches import BranchComparison
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...engine.session.verbs import expect_no_count
from ...errors import verbs_end_where_called
from ...inspector.graph.graph import Task
from .auto_display import forget
from .deck_traits import DeckTraits
from .live_predictions import Prediction
from .save_deck import save_page, save_picture
from .stop_tables import BranchesView, StopsView

if TYPE_CHECKING:
    from ...engine.session.breakpoints.watch_conditions import GradientPredicate
    from ...engine.session.breakpoints.watchpoints import Watchpoint
    from ...engine.session.check_task import Check


@verbs_end_where_called
class Looking(DeckTraits):
    """Properties and methods that read the state of the backward. They run nothing, and hooks may call them."""

    @property
    def engine(self) -> str:
        """`direct` or `native`."""
        return self._live.at.engine

    @property
    def order(self) -> list[int]:
        """The ids of the tasks that have run."""
        return list(self._live.session.order)

    @property
    def planned(self) -> list[int]:
        """The ids of all tasks in the order in which they ran and will run."""
        return list(self._live.plan.order)

    @property
    def ready(self) -> list[ReadyTask]:
        """The ready queue, in the order in which tasks will be popped."""
        return self._asking.look(lambda: self._live.session.ready)

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        """The current task's input buffer: its gradients, of the shapes in `current.inputs`."""
        return self._asking.look(lambda: self._live.session.gradients)

    @property
    def trace(self) -> Trace | None:
        """The trace recorded so far; None without one."""
        return self._asking.look(lambda: self._live.session.trace)

    @property
    def batches(self) -> Batches | None:
        """The groups that ran as one so far, and those that did not, with reasons; None without `batch=`."""
        session = self._live.session
        return self._asking.look(lambda: session.batches if isinstance(session, Stepper) else None)

    def waiting(self, task: Task | ReadyTask | int) -> tuple[Tensor | None, ...]:
        """Return a task's input buffer: one gradient per input number, of the shapes in `task.inputs`; None for inputs
        without a gradient yet.

        Raises:
            NotImplementedError: the native engine shows only the input buffer of the current task.
        """
        return self._asking.look(lambda: self._live.session.waiting(task))

    @property
    def stopped(self) -> Stop | None:
        """The reason why the last run stopped early: a breakpoint, a watchpoint, or a call of `stop`."""
        return self._live.at.stopped

    @property
    def branches(self) -> BranchesView:
        """The branches of the session, including those that were left: a table of `Branch`."""
        return BranchesView(self._asking.look(lambda: self._live.branches.all))

    @property
    def history(self) -> History | None:
        """The memory that undo holds, and how many tasks can be undone; None if undo is not possible."""
        return self._live.at.history

    def compare(
        self,
        policies: Sequence[AnyPolicy] | AnyPolicy,
        *,
        accumulate: Sequence[Accumulate] | Accumulate | None = None,
        release: Sequence[Release] | Release | None = None,
    ) -> Prediction:
        """Predict the memory of the whole backward under several policies. Runs nothing.

        Args:
            policies: the policies, one or several.
            accumulate, release: rules as in `ts.backward`, one or several of each. Every policy is predicted under
                every rule; the rows have names such as "heap, list". None: the deck's own rule, which is not named.

        Raises:
            ValueError: the memory was not predicted, see `predict_memory`; a policy decides while the backward runs; or
                a rule is unknown or repeated.
        """
        return self._asking.look(lambda: self._live.plan.compare(policies, accumulate, release))

    def save_html(self, path: str | Path) -> Path:
        """Write the deck in its current state as one page that plays without a kernel or a network connection."""
        document = self._live.document
        return save_page(document.packed(), Path(path), document.content["title"])

    def save_picture(self, path: str | Path) -> Path:
        """Write the graph with finished, current and ready tasks as .svg or .png.

        Raises:
            ValueError: the file has another extension.
            ModuleNotFoundError: PNG was requested, and resvg-py is not installed.
        """
        return save_picture(self, path)

    def save_trace(self, path: str | Path) -> Path:
        """Write the tasks that have run as a trace file, for `ts.load` and `tapescope view`; see `Run.save`."""
        return self._asking.look(self._live.session.result).save(path)

    def save_perfetto(self, path: str | Path) -> Path:
        """Write the tasks that have run as a trace for Perfetto and chrome://tracing; see `Run.save_perfetto`."""
        return self._asking.look(self._live.session.result).save_perfetto(path)


@verbs_end_where_called
class Stepping(DeckTraits):
    """Methods that run tasks, undo them, and change the policy. Each returns when it is done."""

    def step(self, task: AnyTask | None = None, *, count: int = 1, device: str | torch.device | None = None) -> Task:
        """Run one task, or `count`: a ready task passed as `task` (direct engine), or the policy's choice. With
        `device`, the policy chooses among the ready tasks of that device.

        Stops early at a breakpoint or watchpoint. Returns the last task that ran.

        Raises:
            ValueError: the task is not ready; or the device waits, with the task that it waits for.
            NotImplementedError: the native engine cannot run that task next.
            RuntimeError: no task is left, or the session is over. Also raises errors of the task itself.
        """
        if device is not None and task is not None:
            raise ValueError("step() takes either a task or device=, not both")
        expect_no_count(self._live.session.graph, task)
        return self._asking.ask(lambda: self._live.running.step(count, None if task is None else _task(task), device))

    def run(self) -> Run:
        """Run to the next breakpoint, watchpoint, or to the end. Returns the tasks that have run so far; `Run.stopped`
        is the reason for an early stop.

        Raises:
            RuntimeError: the session is over. Also raises errors of tasks.
        """

        def run() -> Run:
            self._live.running.run()
            stop = self._live.at.stopped  # a deck stops its session between tasks
            return replace(self._live.session.result(), stopped=stop.text if stop else "")

        return self._asking.ask(run)

    def run_to(self, task: AnyTask) -> Task | None:
        """Run until a task is the current one, or to a breakpoint or watchpoint. Returns the current task.

        Raises:
            ValueError: the task has run, or will not run.
        """
        self._asking.ask(lambda: self._live.running.run_to(_task(task)))
        return self.current

    def step_over(self) -> Task | None:
        """Run all remaining tasks of the current task's innermost module call, including nested calls. Runs one task in
        the outermost call or without a capture. Stops early at a breakpoint or watchpoint. Returns the current task.

        Raises:
            RuntimeError: no task is left, or the session is over. Also raises errors of tasks.
        """
        self._asking.ask(self._live.running.step_over)
        return self.current

    def step_out(self) -> Task | None:
        """Run until all tasks of the enclosing module call have run; at the top, to the end."""
        self._asking.ask(lambda: self._live.running.step_over(out=1))
        return self.current

    def stop(self) -> None:
        """Stop the running command, and queued ones, before the next task. May be called from any thread or hook."""
        self._live.driver.stop()

    def back(self, count: int = 1) -> Task | None:
        """Undo the last tasks: restores input buffers and .grad. Returns the current task. Continuing differently
        begins a new branch, see `branches`.

        Raises:
            NotImplementedError: the session uses PyTorch's engine, which cannot undo tasks.
            ValueError: fewer tasks have run, or the history does not reach that far.
            RuntimeError: the session is over.
        """
        self._asking.ask(lambda: self._live.running.jump(lambda session: session.back(count)))
        return self.current

    def goto(self, task: AnyTask | None = None, *, branch: int | None = None) -> Task | None:
        """Undo or run tasks until a task is the current one, or go to the end of a branch. Returns the current task.

        Raises:
            NotImplementedError: the session uses PyTorch's engine, which cannot undo tasks.
            ValueError: the task will not run, the history does not reach that far, or there is no such branch.
            RuntimeError: the session is over.
        """
        if (task is None) == (branch is None):
            raise ValueError("goto() takes either a task or branch=, the number of a branch")
        self._asking.ask(lambda: self._live.running.goto(None if task is None else _task(task), branch))
        return self.current

    def compare_branches(self) -> BranchComparison:
        """Compare the branches: their orders, gradients and predicted memory.

        Raises:
            NotImplementedError: the session uses PyTorch's engine, which has no branches.
        """
        return self._asking.ask(self._live.compare_branches)

    def switch(self, policy: AnyPolicy) -> None:
        """Continue with another policy: a name, a `Policy` or a callable.

        Raises:
            ValueError: no policy has this name.
        """
        self._asking.ask(lambda: self._live.switch(policy))

    def predict_memory(self) -> None:
        """Predict the memory of all policies, as `ts.simulate` does.

        `ts.debug` does this automatically for graphs of up to 5,000 tasks.

        Raises:
            ValueError: a task has already run, or the backward creates a graph (`create_graph=True`).
        """
        self._asking.ask(self._live.predict)


def _task(task: Task | ReadyTask | int) -> Task | int:
    return task.task if isinstance(task, ReadyTask) else task


@verbs_end_where_called
class Stopping(DeckTraits):
    """Breakpoints and watchpoints. They can also be added while tasks run."""

    @property
    def stops(self) -> StopsView:
        """A table of breakpoints and watchpoints; `deck.stops.disable(2)` and similar methods change them."""
        return StopsView(self._live.session.stops, self._asking.now)

    def break_at(self, where: Where, *, hit: int | None = None, when: Predicate | None = None) -> Breakpoint:
        """Stop runs before a task; see `Verbs.break_at` for `where`. May be called while tasks run.

        deck.break_at("encoder.layer.3")                # when the backward enters a call of this module
        deck.break_at("AddmmBackward0", hit=3)

        Raises:
            ValueError: nothing has this name; the message lists the nearest ones.
        """
        return self._asking.now(lambda: self._live.session.break_at(where, hit=hit, when=when))

    def watch(
        self, *conditions: str | GradientPredicate, at: str | None = None, synchronize: bool | None = None
    ) -> Watchpoint:
        """Stop runs after a task that returns a matching gradient; see `Verbs.watch` for the conditions.

        deck.watch("nan", "inf")                        # any of them
        deck.watch("norm>1e3 and upcast", at="encoder.*")

        Raises:
            ValueError: the condition is unknown, or nothing has the name `at`.
        """
        return self._asking.now(lambda: self._live.session.watch(*conditions, at=at, synchronize=synchronize))


@verbs_end_where_called
class Editing(DeckTraits):
    """Methods that edit a task's input buffer, and the check of its backward."""

    def replace(self, gradients: Tensor | Sequence[Tensor | None] | None, task: AnyTask | None = None) -> None:
        """Replace the input buffer of a task, by default the current one: one gradient per input number.

        Raises:
            ValueError: number, shape, dtype, device or layout differs, or an input without a gradient got one.
            TypeError: a gradient is not a tensor.
            NotImplementedError: the native engine can replace only the current task's gradients.
        """
        self._edit(lambda session: session.replace(gradients, task), task)

    def scale(self, factor: float, task: AnyTask | None = None) -> None:
        """Multiply the gradients in a task's input buffer, by default the current task's."""
        self._edit(lambda session: session.scale(factor, task), task)

    def zero(self, task: AnyTask | None = None) -> None:
        """Set the gradients in a task's input buffer to zero, by default the current task's."""
        self._edit(lambda session: session.zero(task), task)

    def clip(self, max_norm: float, task: AnyTask | None = None) -> None:
        """Scale the gradients in a task's input buffer, by default the current task's, to a total norm of at most
        `max_norm`.

        Raises:
            ValueError: the norm is NaN or infinite.
        """
        self._edit(lambda session: session.clip(max_norm, task), task)

    def restore(self, task: AnyTask | None = None) -> None:
        """Undo the edits of a task's input buffer.

        Raises:
            NotImplementedError: the session uses PyTorch's engine, which does not keep replaced gradients.
        """
        self._asking.ask(lambda: self._live.edits.restore(task))

    def check(self, task: AnyTask | None = None) -> Check:
        """Compare a task's backward with finite differences of its forward operation; see `Check`.

        It needs the forward's inputs, which `ts.capture(keep_inputs=True)` keeps.
        """
        return self._asking.ask(lambda: self._live.edits.check(task))

    def _edit(self, change: Callable[[Stepper | NativeSession], object], task: AnyTask | None) -> None:
        self._asking.ask(lambda: self._live.edits.edit(lambda: change(self._live.session), task))


class Deck(Looking, Stepping, Stopping, Editing):
    """A session with the methods of `Stepper`, displayed as a widget.

    `ts.debug(loss)` returns a deck in a notebook. Buttons and Python calls drive the same session. Tasks run in the
    deck's own thread, one command after the other; a call waits for its command. An interrupt (the notebook's stop
    button) stops after the running task and leaves the deck open.

    A deck is an ipywidgets widget. These traits can be observed and linked; those marked * can be set:

    position: the number of tasks that have run.
    current_task: the id of the task that runs next; None at the end, or if a user's policy fails to choose.
    status: "stopped", "running", "finished", "failed" or "closed".
    policy*: the name of the policy; setting it continues with another one.
    selection*: the id of the selected task, or None.
    breakpoints*: the ids of tasks with a breakpoint on the task itself. All breakpoints are in `stops`.
    why_stopped: the reason why the last run stopped early, as a sentence, or "". `stopped` has the details.

    Observers are called in the deck's thread: they may read, stop and close the deck, but not run it.

    Known limitations. Memory is predicted; `ts.profile` measures it. With the native engine tasks cannot be undone, and
    only the current task's gradients can be read and edited. Hooks that use thread-local state see the deck's thread. A
    user's policy is called for whole orders ahead of time, to display them; a random policy shows one random order.

    Args:
        session: a session of either engine that has not run yet. The deck runs and closes it.
        policy: its policy: a name, a `Policy` or a callable.
        title: a title; by default the model's class.
        retain_graph, create_graph: as passed to the backward, for the prediction of memory.
        recompute: the plan that the forward ran under, whose predictions are shown.
        model: the forward's model; the deck says how many of its parameters that require grad are not in the graph.
    """

    def __repr__(self) -> str:
        return (
            f"<Deck of {self.graph.tasks[self.graph.roots[0].task].name} under {self.policy}, "
            f"{self.engine} engine: {self.position} of {len(self._live.plan.order)} tasks have run, {self.status}>"
        )

    def close(self) -> None:
        """End the session, release the graph's nodes, and remove the widget from the page.

        Waits for the running task. In a hook or an observer, where waiting is impossible, the session ends after it.
        """
        if sys.is_finalizing() or not hasattr(self, "_live") or self.comm is None:
            super().close()
            return
        ended = self._leave()
        if not self._live.is_current_thread:
            ended.result()

    def _leave(self) -> Future[None]:
        forget(self)
        return self._live.close(super().close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close_unseen(self) -> None:
        self._leave()  # a handler of messages must not wait for a task
