"""Warnings that point at the user's line."""

from __future__ import annotations

import contextlib
import sys
import warnings

from ...inspector.graph.source import OWN_CODE, is_library


def warn(text: str) -> None:
    """Warn at the user's line: the innermost one that is neither tapescope's nor in a library."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and (is_library(file := frame.f_code.co_filename) or file.startswith(_OURS)):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


_OURS = *OWN_CODE, contextlib.__file__  # through which `with` leaves a block of ours
