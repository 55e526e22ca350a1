"""What was raised, in the words of the page: its type, our own sentences, and the user's line that did it."""

from __future__ import annotations

import os
import traceback

from ...inspector.graph.graph import Graph
from ...inspector.graph.source import PACKAGE, Source, innermost_user_line
from .document import numbered

_OURS = tuple(f"{PACKAGE / name}{os.sep}" for name in ("engine", "widgets"))
_NOTED = "tapehead: raised "


def why(error: BaseException, graph: Graph) -> str:
    """The reason alone where it is one of our own, which are sentences without a type."""
    return numbered(str(error), graph) if type(error) is ValueError else in_words(error, graph)


def in_trouble(error: BaseException, graph: Graph) -> str:
    """What was raised, and the user's line that did it, if one did."""
    line = _users_line(error)
    return in_words(error, graph) + ("" if line is None else f"\nat {line.short}")


def in_words(error: BaseException, graph: Graph) -> str:
    """What was raised. In the words of others numbers of tasks stay as they are."""
    ours = _users_line(error) is None
    lines = "".join(traceback.format_exception_only(error)).strip().split("\n")
    return "\n".join(numbered(each, graph) if ours or each.startswith(_NOTED) else each for each in lines)


def _users_line(error: BaseException) -> Source | None:
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    return innermost_user_line(frame for frame in frames if not frame.filename.startswith(_OURS))
