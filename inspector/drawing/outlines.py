"""Tasks that belong together, marked in a picture: each by an outline, all by one colour and one name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

HUES = 6


@dataclass(frozen=True, slots=True)
class Outline:
    """Some tasks of a graph.

    Attributes:
        name: a letter or two, which stands at each of them.
        title: what they are, for the legend.
        tasks: their ids.
        dashed: drawn so, and its name hollow.
    """

    name: str
    title: str
    tasks: tuple[int, ...]
    dashed: bool = False


def letters(number: int) -> str:
    """The name of the outline of this number: "A" to "Z", "AA", "AB", ..."""
    name, left = "", number + 1
    while left:
        left, letter = divmod(left - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


class Around:
    """Which outlines are around what is drawn.

    Args:
        outlines: in the order of their colours.
        shown_by: by task the one that is drawn in its place, see `Layout`.
    """

    def __init__(self, outlines: Sequence[Outline], shown_by: Sequence[int]) -> None:
        self.outlines = outlines
        self._of: dict[int, list[int]] = {}
        for number, outline in enumerate(outlines):
            for task in dict.fromkeys(shown_by[task] for task in outline.tasks):
                self._of.setdefault(task, []).append(number)

    def of(self, *tasks: int) -> list[int]:
        """The numbers of the outlines around any of these tasks, ascending."""
        return sorted({number for task in tasks for number in self._of.get(task, ())})

    def kind(self, number: int) -> str:
        """Its classes in the style sheet."""
        return f"ts-hue{number % HUES}" + (" ts-dashed" if self.outlines[number].dashed else "")

    def entries(self) -> Iterator[tuple[int, Outline]]:
        """The outlines of which anything is drawn, with their numbers."""
        drawn = {number for numbers in self._of.values() for number in numbers}
        for number in sorted(drawn):
            yield number, self.outlines[number]
