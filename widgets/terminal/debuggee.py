"""What the commands of a prompt are about."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeGuard

from ...engine.sessions.stepper import Stepper
from ...engine.stops.stopped import Stop
from ...inspector.graph.graph import Task
from ..deck.typed_tasks import run_of, typed_task
from . import prompt_tables as tables
from .prompt_arguments import something, split_task
from .prompt_names import Names, compiled, test_of
from .prompt_stops import PromptStops, Session
from .prompt_terminal import Interrupt, first_interrupt, say, show
from .user_traceback import users_traceback


class Debuggee:
    """The session that a prompt is about, and what its commands share: running it, its tasks, what expressions name.

    Args:
        names: what expressions can name.

    Attributes:
        session: what is debugged, of either engine.
        stops: its breakpoints and watchpoints, which outlast it.
        error: what a task raised, which ended the session.
    """

    session: Session

    def __init__(self, names: Names) -> None:
        self.names = names
        self.stops = PromptStops()
        self.error: BaseException | None = None
        self._spoken_of: int | None = None  # the id of the task that a watchpoint has just stopped a run for

    def enter(self, session: Session) -> None:
        """From now on the commands are about this session."""
        self.session, self.error, self._spoken_of = session, None, None
        for line in self.stops.enter(session):
            print(f"tapescope: {line}", file=sys.stderr)

    def greet(self) -> None:
        """Says what is debugged, and where it stands."""
        engine = "direct" if goes_back(self.session) else "native"
        count = len(self.session.graph)
        say(f"{count:,} tasks under {self.session.policy}, {engine} engine; help lists the commands", style="dim")
        show(tables.place_view(self.session))

    def show_stop(self, stop: Stop | None) -> None:
        """Why it stands where it stands, and where that is."""
        if stop is not None:
            show(tables.stop_view(stop))
            self.stops.met(stop.number)
        self._spoken_of = stop.task if stop is not None and stop.why == "watchpoint" else None
        show(tables.place_view(self.session))

    def run(self, verb: Callable[[], object]) -> None:
        """Runs tasks until something stops it."""

        def run(interrupt: Interrupt) -> Stop | None:
            verb()
            return self.session.stopped

        self.go(run)

    def go(self, run: Callable[[Interrupt], Stop | None], stops_itself: bool = False) -> None:
        """Runs tasks while Ctrl-C stops them, and shows where they stopped and why. `run` gives that.

        Args:
            stops_itself: it asks between two tasks whether Ctrl-C was pressed.
        """
        session = self.session
        was_over = session.over
        stop = None
        try:
            with first_interrupt(_do_nothing if stops_itself else session.stop) as interrupt:
                stop = run(interrupt)
        except BaseException as error:
            if was_over is not None or session.over is None:
                raise  # nothing ran
            self.error = error
            say(*users_traceback(error).splitlines(), style="red")
            say(f"*** the session is over: {session.over}; what has run can still be looked at", style="red")
            return
        if interrupt.asked and (stop is None or stop.why == "asked"):
            say("interrupted", style="bold yellow")
            stop = None
        self.show_stop(stop)

    def show_gradients(self, task: Task) -> None:
        try:
            gradients = self.session.waiting(task)
        except (NotImplementedError, RuntimeError) as error:
            say(f"  {sentence(error)}", style="dim")
        else:
            show(tables.gradients_table(gradients, task.inputs))

    def direct(self, what: str) -> Stepper:
        if not goes_back(self.session):
            raise NotImplementedError(
                f"{what} needs the direct engine: PyTorch's own can't take a step back. ts.debug(loss), "
                "tapescope debug --engine direct"
            )
        return self.session

    def task(self, text: str) -> Task:
        return typed_task(text, self.session.graph, run_of(self.session))

    def about(self, text: str) -> Task:
        """The task that is meant: the current one if none is named."""
        if text:
            return self.task(text)
        current = self.session.current
        if current is None:
            raise ValueError(f"{tables.ended_text(self.session)}, so none is the current one; name one, as 53rd")
        return current

    def looked_at(self, text: str) -> Task:
        """The task that is meant: if none is named the one that a watchpoint has just found, or the current one."""
        return self.about(text or ("" if self._spoken_of is None else f"#{self._spoken_of}"))

    def factor(self, arg: str, usage: str) -> tuple[float, Task]:
        expression, *rest = split_task(something(arg, usage))
        value = self.value(expression)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{usage}: a number is needed, not {value!r}")
        return value, self.about(rest[0] if rest else "")

    def value(self, expression: str) -> Any:
        code = compiled(expression)
        try:
            return self.names.value(code, self.own_names())
        except Exception as error:
            raise ValueError(said(error)) from error

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
    """Whether it is one of the direct engine."""
    return isinstance(session, Stepper)


def sentence(error: Exception) -> str:
    """What it says; its type where that is nothing."""
    return str(error) or type(error).__name__


def said(error: Exception) -> str:
    """Its type, and what it says."""
    message = str(error)
    return f"{type(error).__name__}{': ' if message else ''}{message}"


def _do_nothing() -> None: ...
