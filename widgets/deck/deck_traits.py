"""The interface of a deck to its page, observers and other widgets: traits, and messages of the page."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import ipywidgets
import traitlets
from torch import nn

from ...engine.schedule.policy import AnyPolicy
from ...engine.session.breakpoints.breakpoints import Breakpoint
from ...engine.session.breakpoints.stop_list import session_over
from ...engine.session.direct_session import Stepper
from ...engine.session.engine_thread import HEARS_SIGNALS_S
from ...engine.session.native_session import NativeSession
from ...errors import ending_where_called
from ...inspector.graph.graph import Graph, Task
from ...inspector.validation import raise_no_attribute
from .live_publisher import News
from .live_session import Live
from .page_data import Json, title_of
from .player_widget import Played
from .still_picture import Moment
from .task_and_stop_syntax import is_typed_task, place, typed_task, watched

if TYPE_CHECKING:
    from ...engine.recompute.plan import RecomputePlan
    from ...engine.session.breakpoints.watchpoints import Watchpoint


_ELSEWHERE = {
    "result": "deck.run() returns a Run of the tasks that have run, and deck.save_trace(path) writes it",
    "save": "deck.save_trace(path) writes the tasks that have run, deck.save_html(path) the deck as a page",
    "interact": "buttons and methods drive a deck; in a script ts.debug(loss).interact() is a prompt",
    "keep_history": "ts.deck(loss, history=True) starts with a history, and deck.history has its cost",
    "left": "deck.status says whether it has finished; deck.position is the number of tasks that have run",
    "over": "deck.status says whether it has finished, failed or is closed",
    "needed": "deck.planned has the tasks that run",
    "next_on": "deck.step(device=...) runs the next task of a device",
    **dict.fromkeys(("picks", "queues", "together"), "deck.ready is the ready queue, deck.policy the policy's name"),
    **dict.fromkeys(
        ("footprints", "timeline", "timelines", "peak", "peak_bytes", "footprints_by_device", "with_memory"),
        "deck.compare([deck.policy]) predicts memory; ts.profile(make_loss) measures it, and its Run has {name}",
    ),
    **dict.fromkeys(
        [
            "accumulation",
            "elapsed_ns",
            "longest_queue",
            "queue_lengths",
            "report",
            "slowest",
            "to_pandas",
            "deck",
            "note",
            "late",
            "elsewhere",
        ],
        "deck.run() returns a Run of the tasks that have run, which has {name}",
    ),
    **dict.fromkeys(("next", "continue_", "cont", "resume", "play"), "deck.step() runs one task, deck.run() all"),
    "backward": "deck.run() runs the remaining tasks",
}
"""Attributes that users look for in a deck but that sessions or runs have, or that have another name here."""


T = TypeVar("T")


class Asking:
    """Runs commands in the driver's thread, and waits for results if they are needed."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def ask(self, command: Callable[[], T]) -> T:
        """Run a command in the driver's thread and return its result.

        Raises:
            RuntimeError: if called in the driver's thread. Errors of the command pass through.
        """
        __tracebackhide__ = True
        if self._live.is_current_thread:
            raise RuntimeError(
                "a hook or an observer called this in the thread that runs the deck, where it would wait for itself; "
                "call deck.stop() there, and continue from outside"
            )
        return self._wait(self._live.driver.do(command))

    def look(self, command: Callable[[], T]) -> T:
        """Like `ask`, for commands that run nothing; also allowed in hooks and observers."""
        return command() if self._live.is_current_thread else self.ask(command)

    def now(self, change: Callable[[], T]) -> T:
        """Change breakpoints or watchpoints in the driver's thread, between two tasks if one is running."""
        __tracebackhide__ = True
        live = self._live
        if live.is_current_thread:
            return live.change_stops(change)
        return self._wait(live.driver.soon(lambda: live.change_stops(change)))

    def later(self, command: Callable[[], object]) -> None:
        """Queue a command without waiting for its result."""
        self._live.driver.do(partial(self._live.attempt, command))

    def soon(self, change: Callable[[], object]) -> None:
        """Like `now`, without waiting for the result."""
        live = self._live
        live.driver.soon(partial(live.attempt, partial(live.change_stops, change)))

    def _wait(self, future: Future[T]) -> T:
        __tracebackhide__ = True  # hides this frame in IPython's tracebacks
        try:
            while not future.done():
                with suppress(TimeoutError):
                    future.exception(HEARS_SIGNALS_S)
            return future.result()
        except KeyboardInterrupt:
            self._live.driver.stop()
            future.cancel()
            raise
        except CancelledError:
            raise RuntimeError("the deck was closed before this command started") from None
        finally:
            del future  # an error would otherwise refer to itself through this frame


