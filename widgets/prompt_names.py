"""What an expression at the prompt can name: the user's variables, and what is being debugged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

HERE = Path(__file__).parents[1]
_OTHERS = (str(Path(torch.__file__).parent), *(str(HERE / name) for name in ("inspector", "engine", "widgets")))


def users_frame() -> FrameType | None:
    """The innermost frame that is neither tapehead's nor torch's."""
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


def test_of(code: CodeType, names: Callable[[], Names], *parameters: str) -> Callable[..., Any]:
    """A function of `parameters`, which the expression can name, as it can the user's variables at that time."""

    def test(*values: Any) -> Any:
        return eval(code, names().all(dict(zip(parameters, values, strict=True))))

    return test
