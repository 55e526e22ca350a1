"""The deck: a backward that runs task by task, shown in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

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
    """How the backward stands, what waits, and what is foreseen. Runs nothing; hooks and observers may look, too."""

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
        """The ids of all tasks in the order in which they ran and are going to."""
        return list(self._live.plan.order)

    @property
    def ready(self) -> list[ReadyTask]:
        """The ready queue, in the order in which it would pop."""
        return self._asking.look(lambda: self._live.session.ready)

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        """The gradients which the current task is going to get, its input buffer, of the shapes in `current.inputs`."""
        return self._asking.look(lambda: self._live.session.gradients)

    @property
    def trace(self) -> Trace | None:
        """What has been recorded so far."""
        return self._asking.look(lambda: self._live.session.trace)

    @property
    def batches(self) -> Batches | None:
        """What ran as one so far, and what did not and why; None without `batch=`."""
        session = self._live.session
        return self._asking.look(lambda: session.batches if isinstance(session, Stepper) else None)

    def waiting(self, task: Task | ReadyTask | int) -> tuple[Tensor | None, ...]:
        """The gradients in a task's input buffer, one per input number, of the shapes in `task.inputs`; None where
        nothing has come yet.

        Raises:
            NotImplementedError: the native engine shows those of the current task alone.
        """
        return self._asking.look(lambda: self._live.session.waiting(task))

    @property
    def stopped(self) -> Stop | None:
        """Why the last run ended before its end: a breakpoint, a watchpoint, or somebody called `stop`."""
        return self._live.at.stopped

    @property
    def branches(self) -> BranchesView:
        """The ways in which the session went, those that were left included: a table of `Branch`."""
        return BranchesView(self._asking.look(lambda: self._live.branches.all))

    @property
    def history(self) -> History | None:
        """What going back costs, in bytes, and how far it can go; None where no task can be taken back."""
        return self._live.at.history

    def compare(self, policies: Sequence[AnyPolicy] | AnyPolicy) -> Prediction:
        """The memory that this graph would take under several policies, from the start on. Nothing runs.

        Raises:
            ValueError: the memory was not predicted, see `predict_memory`; or a policy decides as the backward runs.
        """
        return self._asking.look(lambda: self._live.plan.compare(policies))

    def save_html(self, path: str | Path) -> Path:
        """Writes the deck as it is now as one page that plays without a kernel or a network."""
        document = self._live.document
        return save_page(document.packed(), Path(path), document.content["title"])

    def save_picture(self, path: str | Path) -> Path:
        """Writes the graph as it stands now, what has run, runs next and is ready, as .svg or .png.

        Raises:
            ValueError: the file ends otherwise.
            ModuleNotFoundError: PNG, and resvg-py is not installed.
        """
        return save_picture(self, path)

    def save_trace(self, path: str | Path) -> Path:
        """Writes what has run as a trace file, for `ts.load` and `tapescope view`; see `Run.save`."""
        return self._asking.look(self._live.session.result).save(path)

    def save_perfetto(self, path: str | Path) -> Path:
        """Writes what has run as a trace that ui.perfetto.dev and chrome://tracing open; see `Run.save_perfetto`."""
        return self._asking.look(self._live.session.result).save_perfetto(path)


