"""Running frames and their variables, read without keeping anything alive."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from ..graph.source_lines import OWN_CODE, Source


def running_frames(error: BaseException | None = None) -> list[tuple[int, FrameType]]:
    """Return the frames of all threads with their thread, callers first, without tapescope's own frames.

    The frames in the traceback of `error` are included, with those of this thread last.
    """
    here = threading.get_ident()
    tops = sys._current_frames()
    own: FrameType | None = tops.pop(here)
    while own is not None and _is_own(own):  # otherwise this frame would be in a list that it refers to
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


def function_of(frame: FrameType) -> str:
    """Return the function of a frame, with the line of its `def`: `train() at train.py:80`."""
    code = frame.f_code
    return f"{code.co_qualname}() at {Source(code.co_filename, code.co_firstlineno, '').short}"


def place_of(frame: FrameType) -> str:
    """Return the function and current line of a frame: `train() at train.py:90`."""
    code = frame.f_code
    return f"{code.co_qualname}() at {Source(code.co_filename, frame.f_lineno or code.co_firstlineno, '').short}"


def thread_name(ident: int) -> str:
    """Return the name of the thread with this id."""
    return next((each.name for each in threading.enumerate() if each.ident == ident), str(ident))
