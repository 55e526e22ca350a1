"""The frames that run, and their variables, read without keeping anything alive."""

from __future__ import annotations

import inspect
import sys
import threading
from types import FrameType

from ..graph.source_lines import OWN_CODE, Source

_NOBODY_ELSE = 3  # references to a dict that only its frame has: the frame's, the reader's, the call's that counts them


def running_frames(error: BaseException | None = None) -> list[tuple[int, FrameType]]:
    """The frames of all threads with their thread, callers first; without those of tapescope, whose variables are not
    the program's. `error`: the frames that it has left are among them, those of this thread last."""
    here = threading.get_ident()
    tops = sys._current_frames()
    own: FrameType | None = tops.pop(here)
    while own is not None and _is_own(own):  # else this frame would be in a list that it holds
        own = own.f_back
    found: list[tuple[int, FrameType]] = []
    for thread, top in [(here, own), *tops.items()]:
        calls = []
        frame = top
        while frame is not None:
            calls.append((thread, frame))
            frame = frame.f_back
        found += reversed(calls)
    traceback = None if error is None else error.__traceback__
    while traceback is not None:
        found.append((here, traceback.tb_frame))
        traceback = traceback.tb_next
    return [(thread, frame) for thread, frame in found if not _is_own(frame)]


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OWN_CODE)


def is_of_function(frame: FrameType) -> bool:
    """Whether it has variables of its own; those of a module or a class body are in a dict."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def variables_of(frame: FrameType) -> dict[str, object]:
    """The variables of a function's frame.

    Up to Python 3.12 `f_locals` is a dict that the frame keeps: it would hold what the function has let go of. It is
    emptied, but where the user has it, too, by `locals()`, or where a trace function runs (pdb): then what is taken
    out of it would be taken from the function itself.
    """
    shown = frame.f_locals
    variables = {name: shown[name] for name in list(shown)}
    if type(shown) is dict and sys.getrefcount(shown) <= _NOBODY_ELSE:
        is_traced = frame.f_trace is not None or sys.gettrace() is not None
        if is_of_function(frame) and not is_traced:
            code = frame.f_code
            for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
                shown.pop(name, None)
    return variables


def place_of(frame: FrameType) -> str:
    """`train() at train.py:90`."""
    code = frame.f_code
    return f"{code.co_qualname}() at {Source(code.co_filename, frame.f_lineno or code.co_firstlineno, '').short}"


def thread_name(ident: int) -> str:
    """Return the name of the thread with this id."""
    return next((each.name for each in threading.enumerate() if each.ident == ident), str(ident))
