"""What a prompt debugs: its session, and the names an expression can use."""

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
    """The innermost frame that is neither tapescope's nor torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_OTHERS, "<frozen")):
        frame = frame.f_back
    return frame


class Names:
    """The variables of a frame, and those of the prompt, which come first.

    A frame's variables are only looked at when an expression needs them: looking makes Python keep them all.
    """

    def __init__(self, frame: FrameType | None) -> None:
        self._frame = frame

    def all(self, known: dict[str, Any]) -> dict[str, Any]:
        """All names; `t` is torch, where the user has no `t`."""
        found: dict[str, Any] = {"t": torch}
        if self._frame is not None:
            found.update(self._frame.f_globals)
            found.update(self._frame.f_locals)
        found.update(known)
        return found

    def value(self, expression: CodeType, known: dict[str, Any]) -> Any:
        """What it gives. `locals()` in it are the frame's own."""
        own = {} if self._frame is None else self._frame.f_locals
        # Functions inside of an expression see globals alone, so all names are there, too.
        return eval(expression, self.all(known), {name: own[name] for name in own if name not in known})

    def run(self, statements: CodeType, known: dict[str, Any]) -> None:
        """Runs them where the frame stands: what they assign to is the frame's.

        Known limitations: as in pdb, functions which they define see the frame's globals, and not its locals. A
        variable which a function's code does not have is there for the prompt alone.
        """
        exec(statements, {} if self._frame is None else self._frame.f_globals, _Scope(self._frame, known))


class _Scope(MutableMapping[str, Any]):
    """A frame's variables as they are at the moment, behind those of the prompt; what is assigned is the frame's."""

    def __init__(self, frame: FrameType | None, known: dict[str, Any]) -> None:
        self._frame = frame
        self._unbound: dict[str, Any] = {}  # where there is no frame
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
            raise ValueError(f"{name} is a name of the prompt's own; give the value another one")
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
        if sys.version_info < (3, 13) and self._frame is not None:  # there f_locals is a copy (PEP 667)
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self._frame), ctypes.c_int(1))


def compiled(expression: str) -> CodeType:
    """Python's own reading of an expression.

    Raises:
        ValueError: it is none.
    """
    try:
        return compile(expression.strip(), "<prompt>", "eval")
    except (SyntaxError, ValueError) as error:
        message = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"{expression.strip()!r} is no expression: {message}") from None


def statements(text: str) -> CodeType | None:
    """Python's own reading of statements. None where they are an expression alone.

    Raises:
        ValueError: they are none.
    """
    try:
        read = ast.parse(text.strip(), "<prompt>")
        if len(read.body) == 1 and isinstance(read.body[0], ast.Expr):
            return None
        return compile(read, "<prompt>", "exec")
    except (SyntaxError, ValueError) as error:
        message = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"{text.strip()!r} is no Python: {message}") from None


def assigns(text: str) -> bool:
    """Whether it is an assignment, as `x = 3` and `loss *= 2`, and so no command whatever it begins with."""
    try:
        first, *rest = ast.parse(text.strip()).body or (None,)
    except (SyntaxError, ValueError):
        return False
    return not rest and isinstance(first, ast.Assign | ast.AugAssign)


def test_of(code: CodeType, names: Callable[[], Names], *parameters: str) -> Callable[..., Any]:
    """A function of `parameters`, which the expression can name, as it can the user's variables at that time."""

    def test(*values: Any) -> Any:
        return eval(code, names().all(dict(zip(parameters, values, strict=True))))

    return test


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

    def factor(self, arg: str) -> tuple[float, Task]:
        expression, *rest = split_task(arg)
        value = self.value(expression)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ArgumentError(f"expected a number, got {value!r}")
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