@verbs_end_where_called
class Stepping(DeckTraits):
    """The verbs that run tasks, take them back, and say which policy picks. Each waits until it is done."""

    def step(self, task: AnyTask | None = None, *, count: int = 1, device: str | torch.device | None = None) -> Task:
        """Runs one task, or `count`: the given one (with the direct engine any ready task), or the policy's choice;
        with `device` its choice among the ready tasks of that device.

        Stops early at what stops a run. Returns the last task that ran.

        Raises:
            ValueError: the given task is not ready; or the device stands still, and which task it waits for.
            NotImplementedError: the native engine can't run that task next.
            RuntimeError: no task is left, or the session is over. And what the task itself raises.
        """
        if device is not None and task is not None:
            raise ValueError("step() runs either a task or a device's next one: give one of the two")
        expect_no_count(self._live.session.graph, task)
        return self._asking.ask(lambda: self._live.running.step(count, None if task is None else _task(task), device))

    def run(self) -> Run:
        """Runs to the next breakpoint, to what a watchpoint finds, or to the end. Returns what has run so far.

        Raises:
            RuntimeError: the session is over. And what a task raises.
        """

        def run() -> Run:
            self._live.running.run()
            return self._live.session.result()

        return self._asking.ask(run)

    def run_to(self, task: AnyTask) -> Task | None:
        """Runs what comes before a task, or up to what stops a run. Returns the current task.

        Raises:
            ValueError: it has run, or is not going to.
        """
        self._asking.ask(lambda: self._live.running.run_to(_task(task)))
        return self.current

    def step_over(self) -> Task | None:
        """Runs until all tasks of the current task's innermost module call have run, the calls in it included; one task
        in the outermost call, and where no capture saw one. Stops early at what stops a run. Returns the current task.

        Raises:
            RuntimeError: no task is left, or the session is over. And what a task raises.
        """
        self._asking.ask(self._live.running.step_over)
        return self.current

    def step_out(self) -> Task | None:
        """The same for the call around it: at the top to the end."""
        self._asking.ask(lambda: self._live.running.step_over(out=1))
        return self.current

    def stop(self) -> None:
        """Makes what runs, or waits to, end before the next task. May be called from anywhere, hooks included."""
        self._live.stop()

    def back(self, count: int = 1) -> Task | None:
        """Takes back the last tasks that ran: their gradients wait again, leaves' .grad is what it was. Returns the
        current task. What is then done differently begins a new branch, see `branches`.

        Raises:
            NotImplementedError: it is a session of PyTorch's engine, which can't.
            ValueError: fewer tasks have run than that, or history does not reach so far.
            RuntimeError: the session is over.
        """
        return self._moved(lambda: self._live.running.jump(lambda session: session.back(count)))

    def goto(self, task: AnyTask | None = None, *, branch: int | None = None) -> Task | None:
        """Goes to where a task is the current one, back or on; or to where a branch was left. Returns the current task.

        Raises:
            NotImplementedError: with PyTorch's engine one can only go on.
            ValueError: the task is not going to run, or history does not reach so far; or there is no such branch.
            RuntimeError: the session is over.
        """
        if (task is None) == (branch is None):
            raise ValueError("goto takes either a task or branch=, the number of a branch")
        return self._moved(lambda: self._live.running.goto(None if task is None else _task(task), branch))

    def compare_branches(self) -> BranchComparison:
        """What the branches made differently: their orders, their gradients, and the memory they would take.

        Raises:
            NotImplementedError: it is a session of PyTorch's engine, which has none.
        """
        return self._asking.ask(self._live.compare_branches)

    def switch(self, policy: AnyPolicy) -> None:
        """Lets another policy pick from here on: a name, a `Policy` or a callable.

        Raises:
            ValueError: no policy has this name.
        """
        self._asking.ask(lambda: self._live.switch(policy))

    def predict_memory(self) -> None:
        """Asks each task what it would allocate, as `ts.simulate` does, for the memory of all policies.

        Done unasked, before `ts.debug` returns, on graphs of up to 5,000 tasks.

        Raises:
            ValueError: that can't be: a task has run already, or the backward gets a graph of its own.
        """
        self._asking.ask(self._live.predict)

    def _moved(self, command: Callable[[], object]) -> Task | None:
        self._asking.ask(command)
        return self.current


def _task(task: Task | ReadyTask | int) -> Task | int:
    return task.task if isinstance(task, ReadyTask) else task


@verbs_end_where_called
class Stopping(DeckTraits):
    """Breakpoints and watchpoints, which can also be made while tasks run."""

    @property
    def stops(self) -> StopsView:
        """The breakpoints and watchpoints: a table; `deck.stops.disable(2)` and the like change them."""
        return StopsView(self._live.session.stops, self._asking.now)

    def break_at(self, where: Where, *, hit: int | None = None, when: Predicate | None = None) -> Breakpoint:
        """Makes what runs stop before a task, also while it runs; see `Verbs.break_at` for what `where` may be.

        deck.break_at("encoder.layer.3")                # where the backward enters a call of this module
        deck.break_at("AddmmBackward0", hit=3)

        Raises:
            ValueError: nothing is there by that name; it has the nearest ones.
        """
        return self._asking.now(lambda: self._live.session.break_at(where, hit=hit, when=when))

    def watch(
        self, *conditions: str | GradientPredicate, at: str | None = None, synchronize: bool | None = None
    ) -> Watchpoint:
        """Makes what runs stop after a task that gives a gradient of this kind; see `Verbs.watch` for the conditions.

        deck.watch("nan", "inf")                        # any of them
        deck.watch("norm>1e3 and upcast", at="encoder.*")

        Raises:
            ValueError: it is none of the conditions; or nothing is there by the name `at`.
        """
        return self._asking.now(lambda: self._live.session.watch(*conditions, at=at, synchronize=synchronize))


