"""Tables of phases and categories as HTML: whole steps, and whether they fit."""

from __future__ import annotations

from ...engine.words.tables import ShownAsTable
from .report_html import cells_html


def phases_html(result: ShownAsTable) -> str:
    """A table of numbers with what it says above. It brings its own style."""
    headings = result.cells[0]
    return cells_html(result.cells, result.sentences, [each for each in headings if each not in result.words])
