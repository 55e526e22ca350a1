"""Tracebacks reduced to the user's own frames."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import torch

from ...inspector.graph.source_lines import OWN_CODE

TORCH = str(Path(torch.__file__).parent)
LIBRARY = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


def users_traceback(error: BaseException) -> str:
    """Return the traceback in Python's format, without frames of tapescope and of libraries."""
    report = traceback.TracebackException.from_exception(error)
    reports: list[traceback.TracebackException | None] = [report]
    while reports:
        if each := reports.pop():
            own = [frame for frame in each.stack if _is_users(frame.filename)]
            each.stack = traceback.StackSummary.from_list(own)
            # The errors shown with it also have tracebacks.
            reports += [each.__cause__, each.__context__, *(each.exceptions or ())]
    return "".join(report.format())


def without_own_frames(error: BaseException, start: Callable[..., object]) -> None:
    """Remove tapescope's frames from an error's traceback, and from those of its causes and contexts.

    Args:
        error: the error, which is modified.
        start: the function that called the user's code; the frames before it are also removed.
    """
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        each = errors.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _trimmed(each.__traceback__, start)
        errors += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            errors += each.exceptions


def _trimmed(frames: TracebackType | None, start: Callable[..., object]) -> TracebackType | None:
    kept: list[TracebackType] = []
    after_own = False
    while frames is not None:
        code = frames.tb_frame.f_code
        own = code.co_filename.startswith(OWN_CODE)
        if code is start.__code__:
            kept.clear()
        elif not own:
            if after_own:
                _leave_out_detour(kept, frames)
            kept.append(frames)
        after_own = own
        frames = frames.tb_next
    # A traceback links to the next inner frame, so the list is built from the innermost one.
    below: TracebackType | None = None
    for each in reversed(kept):
        below = TracebackType(below, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return below


def _leave_out_detour(kept: list[TracebackType], frame: TracebackType) -> None:
    """Remove the frames in which torch called tapescope, which called the same torch function again.

    This happens with function modes and with the redirected engine.
    """
    for place in reversed(range(len(kept))):
        if not kept[place].tb_frame.f_code.co_filename.startswith(TORCH):
            return
        if kept[place].tb_frame.f_code is frame.tb_frame.f_code:
            del kept[place:]
            return


def _is_users(filename: str) -> bool:
    return not filename.startswith(("<", *OWN_CODE)) and not any(map(Path(filename).is_relative_to, LIBRARY))
