"""The deck: a backward that runs task by task, on the screen of a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeVar

import ipywidgets
import traitlets
from torch import Tensor

from ..engine.closing import session_over
from ..engine.direct import Stepper
from ..engine.policies import AnyPolicy
from ..engine.ready_queue import ReadyTask
from ..engine.run import Run
from ..engine.session import NativeSession
from ..engine.trace import Trace
from ..inspector.graph import Graph, Task
from .display import forget
from .document import packed, title_of
from .live import Live, News
from .page import save_page
from .played import Played
from .prediction import Prediction
from .still import Moment

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
    breakpoints*: the ids of the tasks before which `run` stops.

    Observers are called in the deck's thread: there the deck can be looked at, stopped and closed, but runs nothing.

    Known limitations. `back` shows an earlier position; what has run stays run. Memory is predicted, not measured:
    `th.profile` measures. A backward whose hooks use thread-local state of the user's sees the deck's thread. A user's
    policy is asked for whole orders ahead, to show them; one that draws lots shows what it drew.

    Args:
        session: of either engine, nothing run yet. The deck runs it from now on, and closes it.
        policy: its policy: a name, a `Policy` or a callable.
        title: what is run; by default the model's class.
        retain_graph, create_graph: as given to the backward, for the prediction of memory.
    """

    position = traitlets.Int(read_only=True).tag(sync=True)
    current_task = traitlets.Int(None, allow_none=True, read_only=True).tag(sync=True)
    status = traitlets.Unicode(read_only=True).tag(sync=True)
    policy = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        session: Stepper | NativeSession,
        *,
        policy: AnyPolicy = "heap",
        title: str = "",
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        found = title or title_of(session.graph)
        self._live = Live(session, policy, found, retain_graph, create_graph, self._take)
        self._told = self._live.news()
        self._telling = Lock()
        super().__init__(session.graph, found, _is_live=True, policy=session.policy)
        self.set_trait("current_task", self._told.current)
        self.set_trait("status", self._told.status)
        if not self._live.is_small:
            self._live.driver.do(self._live.foresee)

    def __repr__(self) -> str:
        return (
            f"<Deck of {self.graph.tasks[self.graph.roots[0].task].name} under {self.policy}, "
            f"{self.engine} engine: {self.position} of {len(self._live.plan)} tasks have run, {self.status}>"
        )

    @property
    def graph(self) -> Graph:
        """The graph that is run; without its nodes once the deck is closed, or has failed."""
        return self._live.graph

    @property
    def engine(self) -> str:
        """`direct` or `native`."""
        return self._live.engine

    @property
    def order(self) -> list[int]:
        """The ids of the tasks that have run."""
        return list(self._live.session.order)

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

    def waiting(self, task: Task | ReadyTask | int) -> tuple[Tensor | None, ...]:
        """The gradients in a task's input buffer, one per input number, None where nothing has come yet.

        Raises:
            NotImplementedError: the native engine shows those of the current task alone.
        """
        return self._look(lambda: self._live.session.waiting(task))

    def step(self, task: Task | ReadyTask | int | None = None, *, count: int = 1) -> Task:
        """Runs one task, or `count`: the given one (with the direct engine any ready task), or the policy's choice.

        Stops early at a breakpoint. Returns the last task that ran.

        Raises:
            ValueError: the given task is not ready.
            NotImplementedError: the native engine can't run that task next.
            RuntimeError: no task is left, or the session is over. And what the task itself raises.
        """
        return self._ask(lambda: self._live.step(count, None if task is None else _task(task)))

    def run(self) -> Run:
        """Runs to the next breakpoint, or to the end. Returns what has run so far.

        Raises:
            RuntimeError: the session is over. And what a task raises.
        """

        def run() -> Run:
            self._live.run()
            return self._live.session.result()

        return self._ask(run)

    def run_to(self, task: Task | ReadyTask | int) -> Task | None:
        """Runs what comes before a task, or up to a breakpoint. Returns the current task.

        Raises:
            ValueError: it has run, or is not going to.
        """
        self._ask(lambda: self._live.run_to(_task(task)))
        return self.current

    def stop(self) -> None:
        """Makes what runs, or waits to, end before the next task. May be called from anywhere, hooks included."""
        self._live.stop()

    def back(self, count: int = 1) -> None:
        """Shows the deck as it was so many tasks before. What has run stays run; `step` goes on from the front.

        Raises:
            ValueError: count is less than 1.
            RuntimeError: the deck is closed.
        """
        if count < 1:
            raise ValueError(f"back({count}): the number of tasks to go back must be at least 1")
        if self.status == "closed":
            raise session_over("closed")
        self.send({"kind": "back", "count": count})

    def replace(self, gradients: Tensor | Sequence[Tensor | None] | None) -> None:
        """Gives the current task these gradients, one per input number.

        Raises:
            ValueError: their number, shape, dtype, device or layout differs, or one is given where none came.
            TypeError: one is no tensor.
        """
        self._ask(lambda: self._live.replace(gradients))

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
        return self._look(lambda: self._live.compare(policies))

    def save_html(self, path: str | Path) -> Path:
        """Writes the deck as it is now as one page that plays without a kernel or a network."""
        document = self._live.document
        return save_page(document.packed(), Path(path), document.content["title"])

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
        return Moment(self.policy, self.position, len(self._live.plan), self._live.timelines())

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
            self._told = replace(news, records={}, live=None, others=None)
            self._live.document.take(news.position, news.records, news.live, news.others)
            self._send_news(news)
        raised: list[Exception] = []
        # Not under hold_sync, which would hold back, and may lose, what another thread sets meanwhile.
        for name, value in (
            ("position", news.position),
            ("current_task", news.current),
            ("status", news.status),
            ("policy", self._live.session.policy),
        ):
            try:
                self.set_trait(name, value)
            except Exception as error:
                raised.append(error)
        if news.others is not None:
            self._still.update(self.moment, repr(self))
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
                news = replace(news, records=content["records"].copy(), live=live, others=others)
            self._send_news(news)

    @traitlets.validate("policy")
    def _check_policy(self, proposal: Any) -> str:
        name = str(proposal["value"])
        if name != self._live.session.policy:
            if (over := self._live.session.over) is not None:
                raise session_over(over)
            self._live.find(name)
        return name

    @traitlets.observe("policy")
    def _switch(self, change: Any) -> None:
        told = self._live.driver.is_current_thread and change["new"] == self._live.session.policy
        if not told and self.comm is not None:
            self._try(partial(self._live.switch, change["new"]))

    @traitlets.observe("breakpoints")
    def _set_breakpoints(self, change: Any) -> None:
        self._live.breakpoints = frozenset(change["new"])

    def _try(self, command: Callable[[], object]) -> None:
        """Queues a command for whose result nobody waits."""
        self._live.driver.do(partial(self._live.attempt, command))

    def _hear(self, widget: ipywidgets.Widget, message: Any, buffers: object) -> None:
        """A message of the page. Only queues what it asks for: this may run in any thread."""
        live = self._live
        match message:
            case {"kind": "hello", "revision": int(revision)}:
                self._greet(revision)
                return
            case {"kind": "stop"}:
                live.stop()
                return
            case {"kind": "step", "count": int(count)}:
                command: Callable[[], object] = partial(live.step, count)
            case {"kind": "step", "task": int(task)}:
                command = partial(live.step, 1, task)
            case {"kind": "run"}:
                command = live.run
            case {"kind": "run_to", "task": int(task)}:
                command = partial(live.run_to, task)
            case {"kind": "policy", "policy": str(policy)}:
                command = partial(live.switch, policy)
            case {"kind": "inspect", "task": int(task)}:
                command = partial(live.inspect, task)
            case _:
                super()._hear(widget, message, buffers)
                return
        self._try(command)
        self.send({"kind": "heard"})


def _task(task: Task | ReadyTask | int) -> Task | int:
    return task.task if isinstance(task, ReadyTask) else task
