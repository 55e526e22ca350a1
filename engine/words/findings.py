"""A report of sentences and a table, as text and for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from .tables import cells_table

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH = 120  # characters of a line of text
_FIRST = 40  # the most that the first column takes
_LAST = 40  # the least that the last one keeps


def findings_text(sentences: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """The sentences, and below them the table, its headings first. `right`: headings of columns of numbers."""
    parts = ["\n".join(sentences)] if sentences else []
    headings, *rows = cells
    if rows:
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        widths[0] = min(widths[0], _FIRST)
        widths[-1] = min(widths[-1], max(_LAST, _WIDTH - sum(widths[:-1]) - 2 * len(widths)))
        lines = []
        for row in cells:
            wrapped = [
                textwrap.wrap(text, width, break_on_hyphens=False) for text, width in zip(row, widths, strict=True)
            ]
            for texts in zip_longest(*wrapped, fillvalue=""):
                line = [
                    text.rjust(width) if heading in right else text.ljust(width)
                    for heading, text, width in zip(headings, texts, widths, strict=True)
                ]
                lines.append("  ".join(line).rstrip())
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def findings_rich(
    sentences: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> RenderableType:
    """The same for rich."""
    from rich.console import Group
    from rich.text import Text

    said = [Text(sentence, "" if number else "bold") for number, sentence in enumerate(sentences)]
    return Group(*said, Text(), cells_table(cells, right)) if cells[1:] else Group(*said)
