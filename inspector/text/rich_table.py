"""A rich table that is fitted into the available width like a table of text; see `text_columns.py`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from .text_columns import GAP, fitted

Cells = Sequence[Sequence[str]]


class FittedTable(Table):
    """A rich table from the rows of a table of text.

    Args:
        cells: the texts, row by row, headings first.
        right: headings of number columns, which are right-aligned and never cut.
        bold: indices of the rows whose first cell is bold.
    """

    def __init__(self, cells: Cells, right: Collection[str], bold: Collection[int]) -> None:
        super().__init__(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
        self._given = cells, right, bold
        _fill(self, *self._given)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells, right, bold = self._given
        narrow = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
        _fill(narrow, fitted(cells, right, options.max_width), right, bold)
        yield narrow


def _fill(table: Table, cells: Cells, right: Collection[str], bold: Collection[int]) -> None:
    headings, *rows = cells
    for heading in headings:
        table.add_column(heading, justify="right" if heading.replace("\n", " ") in right else "left")
    for place, (first, *others) in enumerate(rows):
        table.add_row(Text(first, "bold" if place in bold else ""), *map(Text, others))
