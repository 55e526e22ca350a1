"""The driver of a deck's session: runs one command after the other in a thread that lives as long as there are any."""

from __future__ import annotations

import atexit
import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock, current_thread
from typing import Any, TypeVar
from weakref import WeakSet

from ...inspector.text.progress import quiet
from ...inspector.threads import DaemonThread
from ...inspector.torch_private.thread_state import ThreadState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Command:
    """A command, its future, and the number of calls of `stop` when it was queued."""

    future: Future[Any]
    call: Callable[[], Any]
    stops: int


class Driver:
    """Runs commands in order of arrival, from any thread.

    Only the driver runs a session, because handlers of a page's messages may be called in any thread and must not block
    the kernel's main thread. Its thread takes over the state of the thread that created the driver: grad mode,
    autocast, modes, streams (`ThreadState`) and context variables.

    Raises:
        NotImplementedError: that thread has state that another thread cannot adopt.
    """

    def __init__(self) -> None:
        try:
            self._state = ThreadState()
        except NotImplementedError as error:
            raise NotImplementedError(
                f"a deck runs the backward in a separate thread, which cannot adopt {error}"
            ) from None
        self._context = contextvars.copy_context()
        self._commands: deque[_Command] = deque()
        self._small: deque[_Command] = deque()
        self._lock = Lock()
        self._thread: DaemonThread | None = None
        self._stops = 0
        self._under_way: _Command | None = None
        _drivers.add(self)

    @property
    def is_current_thread(self) -> bool:
        return current_thread() is self._thread

    def do(self, call: Callable[[], T]) -> Future[T]:
        """Queue a command. Never waits."""
        with self._lock:
            return self._queue(self._commands, call)

    def soon(self, call: Callable[[], T]) -> Future[T]:
        """Queue a short command before all others. A running command executes it in `give_way`."""
        with self._lock:
            return self._queue(self._small, call)

    def give_way(self) -> None:
        """Execute the commands queued by `soon`; called within a running command."""
        while self._small:
            with self._lock:
                command = self._small.popleft() if self._small else None
            if command is not None:
                _run(command)

    def finish(self, call: Callable[[], T]) -> Future[T]:
        """Stop the running command, drop queued ones, and queue a last command, atomically."""
        with self._lock:
            self._drop()
            self._stops += 1
            return self._queue(self._commands, call)

    def _queue(self, queue: deque[_Command], call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        queue.append(_Command(future, call, self._stops))
        if self._thread is None or not self._thread.is_at_work:  # an interrupt may have kept it from starting
            ended = [each for each in _threads.copy() if each.ended.is_set() and not each.is_alive()]
            _threads.difference_update(ended)
            self._thread = thread = DaemonThread(self._main, "tapescope deck")
            try:
                thread.start()
            finally:  # the thread may run even if an interrupt ends `start`
                _threads.add(thread)
        return future

    def stop(self) -> None:
        """Request the running and queued commands to end early. Later commands are not affected."""
        self._stops += 1

    @property
    def stop_asked(self) -> bool:
        """True if the running command should end."""
        command = self._under_way
        return command is not None and command.stops != self._stops

    def drop(self) -> None:
        """Cancel queued commands; their futures raise CancelledError."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        for queue in (self._small, self._commands):
            for command in queue:
                command.future.cancel()
            queue.clear()

    def _main(self) -> None:
        try:
            self._context.copy().run(self._run)
        except BaseException as error:  # the thread's state could not be entered or left: end all waiting calls
            self._fail(error)

    def _run(self) -> None:
        __tracebackhide__ = True  # hides this frame in IPython's tracebacks
        with self._state.entered(), quiet():  # without progress lines: the deck shows progress
            while (command := self._next()) is not None:
                self._under_way = command
                _run(command, self._done)
                del command  # release its arguments before the next one runs

    def _done(self) -> None:
        self._under_way = None

    def _next(self) -> _Command | None:
        with self._lock:
            if not self.is_current_thread:  # another one was started in its place
                return None
            queue = self._small or self._commands
            if not queue:
                self._thread = None
                return None
            return queue.popleft()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self.is_current_thread:
                self._thread = None
            for queue in (self._small, self._commands):
                for command in queue:
                    if command.future.set_running_or_notify_cancel():
                        command.future.set_exception(error)
                queue.clear()


def _run(command: _Command, done: Callable[[], None] = lambda: None) -> None:
    """Run a command and set the result or error of its future. `done` is called before that."""
    __tracebackhide__ = True
    if not command.future.set_running_or_notify_cancel():
        return
    try:
        result = command.call()
    except BaseException as error:
        done()
        command.future.set_exception(error)
    else:
        done()
        command.future.set_result(result)


_drivers: WeakSet[Driver] = WeakSet()
_threads: set[DaemonThread] = set()  # a thread without commands may still be freeing torch's thread-local state


@atexit.register
def _end_all() -> None:
    """End all threads at exit: no thread may be inside torch when the interpreter is finalized."""
    for driver in list(_drivers):
        driver.drop()
        driver.stop()
    for thread in _threads.copy():
        if thread.begun.is_set():
            thread.join(timeout=5)