def command_of(message: Any, live: Live) -> Callable[[], object] | None:
    """Return the command that a message requests, to run between commands; None for other messages."""
    match message:
        case {"kind": "step", "device": str(device)}:
            return partial(live.running.step, 1, None, device)
        case {"kind": "step", "count": int(count)}:
            return partial(live.running.step, count)
        case {"kind": "step", "task": int(task)}:
            return partial(live.running.step, 1, task)
        case {"kind": "run"}:
            return live.running.run
        case {"kind": "run_to", "task": int(task)}:
            return partial(live.running.run_to, task)
        case {"kind": "policy", "policy": str(policy)}:
            return partial(live.switch, policy)
        case {"kind": "inspect", "task": int(task)}:
            return partial(live.edits.inspect, task)
        case {"kind": "groups"}:
            return live.find_groups
        case {"kind": "predict"}:
            return live.predict
        case {"kind": "step_over"}:
            return live.running.step_over
        case {"kind": "step_out"}:
            return partial(live.running.step_over, out=1)
        case {"kind": "rewind", "position": int(position)}:
            return partial(live.running.rewind, position)
        case {"kind": "branch", "number": int(number)}:
            return partial(live.running.goto, None, number)
        case {"kind": "edit", "how": str(how), "value": value}:
            return partial(live.edits.edit_from_page, how, value)
        case {"kind": "check", "task": int(task)}:
            return partial(live.edits.check, task)
    return None


def stop_change_of(message: Any, live: Live) -> Callable[[], object] | None:
    """Return the change of breakpoints or watchpoints that a message requests; None for other messages."""
    stops = live.session.stops
    match message:
        case {"kind": "break", "where": str(where)}:
            return partial(_break_at, where, live)
        case {"kind": "watch", "condition": str(condition)}:
            return partial(_watch_for, condition, live)
        case {"kind": "enable", "number": int(number), "on": bool(on)}:
            return partial(stops.enable if on else stops.disable, number)
        case {"kind": "delete", "number": int(number)}:
            return partial(stops.delete, number)
    return None


def _break_at(text: str, live: Live) -> Breakpoint:
    """Return a breakpoint for text typed by a user."""
    session = live.session
    if is_typed_task(text):
        return session.break_at(typed_task(text, session.graph, live.plan.order))
    return session.break_at(place(text))


def _watch_for(text: str, live: Live) -> Watchpoint:
    """Return a watchpoint for text typed by a user."""
    conditions, at = watched(text)
    return live.session.watch(*conditions, at=at)


