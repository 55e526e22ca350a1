"""What runs a deck's session: one command after the other, in a thread that lives only while there are any."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar

from ..inspector.torch_internals import ThreadState

T = TypeVar("T")


class Driver:
    """Runs commands in the order in which they come, from whatever thread.

    Handlers of a page's messages may be called in any thread, and the kernel's main one must stay free: so nobody runs
    a session but this. Its thread has the state of the thread that made the driver: grad mode, autocast, modes, streams
    (`ThreadState`).

    Raises:
        NotImplementedError: that thread has a state that can't be given to another one.
    """

    def __init__(self) -> None:
        try:
            self._state = ThreadState()
        except NotImplementedError as error:
            raise NotImplementedError(
                f"a deck runs the backward in a thread of its own, which can't be given {error}"
            ) from None
        self._context = contextvars.copy_context()
        self._commands: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = Lock()
        self._thread: Thread | None = None

    @property
    def is_current_thread(self) -> bool:
        return current_thread() is self._thread

    def do(self, command: Callable[[], T]) -> Future[T]:
        """Queues a command. Never waits."""
        future: Future[T] = Future()
        with self._lock:
            self._commands.append((future, command))
            if self._thread is None:
                self._thread = Thread(target=self._main, name="tapehead deck", daemon=True)
                self._thread.start()
        return future

    def drop(self) -> None:
        """Commands that have not begun never do."""
        with self._lock:
            for future, _ in self._commands:
                future.cancel()
            self._commands.clear()

    def join(self) -> None:
        """Waits until nothing is left to do."""
        thread = self._thread
        if thread is not None and not self.is_current_thread:
            thread.join()

    def _main(self) -> None:
        self._context.copy().run(self._run)

    def _run(self) -> None:
        with self._state.entered():
            while True:
                with self._lock:
                    if not self._commands:
                        self._thread = None
                        return
                    future, command = self._commands.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    result = command()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                del future, command
