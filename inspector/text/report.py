"""Results as text for terminals and notebooks: a table with sentences, or sentences with a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from ...errors import verbs_end_where_called
from ..renderers import text_of
from .text_columns import lines_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Row = TypeVar("Row")


class _Shown:
    """A result with a table and sentences."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        verbs_end_where_called(cls)

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first."""
        raise NotImplementedError

    @property
    def sentences(self) -> Sequence[str]:
        """Return the findings as sentences."""
        raise NotImplementedError

    @property
    def table(self) -> RenderableType:
        """Return the table for rich."""
        raise NotImplementedError

    def __rich__(self) -> RenderableType:
        return self.table


class ShownAsTable(_Shown):
    """Mixin for results shown as a table.

    A subclass defines `cells`, the table as text with its headings first, and `sentences`. It is usually a dataclass,
    and may have slots.
    """

    __slots__ = ()

    words: ClassVar[Collection[str]] = ()
    """The headings of text columns; all other columns hold numbers and are right-aligned."""
    html: ClassVar[str] = "table as HTML"
    """The renderer for notebooks; see `inspector/renderers.py`."""

    @property
    def table(self) -> Table:
        """Return the rows as a rich table."""
        cells = self.cells
        return cells_table(cells, self._numbers(cells[0]))

    def __str__(self) -> str:
        cells = self.cells
        lines = lines_of(cells, numbers=self._numbers(cells[0]))
        return "\n".join([*lines, *([""] if self.sentences else []), *self.sentences])

    def _numbers(self, headings: Sequence[str]) -> list[str]:
        return [heading for heading in headings if heading not in self.words]

    def _repr_html_(self) -> str:
        return text_of(self.html, self)


def cells_table(
    cells: Sequence[Sequence[str]], right: Collection[str] = (), bold: Collection[int] | None = None
) -> Table:
    """Return a table of text as a rich table.

    Args:
        cells: the texts, headings first.
        right: headings of number columns.
        bold: indices of the rows whose first cell is bold; None for all rows.
    """
    from .rich_table import FittedTable

    return FittedTable(cells, right, range(len(cells)) if bold is None else bold)


def row_called(name: str, rows: Iterable[tuple[str, Row]], kind: str = "row", between: str = ", ") -> Row:
    """Return the row with this name.

    Args:
        name: the name of the row.
        rows: all rows, by name.
        kind: the noun for a row in the error for an unknown name.
        between: the text between two known names.

    Raises:
        ValueError: no row has this name.
    """
    found = list(rows)
    for each, row in found:
        if each == name:
            return row
    known = between.join(each for each, _ in found)
    raise ValueError(f"unknown {kind} {name!r}; expected one of {known or 'none'}")


class ShownAsFindings(_Shown):
    """Mixin for results shown as sentences with a table below them. See `ShownAsTable`.

    A subclass defines `sentences`, and `cells` if it has a table. To be shown at Python's prompt, too, it sets
    `__repr__ = ShownAsFindings.__str__`.
    """

    __slots__ = ()

    @property
    def right(self) -> Sequence[str]:
        """Return the headings of number columns."""
        return ()

    @property
    def table(self) -> RenderableType:
        """Return sentences and table for rich."""
        return findings_rich(self.sentences, self.cells, self.right)

    def __str__(self) -> str:
        return findings_text(self.sentences, self.cells, self.right)

    def _repr_html_(self) -> str:
        return text_of("findings as HTML", self.cells, self.sentences, self.right)


def findings_text(sentences: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """Return the sentences, and the table (headings first) below them. `right`: headings of number columns."""
    parts = ["\n".join(sentences)] if sentences else []
    if cells[1:]:
        parts.append("\n".join(lines_of(cells, right)))
    return "\n\n".join(parts)


def findings_rich(
    sentences: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> RenderableType:
    """Return the sentences and the table for rich."""
    from rich.console import Group
    from rich.text import Text

    said = [Text(sentence, "" if number else "bold") for number, sentence in enumerate(sentences)]
    return Group(*said, Text(), cells_table(cells, right)) if cells[1:] else Group(*said)