@verbs_end_where_called
class Editing(DeckTraits):
    """The verbs that change what waits for a task, and the one that checks its backward."""

    def replace(self, gradients: Tensor | Sequence[Tensor | None] | None, task: AnyTask | None = None) -> None:
        """Gives a waiting task these gradients, one per input number; the current task if none is given.

        Raises:
            ValueError: their number, shape, dtype, device or layout differs, or one is given where none came.
            TypeError: one is no tensor.
            NotImplementedError: with the native engine only those of the current task can be replaced.
        """
        self._edit(lambda session: session.replace(gradients, task), task)

    def scale(self, factor: float, task: AnyTask | None = None) -> None:
        """Multiplies the gradients that wait for a task, by default the current one."""
        self._edit(lambda session: session.scale(factor, task), task)

    def zero(self, task: AnyTask | None = None) -> None:
        """Makes the gradients that wait for a task zero, by default for the current one."""
        self._edit(lambda session: session.zero(task), task)

    def clip(self, max_norm: float, task: AnyTask | None = None) -> None:
        """Scales the gradients that wait for a task, by default for the current one, so that the norm of them all is at
        most `max_norm`.

        Raises:
            ValueError: the norm is NaN or infinite, so that nothing could bring it down.
        """
        self._edit(lambda session: session.clip(max_norm, task), task)

    def restore(self, task: AnyTask | None = None) -> None:
        """Gives a waiting task the gradients again which it had before they were edited.

        Raises:
            NotImplementedError: it is a session of PyTorch's engine, which doesn't keep them.
        """
        self._asking.ask(lambda: self._live.edits.restore(task))

    def check(self, task: AnyTask | None = None) -> Check:
        """Compares a task's backward with finite differences of its forward operation; see `Check`.

        The forward's inputs must be there: `ts.capture(keep_inputs=True)` keeps them.
        """
        return self._asking.ask(lambda: self._live.edits.check(task))

    def _edit(self, change: Callable[[Stepper | NativeSession], object], task: AnyTask | None) -> None:
        self._asking.ask(lambda: self._live.edits.edit(lambda: change(self._live.session), task))


class Deck(Looking, Stepping, Stopping, Editing):
    """A backward that you can look at: a session with the verbs of `Stepper`, shown as a widget.

    `ts.debug(loss)` makes one in a notebook. Buttons and Python calls drive the same session, and both see the result.
    Tasks run in a thread of the deck's own, one command after the other; a call waits for its own. An interrupt (the
    notebook's stop button) lets the task under way end and leaves the deck open.

    It is an ipywidgets widget. These traits can be observed and linked; those marked * can be set, too:

    position: how many tasks have run.
    current_task: the id of the task that runs next; None at the end, and where a user's policy fails to choose one.
    status: "stopped", "running", "finished", "failed" or "closed".
    policy*: the name of the policy that picks; setting it lets another one go on from here.
    selection*: the id of the task that is looked at, or None.
    breakpoints*: the ids of the tasks that have a breakpoint of their own. These and all others are in `stops`.
    why_stopped: why the last run ended before its end, in a sentence; "" where it did not. `stopped` has the rest.

    Observers are called in the deck's thread: there the deck can be looked at, stopped and closed, but runs nothing.

    Known limitations. Memory is predicted, not measured: `ts.profile` measures. With the native engine no task can be
    taken back, and the current task's gradients alone be seen and edited. A backward whose hooks use thread-local state
    of the user's sees the deck's thread. A user's policy is asked for whole orders ahead, to show them; one that draws
    lots shows what it drew.

    Args:
        session: of either engine, nothing run yet. The deck runs it from now on, and closes it.
        policy: its policy: a name, a `Policy` or a callable.
        title: what is run; by default the model's class.
        retain_graph, create_graph: as given to the backward, for the prediction of memory.
        recompute: the plan that the forward ran under, whose predictions are shown.
    """

    def __repr__(self) -> str:
        return (
            f"<Deck of {self.graph.tasks[self.graph.roots[0].task].name} under {self.policy}, "
            f"{self.engine} engine: {self.position} of {len(self._live.plan.order)} tasks have run, {self.status}>"
        )

    def close(self) -> None:
        """Ends the session, lets the graph's nodes go, and takes the widget from the page.

        Waits for the task under way; where that can't be, in a hook or an observer, the session ends right after it.
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
