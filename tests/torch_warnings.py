"""Finds warnings of PyTorch that something will change or go, where a line of tapescope's is the reason.

`python -m pytest --warnings-of-torch-are-errors` fails the tests in which there are any.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

import tapescope

CATEGORIES = FutureWarning, DeprecationWarning, PendingDeprecationWarning
_PACKAGE = Path(tapescope.__file__).parent
_OURS = tuple(f"{_PACKAGE / name}/" for name in ("inspector", "engine", "widgets", "commands"))
_PASSED = (str(Path(torch.__file__).parent), str(Path(warnings.__file__).parent), "<frozen")
_PASSING_ON = ("__torch_function__", "__torch_dispatch__")  # ours call what the program called


@contextmanager
def torch_warnings() -> Iterator[list[str]]:
    """Collect the warnings that calls from tapescope's files cause meanwhile, as sentences.

    The innermost line that is neither PyTorch's nor Python's decides. A program's own line that runs under tapescope is
    not tapescope's, nor is a mode's that calls what the program called.
    """
    found: list[str] = []
    show = warnings._showwarnmsg  # type: ignore[attr-defined]  # C calls it, too

    def note(message: warnings.WarningMessage) -> None:
        if issubclass(message.category, CATEGORIES) and (frame := _cause(sys._getframe(1))) is not None:
            where = f"{Path(frame.f_code.co_filename).relative_to(_PACKAGE)}:{frame.f_lineno}"
            found.append(f"{where}: {message.category.__name__}: {message.message}")
        show(message)

    with warnings.catch_warnings():
        for category in CATEGORIES:
            warnings.simplefilter("always", category)
        warnings._showwarnmsg = note  # type: ignore[attr-defined]
        try:
            yield found
        finally:
            warnings._showwarnmsg = show  # type: ignore[attr-defined]


def _cause(frame: FrameType | None) -> FrameType | None:
    """The line of tapescope's that made PyTorch warn; None: it was another one, or Python that warned."""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_PASSED) and code.co_name not in _PASSING_ON:
            return frame if code.co_filename.startswith(_OURS) else None
        frame = frame.f_back
    return None
