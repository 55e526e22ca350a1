"""Results as text, for a terminal and for a notebook: a table with sentences, or sentences with a table."""

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


class ShownAsTable:
    """What a result has in common with others that are tables: how it is shown. What it says, its class says.

    A class of this kind has `cells`, the table as text with its headings first, and `sentences`. It is a dataclass
    mostly, and may have slots.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        verbs_end_where_called(cls)

    words: ClassVar[Collection[str]] = ()
    """The headings of columns of words; all others hold numbers, which end at one line."""
    html: ClassVar[str] = "table as HTML"
    """The function that draws it in a notebook; see `inspector/renderers.py`."""

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first."""
        raise NotImplementedError

    @property
    def sentences(self) -> Sequence[str]:
        """The table's findings, in sentences."""
        raise NotImplementedError

    @property
    def table(self) -> Table:
        """The rows as a table of rich."""
        cells = self.cells
        return cells_table(cells, self._numbers(cells[0]))

    def __rich__(self) -> Table:
        return self.table

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
    """A table of text as one of rich.

    Args:
        cells: the texts, its headings first.
        right: the headings of columns of numbers.
        bold: the places of the rows whose first cell is bold; None: of all.
    """
    from .rich_table import FittedTable

    return FittedTable(cells, right, range(len(cells)) if bold is None else bold)


def row_called(
    name: str, rows: Iterable[tuple[str, Row]], otherwise: str = "is not studied here; studied are", between: str = ", "
) -> Row:
    """Return the row with this name.

    Args:
        name: the name of the row.
        rows: all rows, by name.
        otherwise: the error text for an unknown name; the known names follow it.
        between: the text between two known names.

    Raises:
        ValueError: no row has this name.
    """
    found = list(rows)
    for each, row in found:
        if each == name:
            return row
    raise ValueError(f"{name!r} {otherwise} {between.join(each for each, _ in found) or 'none'}")


class ShownAsFindings:
    """What a result has in common with others that are sentences and a table below them. See `ShownAsTable`.

    A class of this kind has `sentences`, and `cells` where there is a table. One that shows itself at Python's prompt,
    too, has `__repr__ = ShownAsFindings.__str__`.
    """

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
        """What is found, in words."""
        raise NotImplementedError

    @property
    def right(self) -> Sequence[str]:
        """The headings of columns of numbers."""
        return ()

    @property
    def table(self) -> RenderableType:
        """Sentences and table for rich."""
        return findings_rich(self.sentences, self.cells, self.right)

    def __str__(self) -> str:
        return findings_text(self.sentences, self.cells, self.right)

    def __rich__(self) -> RenderableType:
        return self.table

    def _repr_html_(self) -> str:
        return text_of("findings as HTML", self.cells, self.sentences, self.right)


def findings_text(sentences: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """The sentences, and below them the table, its headings first. `right`: headings of columns of numbers."""
    parts = ["\n".join(sentences)] if sentences else []
    if cells[1:]:
        parts.append("\n".join(lines_of(cells, right)))
    return "\n\n".join(parts)


def findings_rich(
    sentences: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> RenderableType:
    """The same for rich."""
    from rich.console import Group
    from rich.text import Text

    said = [Text(sentence, "" if number else "bold") for number, sentence in enumerate(sentences)]
    return Group(*said, Text(), cells_table(cells, right)) if cells[1:] else Group(*said)
