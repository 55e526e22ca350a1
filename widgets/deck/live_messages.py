"""Messages between a deck's page and its live session."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from ...engine.session.breakpoints.breakpoints import Breakpoint
from ...engine.session.engine_thread import HEARS_SIGNALS_S
from .live_session import Live
from .live_state import News
from .page_data import Document, Json, packed
from .task_and_stop_syntax import is_typed_task, place, typed_task, watched

if TYPE_CHECKING:
    from ...engine.session.breakpoints.watchpoints import Watchpoint

T = TypeVar("T")


class Asking:
    """Has the driver's thread do what is asked for, and waits for it where somebody wants the result."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def ask(self, command: Callable[[], T]) -> T:
        """Has the driver run a command and waits for the result.

        Raises:
            RuntimeError: in the driver's thread. And what the command raises.
        """
        __tracebackhide__ = True
        if self._live.is_current_thread:
            raise RuntimeError(
                "called in the thread that runs the deck, from a hook or an observer, where it would wait for itself; "
                "call deck.stop() there, and go on from outside"
            )
        return self._wait(self._live.driver.do(command))

    def look(self, command: Callable[[], T]) -> T:
        """As `ask`, for what runs nothing: hooks and observers may look, too."""
        return command() if self._live.is_current_thread else self.ask(command)

    def now(self, change: Callable[[], T]) -> T:
        """Changes breakpoints or watchpoints, in the driver's thread, between two tasks if one runs."""
        __tracebackhide__ = True
        live = self._live
        if live.is_current_thread:
            return live.change_stops(change)
        return self._wait(live.driver.soon(lambda: live.change_stops(change)))

    def later(self, command: Callable[[], object]) -> None:
        """Queues a command for whose result nobody waits."""
        self._live.driver.do(partial(self._live.attempt, command))

    def soon(self, change: Callable[[], object]) -> None:
        """As `now`, for a change for whose result nobody waits."""
        live = self._live
        live.driver.soon(partial(live.attempt, partial(live.change_stops, change)))

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


def command_of(message: Any, live: Live) -> Callable[[], object] | None:
    """What a message wants done, between two commands; None: it is none of these."""
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
            return partial(live.edits.edit_as_told, how, value)
        case {"kind": "check", "task": int(task)}:
            return partial(live.edits.check, task)
    return None


def stop_change_of(message: Any, live: Live) -> Callable[[], object] | None:
    """What a message wants changed of breakpoints and watchpoints, also while tasks run; None: it is none of these."""
    stops = live.session.stops
    match message:
        case {"kind": "break", "where": str(where)}:
            return partial(_break_where, where, live)
        case {"kind": "watch", "condition": str(condition)}:
            return partial(_watch_for, condition, live)
        case {"kind": "enable", "number": int(number), "on": bool(on)}:
            return partial(stops.enable if on else stops.disable, number)
        case {"kind": "delete", "number": int(number)}:
            return partial(stops.delete, number)
    return None


def _break_where(text: str, live: Live) -> Breakpoint:
    """A breakpoint where a person has typed."""
    session = live.session
    if is_typed_task(text):
        return session.break_at(typed_task(text, session.graph, live.plan.order))
    return session.break_at(place(text))


def _watch_for(text: str, live: Live) -> Watchpoint:
    """A watchpoint of what a person has typed."""
    conditions, at = watched(text)
    return live.session.watch(*conditions, at=at)


class Telling:
    """Passes news on to the document and to the pages, and remembers what a page needs that missed some.

    Args:
        document: the page's data.
        told: how the session stands.
        send: sends a message with its buffers to all pages.
    """

    def __init__(self, document: Document, told: News, send: Callable[[Json, list[bytes]], None]) -> None:
        self._document = document
        self._told = told
        self._send_message = send
        self._forgotten: set[int] = set()
        self._checks: Json = {}
        self._replayed: Json = {}
        self._branches: list[Json] = []
        self._lock = Lock()

    def take(self, news: News) -> None:
        """Something has happened."""
        with self._lock:
            self._forgotten.update(news.forgotten)
            self._checks.update(news.checks)
            self._replayed.update(news.replayed)
            self._branches = self._branches if news.branches is None else news.branches
            self._document.content |= {
                "branches": self._branches,
                "checks": self._checks.copy(),
                "replayed": self._replayed.copy(),
            }
            if news.groups is not None:
                self._document.content["groups"] = news.groups
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
            self._document.take(news.position, news.records, news.live, news.others, news.forgotten)
            self._send(news)

    def greet(self, revision: int) -> None:
        """A page has opened: it hears how things are, and what it has missed since its document was packed."""
        with self._lock:
            content, news = self._document.content, self._told
            if content["revision"] != revision:
                live, *others = content["schedules"]
                forgotten = tuple(sorted(self._forgotten))
                records = content["records"].copy()
                groups = content["groups"]
                news = replace(news, forgotten=forgotten, records=records, live=live, others=others, groups=groups)
            self._send(
                replace(news, checks=self._checks.copy(), branches=self._branches, replayed=self._replayed.copy())
            )

    def _send(self, news: News) -> None:
        content = {name: getattr(news, name) for name in News.__slots__}
        self._send_message({"kind": "news"}, [packed(content | {"metas": self._document.metas})])
