"""How a deck asks its live session for something, from whatever thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from ....engine.sessions.worker import HEARS_SIGNALS_S
from .live import Live

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
