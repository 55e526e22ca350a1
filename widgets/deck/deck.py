"""The deck: a backward that runs task by task, on the screen of a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeVar

import ipywidgets
import torch
import traitlets
from torch import Tensor

from ...engine.queue.policy import AnyPolicy
from ...engine.queue.ready_queue import AnyTask, ReadyTask
from ...engine.sessions.branch_comparison import BranchComparison
from ...engine.sessions.native_session import NativeSession
from ...engine.sessions.session_base import session_over
from ...engine.sessions.stepper import Stepper
from ...engine.sessions.worker import HEARS_SIGNALS_S
from ...engine.stops.breakpoints import Breakpoint, Predicate, Where
from ...engine.stops.stopped import Stop
from ...engine.tasks.history import History
from ...engine.trace.batches import Batches
from ...engine.trace.run import Run
from ...engine.trace.trace import Trace
from ...inspector.graph.graph import Graph, Task
from .display import forget
from .document import Json, packed, title_of
from .live.hearing import command_of, stop_change_of
from .live.live import Live
from .live.news import News
from .page import save_page
from .picture import save_picture
from .played import Played
from .prediction import Prediction
from .still import Moment
from .stop_tables import BranchesView, StopsView

if TYPE_CHECKING:
    from ...engine.checking.check_task import Check
    from ...engine.mirroring.plan import MirrorPlan
    from ...engine.stops.conditions import GradientPredicate
    from ...engine.stops.watchpoints import Watchpoint

T = TypeVar("T")


class Deck(Played):
    """A backward that you can look at: a session with the verbs of `Stepper`, shown as a widget.

    `th.debug(loss)` makes one in a notebook. Buttons and Python calls drive the same session, and both see the result.
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

    Known limitations. Memory is predicted, not measured: `th.profile` measures. With the native engine no task can be
    taken back, and the current task's gradients alone be seen and edited. A backward whose hooks use thread-local state
    of the user's sees the deck's thread. A user's policy is asked for whole orders ahead, to show them; one that draws
    lots shows what it drew.

    Args:
        session: of either engine, nothing run yet. The deck runs it from now on, and closes it.
        policy: its policy: a name, a `Policy` or a callable.
        title: what is run; by default the model's class.
        retain_graph, create_graph: as given to the backward, for the prediction of memory.
        mirroring: the plan by which the forward was mirrored, whose predictions are shown.
    """

    position = traitlets.Int(read_only=True).tag(sync=True)
    current_task = traitlets.Int(None, allow_none=True, read_only=True).tag(sync=True)
    status = traitlets.Unicode(read_only=True).tag(sync=True)
    policy = traitlets.Unicode().tag(sync=True)
    why_stopped = traitlets.Unicode(read_only=True).tag(sync=True)
    _stops = traitlets.List(traitlets.Dict()).tag(sync=True)

    def __init__(
        self,
        session: Stepper | NativeSession,
        *,
        policy: AnyPolicy = "heap",
        title: str = "",
        retain_graph: bool = False,
        create_graph: bool = False,
        mirroring: MirrorPlan | None = None,
    ) -> None:
        found = title or title_of(session.graph)
        self._live = Live(session, policy, found, retain_graph, create_graph, self._take, mirroring)
        self._told = self._live.report.news()
        self._forgotten: set[int] = set()
        self._checks: Json = {}
        self._replayed: Json = {}
        self._branches: list[Json] = []
        self._telling = Lock()
        super().__init__(session.graph, found, _is_live=True, policy=session.policy)
        self.set_trait("current_task", self._told.current)
        self.set_trait("status", self._told.status)
        if not self._live.is_small:
            self._live.driver.do(self._live.foresee)

    def __repr__(self) -> str:
        return (
            f"<Deck of {self.graph.tasks[self.graph.roots[0].task].name} under {self.policy}, "
            f"{self.engine} engine: {self.position} of {len(self._live.plan.order)} tasks have run, {self.status}>"
        )

    @property
    def graph(self) -> Graph:
        """The graph that is run; without its nodes once the deck is closed, or has failed."""
        return self._live.at.graph

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
    def current(self) -> Task | None:
        """The task that `step()` would run now; None when all have run."""
        return None if self.current_task is None else self.graph.tasks[self.current_task]

    @property
    def ready(self) -> list[ReadyTask]:
        """The ready queue, in the order in which it would pop."""
        return self._look(lambda: self._live.session.ready)

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        """The gradients which the current task is going to get: its input buffer."""
        return self._look(lambda: self._live.session.gradients)

    @property
    def trace(self) -> Trace | None:
        """What has been recorded so far."""
        return self._look(lambda: self._live.session.trace)

    @property
    def batches(self) -> Batches | None:
        """What ran as one so far, and what did not and why; None without `batch=`."""
        session = self._live.session
        return self._look(lambda: session.batches if isinstance(session, Stepper) else None)

    def waiting(self, task: Task | ReadyTask | int) -> tuple[Tensor | None, ...]:
        """The gradients in a task's input buffer, one per input number, None where nothing has come yet.

        Raises:
            NotImplementedError: the native engine shows those of the current task alone.
        """
        return self._look(lambda: self._live.session.waiting(task))

    @property
    def stops(self) -> StopsView:
        """The breakpoints and watchpoints: a table; `deck.stops.disable(2)` and the like change them."""
        return StopsView(self._live.session.stops, self._now)

    @property
    def stopped(self) -> Stop | None:
        """Why the last run ended before its end: a breakpoint, a watchpoint, or somebody called `stop`."""
        return self._live.at.stopped

    @property
    def branches(self) -> BranchesView:
        """The ways in which the session went, those that were left included: a table of `Branch`."""
        return BranchesView(self._look(lambda: self._live.branches.all))

    @property
    def history(self) -> History | None:
        """What going back costs, in bytes, and how far it can go; None where no task can be taken back."""
        return self._live.at.history

    def break_at(self, where: Where, *, hit: int | None = None, when: Predicate | None = None) -> Breakpoint:
        """Makes what runs stop before a task, also while it runs; see `Verbs.break_at` for what `where` may be.

        deck.break_at("encoder.layer.3")                # where the backward enters a call of this module
        deck.break_at("AddmmBackward0", hit=3)

        Raises:
            ValueError: nothing is there by that name; it has the nearest ones.
        """
        return self._now(lambda: self._live.session.break_at(where, hit=hit, when=when))

    def watch(
        self, *conditions: str | GradientPredicate, at: str | None = None, synchronize: bool | None = None
    ) -> Watchpoint:
        """Makes what runs stop after a task that gives a gradient of this kind; see `Verbs.watch` for the conditions.

        deck.watch("nan", "inf")                        # any of them
        deck.watch("norm>1e3 and upcast", at="encoder.*")

        Raises:
            ValueError: it is none of the conditions; or nothing is there by the name `at`.
        """
        return self._now(lambda: self._live.session.watch(*conditions, at=at, synchronize=synchronize))

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
        return self._ask(lambda: self._live.running.step(count, None if task is None else _task(task), device))

    def run(self) -> Run:
        """Runs to the next breakpoint, to what a watchpoint finds, or to the end. Returns what has run so far.

        Raises:
            RuntimeError: the session is over. And what a task raises.
        """

        def run() -> Run:
            self._live.running.run()
            return self._live.session.result()

        return self._ask(run)

    def run_to(self, task: AnyTask) -> Task | None:
        """Runs what comes before a task, or up to what stops a run. Returns the current task.

        Raises:
            ValueError: it has run, or is not going to.
        """
        self._ask(lambda: self._live.running.run_to(_task(task)))
        return self.current

    def step_over(self) -> Task | None:
        """Runs until all tasks of the current task's innermost module call have run, the calls in it included; one task
        where no capture saw the call. Stops early at what stops a run. Returns the current task.

        Raises:
            RuntimeError: no task is left, or the session is over. And what a task raises.
        """
        self._ask(self._live.running.step_over)
        return self.current

    def step_out(self) -> Task | None:
        """The same for the call around it: at the top to the end."""
        self._ask(lambda: self._live.running.step_over(out=1))
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
        return self._ask(self._live.compare_branches)

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
        self._ask(lambda: self._live.edits.restore(task))

    def check(self, task: AnyTask | None = None) -> Check:
        """Compares a task's backward with finite differences of its forward operation; see `Check`.

        The forward's inputs must be there: `th.capture(keep_inputs=True)` keeps them.
        """
        return self._ask(lambda: self._live.edits.check(task))

    def switch(self, policy: AnyPolicy) -> None:
        """Lets another policy pick from here on: a name, a `Policy` or a callable.

        Raises:
            ValueError: no policy has this name.
        """
        self._ask(lambda: self._live.switch(policy))

    def predict_memory(self) -> None:
        """Asks each task what it would allocate, as `th.simulate` does, for the memory of all policies.

        Done unasked, before `th.debug` returns, on graphs of up to 5,000 tasks.

        Raises:
            ValueError: that can't be: a task has run already, or the backward gets a graph of its own.
        """
        self._ask(self._live.predict)

    def compare(self, policies: Sequence[AnyPolicy]) -> Prediction:
        """The memory that this graph would take under several policies, from the start on. Nothing runs.

        Raises:
            ValueError: the memory was not predicted, see `predict_memory`; or a policy decides as the backward runs.
        """
        return self._look(lambda: self._live.plan.compare(policies))

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
        """Writes what has run as a trace file, for `th.load` and `tapehead view`; see `Run.save`."""
        return self._look(self._live.session.result).save(path)

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

    def packed(self) -> bytes:
        return self._live.document.packed()

    def moment(self) -> Moment:
        return Moment(self.policy, self.position, len(self._live.plan.order), self._live.plan.timelines())

    def _edit(self, change: Callable[[Stepper | NativeSession], object], task: AnyTask | None) -> None:
        self._ask(lambda: self._live.edits.edit(lambda: change(self._live.session), task))

    def _moved(self, command: Callable[[], object]) -> Task | None:
        self._ask(command)
        return self.current

    def _now(self, change: Callable[[], T]) -> T:
        """Changes breakpoints or watchpoints, in the driver's thread, between two tasks if one runs."""
        __tracebackhide__ = True
        live = self._live
        if live.is_current_thread:
            return live.change_stops(change)
        return self._wait(live.driver.soon(lambda: live.change_stops(change)))

    def _ask(self, command: Callable[[], T]) -> T:
        """Has the driver run a command and waits for the result."""
        __tracebackhide__ = True
        if self._live.is_current_thread:
            raise RuntimeError(
                "called in the thread that runs the deck, from a hook or an observer, where it would wait for itself; "
                "call deck.stop() there, and go on from outside"
            )
        return self._wait(self._live.driver.do(command))

    def _look(self, command: Callable[[], T]) -> T:
        """As `_ask`, for what runs nothing: hooks and observers may look, too."""
        return command() if self._live.is_current_thread else self._ask(command)

    def _wait(self, future: Future[T]) -> T:
        __tracebackhide__ = True  # IPython leaves such frames out of what it shows
        try:
            while not future.done():
                with suppress(TimeoutError):
                    future.exception(HEARS_SIGNALS_S)
            return future.result()
        except KeyboardInterrupt:
            self._live.stop()
            future.cancel()
            raise
        except CancelledError:
            raise RuntimeError("the deck was closed before this began") from None
        finally:
            del future  # else an error would hold itself through this frame

    def _take(self, news: News) -> None:
        """What the live session has to tell, to the page and to the traits.

        What an observer of the user's raises, is raised when all traits are set.
        """
        with self._telling:
            self._forgotten.update(news.forgotten)
            self._checks.update(news.checks)
            self._replayed.update(news.replayed)
            self._branches = self._branches if news.branches is None else news.branches
            self._live.document.content |= {
                "branches": self._branches,
                "checks": self._checks.copy(),
                "replayed": self._replayed.copy(),
            }
            if news.groups is not None:
                self._live.document.content["groups"] = news.groups
            self._told = replace(
                news,
                records={},
                forgotten=(),
                live=None,
                others=None,
                checks={},
                branches=None,
                groups=None,
                replayed={},
            )
            self._live.document.take(news.position, news.records, news.live, news.others, news.forgotten)
            self._send_news(news)
        raised: list[Exception] = []
        # Not under hold_sync, which would hold back, and may lose, what another thread sets meanwhile.
        # Each value as it is then: an observer of one before it may have changed it.
        for name, value in (
            ("position", lambda: news.position),
            ("current_task", lambda: news.current),
            ("status", lambda: news.status),
            ("policy", lambda: self._live.session.policy),
            ("why_stopped", lambda: "" if news.stopped is None else news.stopped["text"]),
            ("_stops", lambda: self._live.stops.rows),
            ("breakpoints", self._breakpoints_now),
        ):
            try:
                self.set_trait(name, value())
            except Exception as error:
                raised.append(error)
        self._still.update(self.moment(), repr(self))
        if raised:
            raise raised[0]

    def _send_news(self, news: News) -> None:
        content = {name: getattr(news, name) for name in News.__slots__}
        self.send({"kind": "news"}, [packed(content | {"metas": self._live.document.metas})])

    def _greet(self, revision: int) -> None:
        """A page has opened: it hears how things are, and what it has missed since its document was packed."""
        with self._telling:
            content, news = self._live.document.content, self._told
            if content["revision"] != revision:
                live, *others = content["schedules"]
                forgotten = tuple(sorted(self._forgotten))
                records = content["records"].copy()
                groups = content["groups"]
                news = replace(news, forgotten=forgotten, records=records, live=live, others=others, groups=groups)
            self._send_news(
                replace(news, checks=self._checks.copy(), branches=self._branches, replayed=self._replayed.copy())
            )

    @traitlets.validate("policy")
    def _check_policy(self, proposal: Any) -> str:
        name = str(proposal["value"])
        if name != self._live.session.policy:
            if (over := self._live.session.over) is not None:
                raise session_over(over)
            self._live.plan.find(name)
        return name

    @traitlets.observe("policy")
    def _switch(self, change: Any) -> None:
        told = self._live.driver.is_current_thread and change["new"] == self._live.session.policy
        if not told and self.comm is not None:
            self._try(partial(self._live.switch, change["new"]))

    def _breakpoints_now(self) -> list[int]:
        """Those of the session; as the trait has them already, in whatever order, if it has."""
        found, known = self._live.stops.breakpoints, self.breakpoints
        return known if set(known) == set(found) else found

    @traitlets.validate("breakpoints")
    def _check_breakpoints(self, proposal: Any) -> list[int]:
        found: list[int] = proposal["value"]
        count = len(self.graph)
        for task_id in found:
            if not 0 <= task_id < count:
                raise ValueError(f"there is no task {task_id}; this graph has tasks 0 to {count - 1}")
        return found

    @traitlets.observe("breakpoints")
    def _set_breakpoints(self, change: Any) -> None:
        live, new, old = self._live, set(change["new"]), set(change["old"])
        if self.comm is not None and new != set(live.stops.breakpoints):
            live.stops.ask([each for each in change["new"] if each not in old], old - new)
            self._try_now(live.stops.take)

    def _try(self, command: Callable[[], object]) -> None:
        """Queues a command for whose result nobody waits."""
        self._live.driver.do(partial(self._live.attempt, command))

    def _try_now(self, change: Callable[[], object]) -> None:
        live = self._live
        live.driver.soon(partial(live.attempt, partial(live.change_stops, change)))

    def _hear(self, widget: ipywidgets.Widget, message: Any, buffers: object) -> None:
        """A message of the page. Only queues what it asks for: this may run in any thread."""
        match message:
            case {"kind": "hello", "revision": int(revision)}:
                self._greet(revision)
                return
            case {"kind": "stop"}:
                self._live.stop()
                return
        if (command := command_of(message, self._live)) is not None:
            self._try(command)
        elif (change := stop_change_of(message, self._live)) is not None:
            self._try_now(change)
        else:
            super()._hear(widget, message, buffers)
            return
        self.send({"kind": "heard"})


def _task(task: Task | ReadyTask | int) -> Task | int:
    return task.task if isinstance(task, ReadyTask) else task
