"""The deck: a backward that runs task by task, on the screen of a notebook."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anywidget
import ipywidgets.widgets.widget
import traitlets
from IPython.display import display
from torch import Tensor

from ..engine.direct import Stepper
from ..engine.policies import AnyPolicy, find_policy
from ..engine.ready_queue import ReadyTask
from ..engine.run import Run
from ..engine.session import NativeSession
from ..engine.trace import Trace
from ..inspector.graph import Graph, Task
from .display import forget, names_of
from .document import packed, title_of
from .live import Live, News
from .prediction import Prediction
from .still import Moment, Still

T = TypeVar("T")


class Deck(anywidget.AnyWidget):
    """A backward that you can look at: a session with the verbs of `Stepper`, shown as a widget.

    `th.debug(loss)` makes one in a notebook. Buttons and Python calls drive the same session, and both see the result.
    Tasks run in a thread of the deck's own, one command after the other; a call waits for its own. An interrupt (the
    notebook's stop button) lets the task under way end and leaves the deck open.

    It is an ipywidgets widget. These traits can be observed and linked; those marked * can be set, too:

    position: how many tasks have run.
    current_task: the id of the task that runs next; None at the end.
    status: "stopped", "running", "finished", "failed" or "closed".
    policy*: the name of the policy that picks; setting it lets another one go on from here.
    selection*: the id of the task that is looked at, or None.
    breakpoints*: the ids of the tasks before which `run` stops.

    Known limitations. `back` shows an earlier position; what has run stays run. Memory is predicted, not measured:
    `th.profile` measures. A backward whose hooks use thread-local state of the user's sees the deck's thread.
    """

    _esm = Path(__file__).parent / "static" / "deck.js"
    _id = traitlets.Unicode().tag(sync=True)
    _document = traitlets.Bytes().tag(sync=True)
    _is_live = traitlets.Bool(True).tag(sync=True)
    position = traitlets.Int(read_only=True).tag(sync=True)
    current_task = traitlets.Int(None, allow_none=True, read_only=True).tag(sync=True)
    status = traitlets.Unicode(read_only=True).tag(sync=True)
    policy = traitlets.Unicode().tag(sync=True)
    selection = traitlets.Int(None, allow_none=True).tag(sync=True)
    breakpoints = traitlets.List(traitlets.Int()).tag(sync=True)

    def __init__(
        self,
        session: Stepper | NativeSession,
        *,
        policy: AnyPolicy = "heap",
        title: str = "",
        retain_graph: bool = False,
    ) -> None:
        self._live = Live(session, policy, title or title_of(session.graph), retain_graph, self._take)
        self._shown = False
        current = session.current
        super().__init__(_id=uuid.uuid4().hex, _document=self._live.document.packed(), policy=session.policy)
        self.set_trait("current_task", None if current is None else current.id)
        self.set_trait("status", "stopped")
        self._still = Still(self._id, self._live.document.content["title"], session.graph)
        self.on_msg(self._hear)
        if self._live.predicts_unasked:
            self.predict_memory(wait=False)

    def __repr__(self) -> str:
        return (
            f"<Deck of {self.graph.tasks[self.graph.roots[0].task].name} under {self.policy}, "
            f"{self.engine} engine: {self.position} of {len(self._live.plan)} tasks have run, {self.status}>"
        )

    @property
    def graph(self) -> Graph:
        """The graph that is run."""
        return self._live.graph

    @property
    def engine(self) -> str:
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
        return self._ask(lambda: self._live.session.ready)

    @property
    def gradients(self) -> tuple[Tensor | None, ...]:
        """The gradients which the current task is going to get: its input buffer."""
        return self._ask(lambda: self._live.session.gradients)

    @property
    def trace(self) -> Trace | None:
        """What has been recorded so far."""
        return self._ask(lambda: self._live.session.trace)

    def step(self, task: Task | ReadyTask | int | None = None, *, count: int = 1) -> Task:
        """Runs one task, or `count`: the given one (with the direct engine any ready task), or the policy's choice.

        Stops early at a breakpoint. Returns the last task that ran.

        Raises:
            ValueError: the given task is not ready.
            NotImplementedError: the native engine can't run that task next.
            RuntimeError: no task is left, or the session is over. And what the task itself raises.
        """
        wanted = task.task if isinstance(task, ReadyTask) else task
        return self._ask(lambda: self._live.step(count, wanted))

    def run(self) -> Run:
        """Runs to the next breakpoint, or to the end. Returns what has run so far."""

        def run() -> Run:
            self._live.run()
            return self._live.session.result()

        return self._ask(run)

    def run_to(self, task: Task | ReadyTask | int) -> Task | None:
        """Runs what comes before a task, or up to a breakpoint. Returns the current task.

        Raises:
            ValueError: it has run, or is not going to.
        """
        wanted = task.task if isinstance(task, ReadyTask) else task
        self._ask(lambda: self._live.run_to(wanted))
        return self.current

    def stop(self) -> None:
        """Makes what runs end before the next task. May be called from anywhere, hooks included."""
        self._live.stop()

    def back(self, count: int = 1) -> None:
        """Shows the deck as it was so many tasks before. What has run stays run; `step` goes on from the front."""
        self.send({"kind": "back", "count": count})

    def waiting(self, task: Task | ReadyTask | int) -> tuple[Tensor | None, ...]:
        """The gradients in a task's input buffer, one per input number, None where nothing has come yet."""
        return self._ask(lambda: self._live.session.waiting(task))

    def replace(self, gradients: Tensor | Sequence[Tensor | None] | None) -> None:
        """Gives the current task these gradients, one per input number."""
        self._ask(lambda: self._live.replace(gradients))

    def switch(self, policy: AnyPolicy) -> None:
        """Lets another policy pick from here on: a name, a `Policy` or a callable."""
        self._ask(lambda: self._live.switch(find_policy(policy)))

    def predict_memory(self, wait: bool = True) -> None:
        """Asks each task what it would allocate, as `th.simulate` does, for the memory of all policies.

        Done unasked on graphs of up to 10,000 tasks; only possible before the first has run.
        """
        asked = self._live.driver.do(self._live.predict)
        if wait:
            self._wait(asked)

    def save_html(self, path: str | Path) -> Path:
        """Writes the deck as it is now as one page that plays without a kernel or a network."""
        from .page import save_page

        return save_page(self._ask(self._live.document.packed), Path(path), self._live.document.content["title"])

    def save_trace(self, path: str | Path) -> Path:
        """Writes what has run as a trace file, for `th.load` and `tapehead view`; see `Run.save`."""
        return self._ask(lambda: self._live.session.result()).save(path)

    def compare(self, policies: Sequence[AnyPolicy]) -> Prediction:
        """The memory that this graph would take under several policies, from the start on. Nothing runs.

        Raises:
            ValueError: the memory was not predicted, see `predict_memory`.
        """
        return self._ask(lambda: self._live.compare(policies))

    def close(self) -> None:
        """Ends the session, lets the graph's nodes go, and takes the widget from the page."""
        if not sys.is_finalizing():
            forget(self)
            self._live.driver.drop()
            self._live.close()
        super().close()

    def _ipython_display_(self, **kwargs: Any) -> None:
        data, metadata = self._repr_mimebundle_(**kwargs)
        display(data, metadata=metadata, raw=True)
        self._still.show(self._moment, repr(self))

    def _moment(self) -> Moment:
        return Moment(self.policy, self.position, len(self._live.plan), self._live.timelines())

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """A page that is loaded anew asks for everything: it gets today's document, not the first one."""
        if key is None and hasattr(self, "_live") and self._live.status != "running" and self.comm is not None:
            with self.hold_trait_notifications():
                self._trait_values["_document"] = self._live.document.packed()
        return super().get_state(key, drop_defaults)

    @property
    def is_shown(self) -> bool:
        """Whether it has been displayed, by itself or inside another widget."""
        if self._shown:
            return True
        return any(
            self in getattr(other, "children", ()) for other in list(ipywidgets.widgets.widget._instances.values())
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        self._shown = True
        return super()._repr_mimebundle_(**kwargs)

    def _ask(self, command: Callable[[], T]) -> T:
        """Has the driver run a command and waits for the result."""
        if self._live.driver.is_current_thread:
            raise RuntimeError(
                "called from inside the backward that the deck runs, from a hook; call deck.stop() there, and go on "
                "from outside when the task has ended"
            )
        return self._wait(self._live.driver.do(command))

    def _wait(self, future: Future[T]) -> T:
        try:
            return future.result()
        except KeyboardInterrupt:
            self._live.stop()
            future.cancel()
            raise

    def _take(self, news: News) -> None:
        """What the live session has to tell, to the traits and to the page."""
        document = self._live.document
        content: dict[str, Any] = {"kind": "news", "metas": document.tables["metas"], **asdict(news)}
        if news.schedules is not None:
            document.content["schedules"] = news.schedules
        document.content["position"] = news.position
        with self.hold_sync():
            self.set_trait("position", news.position)
            self.set_trait("current_task", news.current)
            self.set_trait("status", news.status)
            self.policy = self._live.session.policy
        self.send({"kind": "news"}, [packed(content)])
        if news.schedules is not None:
            self._still.update(self._moment, repr(self))

    @traitlets.validate("policy")
    def _check_policy(self, proposal: Any) -> str:
        name = proposal["value"]
        if name != self._live.session.policy:
            find_policy(name)
        return str(name)

    @traitlets.observe("policy")
    def _switch(self, change: Any) -> None:
        if change["new"] != self._live.session.policy:
            self._live.driver.do(lambda: self._live.switch(change["new"]))

    @traitlets.observe("breakpoints")
    def _set_breakpoints(self, change: Any) -> None:
        self._live.breakpoints = frozenset(change["new"])

    def _hear(self, _: object, message: Any, buffers: object) -> None:
        """A message of the page. Only queues what it asks for: this may run in any thread."""
        live = self._live
        match message:
            case {"kind": "stop"}:
                live.stop()
                return
            case {"kind": "unseen"}:
                if not names_of(self):
                    self.close()
                return
            case {"kind": "step", "count": int(count)}:
                command = partial(live.step, count)
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
                return
        live.driver.do(partial(live.attempt, command))
        self.send({"kind": "heard"})
