"""A report of sentences and a table, as text and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...front_door import verbs_end_where_called
from ...inspector.shown import text_of
from .columns import lines_of
from .tables import cells_table

if TYPE_CHECKING:
    from rich.console import RenderableType


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
