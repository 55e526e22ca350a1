"""What was raised, in the words of the page: its type, our own sentences, and the user's line that did it."""

from __future__ import annotations

import traceback

from ....inspector.graph.source import OWN_CODE, Source, innermost_user_line


def why(error: BaseException) -> str:
    """The reason alone where it is one of our own, which are sentences without a type."""
    return str(error) if type(error) is ValueError else in_words(error)


def in_trouble(error: BaseException) -> str:
    """What was raised, and the user's line that did it, if one did."""
    line = _users_line(error)
    return in_words(error) + ("" if line is None else f"\nat {line.short}")


def in_words(error: BaseException) -> str:
    """What was raised."""
    return "".join(traceback.format_exception_only(error)).strip()


def _users_line(error: BaseException) -> Source | None:
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    return innermost_user_line(frame for frame in frames if not frame.filename.startswith(OWN_CODE))