class DeckTraits(Played):
    """A live session with its state as traits, and the handler of its page's messages.

    Args:
        session, policy, title, retain_graph, create_graph, recompute, model: see `Deck`, which also lists the traits.
    """

    position = traitlets.Int(read_only=True).tag(sync=True)
    current_task = traitlets.Int(None, allow_none=True, read_only=True).tag(sync=True)
    status = traitlets.Unicode(read_only=True).tag(sync=True)
    policy = traitlets.Unicode().tag(sync=True)
    why_stopped = traitlets.Unicode(read_only=True).tag(sync=True)
    _stops = traitlets.List(traitlets.Dict()).tag(sync=True)

    if not TYPE_CHECKING:  # for mypy, an unknown name would be of type Any

        @ending_where_called
        def __getattr__(self, name: str) -> Any:
            return raise_no_attribute(self, name, "a deck", _ELSEWHERE)

    def __init__(
        self,
        session: Stepper | NativeSession,
        *,
        policy: AnyPolicy = "heap",
        title: str = "",
        retain_graph: bool = False,
        create_graph: bool = False,
        recompute: RecomputePlan | None = None,
        model: nn.Module | None = None,
    ) -> None:
        found = title or title_of(session.graph)

        def send(content: Json, buffers: list[bytes]) -> None:
            self.send(content, buffers)

        self._live = Live(session, policy, found, retain_graph, create_graph, send, self._take, recompute)
        self._asking = Asking(self._live)
        if model is not None:
            self._live.document.note_missing(session.graph, model)
        super().__init__(session.graph, found, _is_live=True, policy=session.policy)
        self.set_trait("current_task", self._live.publisher.published.current)
        self.set_trait("status", self._live.publisher.published.status)
        live = self._live
        if not live.foresight.is_small:  # the other policies' schedules take a while for a large graph
            live.driver.do(lambda: live.publisher.tell(others=live.plan.others()))

    @property
    def graph(self) -> Graph:
        """The graph; without its nodes after the deck is closed or has failed."""
        return self._live.at.graph

    @property
    def current(self) -> Task | None:
        """The task that `step()` will run; None when all have run."""
        return None if self.current_task is None else self.graph.tasks[self.current_task]

    def packed(self) -> bytes:
        return self._live.document.packed()

    def moment(self) -> Moment:
        order, timelines = self._live.plan.order, self._live.plan.timelines()
        return Moment(
            self.policy,
            self.position,
            len(order),
            timelines,
            order,
            self.current_task,
            self.why_stopped.partition("\n")[0],
        )

    def _take(self, news: News) -> None:
        """Set the traits to the published state. An error of a user's observer is raised after all traits are set."""
        raised: list[Exception] = []
        # Without hold_sync, which would delay, and could lose, values that another thread sets at the same time.
        # Read each value when it is set, because an observer of an earlier one may have changed it.
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
        is_published = self._live.driver.is_current_thread and change["new"] == self._live.session.policy
        if not is_published and self.comm is not None:
            self._asking.later(partial(self._live.switch, change["new"]))

    def _breakpoints_now(self) -> list[int]:
        """Return the session's breakpoints, in the trait's order if they are the same."""
        found, known = self._live.stops.breakpoints, self.breakpoints
        return known if set(known) == set(found) else found

    @traitlets.validate("breakpoints")
    def _check_breakpoints(self, proposal: Any) -> list[int]:
        found: list[int] = proposal["value"]
        count = len(self.graph)
        for task_id in found:
            if not 0 <= task_id < count:
                raise ValueError(f"unknown task {task_id}; this graph has the tasks 0 to {count - 1}")
        return found

    @traitlets.observe("breakpoints")
    def _set_breakpoints(self, change: Any) -> None:
        live, new, old = self._live, set(change["new"]), set(change["old"])
        if self.comm is not None and new != set(live.stops.breakpoints):
            live.stops.ask([each for each in change["new"] if each not in old], old - new)
            self._asking.soon(live.stops.take)

    def _hear(self, widget: ipywidgets.Widget, message: Any, buffers: object) -> None:
        """Handle a message of the page by queuing a command, since this may run in any thread."""
        match message:
            case {"kind": "hello", "revision": int(revision)}:
                self._live.publisher.greet(revision)
                return
            case {"kind": "stop"}:
                self._live.driver.stop()
                return
        if (command := command_of(message, self._live)) is not None:
            self._asking.later(command)
        elif (change := stop_change_of(message, self._live)) is not None:
            self._asking.soon(change)
        else:
            super()._hear(widget, message, buffers)
            return
        self.send({"kind": "heard"})
