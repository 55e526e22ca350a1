"""Expressions and statements typed at the prompt, and the variables that they can use."""

from __future__ import annotations

import ast
import ctypes
import sys
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from ...inspector.graph.source_lines import OWN_CODE

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
        # Before PEP 667, f_locals is a copy that has to be written back.
        if sys.version_info < (3, 13) and self._frame is not None:
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


def is_assignment(text: str) -> bool:
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
