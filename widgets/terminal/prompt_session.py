"""The session of a prompt, and the variables that expressions can use."""

from __future__ import annotations

import ast
import ctypes
import sys
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeGuard

import torch

from ...engine.session.breakpoints.breakpoints import Stop
from ...engine.session.direct_session import Stepper
from ...inspector.graph.graph import Task
from ...inspector.graph.source_lines import OWN_CODE
from ..deck.task_and_stop_syntax import run_of, typed_task
from . import tables as tables
from .console import ArgumentError, Interrupt, first_interrupt, say, show, split_task
from .stops import PromptStops, Session
from .user_traceback import users_traceback

_OTHERS = (str(Path(torch.__file__).parent), *OWN_CODE)


def users_frame() -> FrameType | None:
    """Return the innermost frame outside of tapescope and torch."""
    # Frozen modules are Python's import system and `runpy`.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_OTHERS, "<frozen")):
        frame = frame.f_back
    return frame


class Names:
    """The variables of a frame and of the prompt. The prompt's take precedence.

    A frame's variables are read only when an expression needs them, because reading `f_locals` makes Python keep
    references to all of them.
    """

    def __init__(self, frame: FrameType | None) -> None:
        self._frame = frame

    def all(self, known: dict[str, Any]) -> dict[str, Any]:
        """Return all variables. `t` is torch unless the user has a variable `t`."""
        found: dict[str, Any] = {"t": torch}
        if self._frame is not None:
            found.update(self._frame.f_globals)
            found.update(self._frame.f_locals)
        found.update(known)
        return found

    def value(self, expression: CodeType, known: dict[str, Any]) -> Any:
        """Evaluate an expression. `locals()` in it returns the frame's variables."""
        own = {} if self._frame is None else self._frame.f_locals
        # Functions and comprehensions in an expression see only globals, so these have to include all variables.
        return eval(expression, self.all(known), {name: own[name] for name in own if name not in known})

    def run(self, statements: CodeType, known: dict[str, Any]) -> None:
        """Run statements in the frame. Assignments change the frame's variables.

        Known limitations: as in pdb, functions defined here see the frame's globals but not its locals. New local
        variables of a function exist only at the prompt.
        """
        exec(statements, {} if self._frame is None else self._frame.f_globals, _Scope(self._frame, known))


class _Scope(MutableMapping[str, Any]):
    """The current variables of a frame, after those of the prompt. Assignments change the frame."""

    def __init__(self, frame: FrameType | None, known: dict[str, Any]) -> None:
        self._frame = frame
        self._unbound: dict[str, Any] = {}  # used if there is no frame
        self._known = known

    @property
    def _own(self) -> MutableMapping[str, Any]:
        return self._unbound if self._frame is None else self._frame.f_locals

    def __getitem__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        if name == "t" and not (self._frame and "t" in self._frame.f_globals):
            return self._own.get("t", torch)
        return self._own[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._known:
            raise ValueError(f"{name} is reserved by the prompt; assign to another name")
        self._own[name] = value
        self._write_back()

    def __delitem__(self, name: str) -> None:
        del self._own[name]
        self._write_back()

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **self._known})

    def __len__(self) -> int:
        return len({**self._own, **self._known})

    def _write_back(self) -> None:
        if (
            sys.version_info < (3, 13) and self._frame is not None
        ):  # before PEP 667, f_locals is a copy that has to be written back
            # The argument 1 also deletes variables that are missing in the copy.
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self._frame), ctypes.c_int(1))


def compiled(expression: str) -> CodeType:
    """Compile an expression.

    Raises:
        ValueError: the text is not an expression.
    """
    try:
        return compile(expression.strip(), "<prompt>", "eval")
    except (SyntaxError, ValueError) as error:
        message = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"{expression.strip()!r} is not an expression: {message}") from None


def statements(text: str) -> CodeType | None:
    """Compile statements, or return None if the text is a single expression.

    Raises:
        ValueError: the text is not valid Python.
    """
    try:
        read = ast.parse(text.strip(), "<prompt>")
        if len(read.body) == 1 and isinstance(read.body[0], ast.Expr):
            return None
        return compile(read, "<prompt>", "exec")
    except (SyntaxError, ValueError) as error:
        message = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"{text.strip()!r} is not valid Python: {message}") from None


def assigns(text: str) -> bool:
    """Return whether the text is an assignment such as `x = 3` or `loss *= 2`, even if it begins with a command."""
    try:
        first, *rest = ast.parse(text.strip()).body or (None,)
    except (SyntaxError, ValueError):
        return False
    return not rest and isinstance(first, ast.Assign | ast.AugAssign)


def test_of(code: CodeType, names: Callable[[], Names], *parameters: str) -> Callable[..., Any]:
    """Return a function of `parameters` that evaluates the expression with them and the user's current variables."""

    def test(*values: Any) -> Any:
        return eval(code, names().all(dict(zip(parameters, values, strict=True))))

    return test


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
            raise ArgumentError(f"expected a number, got {value!r}")
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
    return str(error) or type(error).__name__


def error_text(error: Exception) -> str:
    """Return an error's type and message."""
    message = str(error)
    return f"{type(error).__name__}{': ' if message else ''}{message}"
