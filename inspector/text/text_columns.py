"""Narrowing of text tables that are too wide: names are cut at the front, numbers are never cut."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from itertools import zip_longest

WIDTH = 80
"""Characters per line if the width is unknown: the default width of a terminal, also used for pipes."""

GAP = 2
"""Spaces between columns."""

_WHOLE = 30  # names or lists of names up to this width are broken into lines last
_NAME = 24  # width that a first column keeps before words in other columns are cut
_LEAST = 12  # minimum width of a text column

_Cells = Sequence[Sequence[str]]


def lines_of(cells: _Cells, right: Collection[str] = (), numbers: Collection[str] | None = None) -> list[str]:
    """Return the lines of a text table, headings first, of at most `WIDTH` characters if possible.

    Args:
        cells: the texts, row by row.
        right: headings of right-aligned columns.
        numbers: headings of columns that are never cut; None means `right`.
    """
    cells = fitted(cells, right if numbers is None else numbers)
    ends = [heading.replace("\n", " ") in right for heading in cells[0]]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        for texts in zip_longest(*(cell.split("\n") for cell in row), fillvalue=""):
            line = (
                text.rjust(width) if end else text.ljust(width)
                for text, width, end in zip(texts, widths, ends, strict=True)
            )
            lines.append((GAP * " ").join(line).rstrip())
    return lines


def fitted(cells: _Cells, numbers: Collection[str] = (), width: int = WIDTH) -> list[list[str]]:
    """Return the cells with line breaks, so that the table is at most `width` characters wide.

    Headings are broken into lines first, then texts, at their spaces. A word that is still too long, usually a path, is
    cut at the front: "…encoder.layers.0.weight". Number columns are never cut; a part in brackets moves to the line
    below. So a table of numbers only may stay too wide.
    """
    headings, *rows = [[*row] for row in cells]
    columns = range(len(headings))
    bodies = [max((len(row[column]) for row in rows), default=0) for column in columns]
    widths = [max(len(heading), body) for heading, body in zip(headings, bodies, strict=True)]
    words = [column for column in columns if column == 0 or headings[column] not in numbers]
    # By column, the longest word, and the longest part if those in brackets go on the line below.
    tokens, parts = [], []
    for column in columns:
        texts = [headings[column], *(row[column] for row in rows if column in words)]
        tokens.append(max((len(token) for text in texts for token in text.split()), default=0))
        broken = [row[column].replace(" (", "\n(").split("\n") for row in rows]
        parts.append(max((len(part) for each in broken for part in each), default=0))
    least = [max(token, 0 if column in words else bodies[column]) for column, token in enumerate(tokens)]
    by_heading = [max(bodies[column], least[column]) for column in columns]
    beside = [least[at] if at in words else max(tokens[at], parts[at]) for at in columns]
    others = [column for column in words if column]
    available = width - GAP * (len(headings) - 1)
    for which, floor in (
        (columns, by_heading),
        (words, [max(least[0], min(widths[0], _WHOLE)), *least[1:]]),
        (others, least),
        ([0], least),
        (columns, beside),
        ([0], [_NAME] * len(headings)),
        (others, [_LEAST] * len(headings)),
        ([0], [_LEAST] * len(headings)),
    ):
        # Narrow the widest of these columns until all fit, or none is above its minimum.
        while sum(widths) > available and (above := [each for each in which if widths[each] > floor[each]]):
            widths[max(above, key=widths.__getitem__)] -= 1
    return [[_broken(text, each) for text, each in zip(row, widths, strict=True)] for row in [headings, *rows]]


def _broken(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    shortened = " ".join(cut_at_front(token, width) for token in text.split())
    return "\n".join(textwrap.wrap(shortened, width, break_long_words=False, break_on_hyphens=False))


def cut_at_front(text: str, width: int) -> str:
    """Return a name of at most `width` characters, cut at the front, since the end of a path is more informative."""
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}"


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))
