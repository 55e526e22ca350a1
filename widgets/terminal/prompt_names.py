"""What an expression at the prompt can name: the user's variables, and what is being debugged."""

from __future__ import annotations

import ast
import ctypes
import sys
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from ...inspector.graph.source import OWN_CODE

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
