"""The session debugged at a prompt, with the operations that the prompt's commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeGuard

from torch import Tensor

from ...engine.session.breakpoints.breakpoints import Stop
from ...engine.session.direct_session import Stepper
from ...inspector.graph.graph import Task
from ...inspector.text.option_form import as_options
from ...inspector.validation import a_kind
from ..deck.task_and_stop_syntax import run_of, typed_task
from . import tables as tables
from .console import ArgumentError, Interrupt, first_interrupt, say, show, split_task
from .expressions import Names, compiled, test_of
from .stops import PromptStops, Session
from .user_traceback import users_traceback


class Debuggee:
    """The session debugged at a prompt, with the operations that its commands share.

    Args:
        names: the variables that expressions can use.

    Attributes:
        session: the session, of either engine.
        stops: the prompt's breakpoints and watchpoints, which are kept for later sessions.
        error: the exception raised by a task, which ended the session; None if there was none.
    """

    session: Session

    def __init__(self, names: Names) -> None:
        self.names = names
        self.stops = PromptStops()
        self.error: BaseException | None = None
        self._stopped_for: int | None = None  # id of the task for which a watchpoint stopped the last run

    def enter(self, session: Session) -> None:
        """Use this session for all following commands."""
        self.session, self.error, self._stopped_for = session, None, None
        for line in self.stops.enter(session):
            print(f"tapescope: {line}", file=sys.stderr)

    def greet(self) -> None:
        """Print the size of the backward, its policy and engine, and the current task."""
        engine = "direct" if goes_back(self.session) else "native"
        count = len(self.session.graph)
        say(f"{count:,} tasks under {self.session.policy}, {engine} engine; help lists the commands", style="dim")
        show(tables.place_view(self.session))

    def show_stop(self, stop: Stop | None) -> None:
        """Print why the run stopped, and the current task."""
        if stop is not None:
            show(tables.stop_view(stop))
            self.stops.delete_if_once(stop.number)
        self._stopped_for = stop.task if stop is not None and stop.why == "watchpoint" else None
        show(tables.place_view(self.session))

    def run(self, verb: Callable[[], object]) -> None:
        """Run tasks until the session stops."""

        def run(interrupt: Interrupt) -> Stop | None:
            verb()
            return self.session.stopped

        self.go(run)

    def go(self, run: Callable[[Interrupt], Stop | None], stops_itself: bool = False) -> None:
        """Run tasks with Ctrl-C handled, then print where and why they stopped.

        Args:
            run: runs the tasks and returns the reason for stopping.
            stops_itself: whether `run` checks for Ctrl-C between tasks, so that the session need not be stopped.
        """
        session = self.session
        was_over = session.over
        stop = None
        try:
            with first_interrupt((lambda: None) if stops_itself else session.stop) as interrupt:
                stop = run(interrupt)
        except BaseException as error:
            # An error of a task ends the session. If the session is still open, the command itself was wrong.
            if was_over is not None or session.over is None:
                raise  # no task ran, so the error is about the command
            self.error = error
            say(*users_traceback(error).splitlines(), style="red")
            say(f"*** the session is over: {session.over}; finished tasks can still be inspected", style="red")
            return
        if interrupt.pressed and (stop is None or stop.why == "asked"):
            say("interrupted", style="bold yellow")
            stop = None
        self.show_stop(stop)

    def show_gradients(self, task: Task) -> None:
        try:
            gradients = self.session.waiting(task)
        except (NotImplementedError, RuntimeError) as error:
            say(f"  {message_of(error)}", style="dim")
        else:
            show(tables.gradients_table(gradients, task.inputs))

    def direct(self, what: str) -> Stepper:
        if not goes_back(self.session):
            raise NotImplementedError(
                f"{what} needs the direct engine, because PyTorch's engine cannot undo tasks; use ts.debug(loss) or "
                "tapescope debug --engine direct"
            )
        return self.session

    def task(self, text: str) -> Task:
        return typed_task(text, self.session.graph, run_of(self.session))

    def task_or_current(self, text: str) -> Task:
        """Return the named task, or the current one if the text is empty."""
        if text:
            return self.task(text)
        current = self.session.current
        if current is None:
            raise ValueError(
                f"there is no current task, because {tables.ended_text(self.session)}; name a task, such as 53rd"
            )
        return current

    def task_to_show(self, text: str) -> Task:
        """Return the named task, else the one that a watchpoint just reported, else the current one."""
        return self.task_or_current(text or ("" if self._stopped_for is None else f"#{self._stopped_for}"))

    def factor(self, arg: str) -> tuple[float, Task]:
        expression, *rest = split_task(arg)
        value = self.value(expression)
        if isinstance(value, bool) or not isinstance(value, int | float):
            found = a_kind(value) if isinstance(value, Tensor) else repr(value)
            raise ArgumentError(f"expected a number, got {found}")
        return value, self.task_or_current(rest[0] if rest else "")

    def value(self, expression: str) -> Any:
        code = compiled(expression)
        try:
            return self.names.value(code, self.own_names())
        except Exception as error:
            raise ValueError(error_text(error)) from error

    def known(self) -> dict[str, Any]:
        return self.names.all(self.own_names())

    def own_names(self) -> dict[str, Any]:
        session = self.session
        current = session.current if session.over is None else None
        gradients = () if current is None else session.gradients
        return {"session": session, "task": current, "gradients": gradients}

    def test(self, expression: str) -> Callable[..., Any]:
        return test_of(compiled(expression), lambda: self.names, "task", "gradients")

    def watch_test(self, expression: str) -> Callable[..., Any]:
        return test_of(compiled(expression), lambda: self.names, "gradient", "task")


def goes_back(session: Session) -> TypeGuard[Stepper]:
    """Return whether the session uses the direct engine, which can undo tasks."""
    return isinstance(session, Stepper)


def message_of(error: Exception) -> str:
    """Return an error's message, or its type if the message is empty."""
    if isinstance(error, OSError) and error.filename is not None:  # without its number
        return f"{error.filename}: {error.strerror}"
    return as_options(error) or type(error).__name__


def error_text(error: Exception) -> str:
    """Return an error's type and message."""
    message = str(error)
    return f"{type(error).__name__}{': ' if message else ''}{message}"
