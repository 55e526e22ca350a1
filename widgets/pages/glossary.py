"""The glossary of saved pages: the meaning of categories, of table columns, and of the keys of figures."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ...engine.memory.categories import Category

CATEGORIES = {
    Category.SAVED: "saved by a node for the backward",
    Category.BUFFER: "a gradient in an input buffer, waiting for its task",
    Category.GRADIENT: "the .grad of a leaf, which stays after the backward",
    Category.FORWARD: "made by the forward and held by your code, not by a node; the loss, for example",
    Category.HELD: "a gradient held by a hook or retain_grad(), neither a .grad nor in an input buffer",
    Category.WORKSPACE: "allocated and freed within one task",
    Category.UNKNOWN: "none of the other categories; memory that a library holds, for example",
    Category.LISTED: 'one of several gradients in a list, which their task sums when it runs (accumulate="list")',
    Category.CONSUMED: 'an input buffer of a task that has run, which is never freed (release="never")',
    Category.PARAMETER: "a parameter or a buffer of the model (for whole steps)",
    Category.STATE: "the optimizer's state (for whole steps)",
}
"""The meaning of each category of memory."""

COLUMNS = {
    "peak": "the highest level of the backward: bytes requested since just before the forward and not yet freed",
    "average": "the mean level from the start of the backward's first task to the end of its last one; each level "
    "counts for as long as it lasted",
    "predicted": "simulated in this order from another policy's measured run, or from the recomputation plan; exact "
    "means equal to the byte",
    "dry run": "predicted from the forward alone, before any backward ran",
    "peak in": "the task in which the peak was reached",
    "longest queue": "the largest number of tasks that were ready at the same time",
    "time": "the median time of backwards without memory recording",
}
"""The meaning of table columns, by heading."""

_FIGURES = {
    "figures": "drag along a plot to zoom in, drag with Shift to move, double-click to reset; click a name in a "
    "legend to hide its curve, double-click it to hide all others. Keys: arrows move from point to point, + and - "
    "zoom, 0 resets; in a treemap Enter zooms in and Escape out",
}


def glossary_section(words: Mapping[str, str]) -> str:
    """Return the glossary: words as HTML, meanings as text. Its last entry explains how to use figures."""
    lines = "".join(f"<dt>{word}</dt><dd>{escape(meaning)}</dd>" for word, meaning in {**words, **_FIGURES}.items())
    return f"<section><h2>Words</h2><dl>{lines}</dl></section>"
