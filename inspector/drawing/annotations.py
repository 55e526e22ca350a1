"""Annotations of tasks in a picture: outlines around groups, and badges for recomputation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

HUES = 6


@dataclass(frozen=True, slots=True)
class Outline:
    """An outline around some tasks of a graph.

    Attributes:
        name: one or two letters, drawn at each of the tasks.
        title: description for the legend.
        tasks: ids of the tasks.
        dashed: whether the outline is dashed and its name hollow.
    """

    name: str
    title: str
    tasks: tuple[int, ...]
    dashed: bool = False


def letters(number: int) -> str:
    """Return the name of an outline by its number: "A" to "Z", "AA", "AB", ..."""
    name, left = "", number + 1
    while left:
        left, letter = divmod(left - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


class Around:
    """The outlines around each drawn task.

    Args:
        outlines: the outlines, in the order of their colours.
        shown_by: for each task, the task drawn in its place; see `Layout`.
    """

    def __init__(self, outlines: Sequence[Outline], shown_by: Sequence[int]) -> None:
        self.outlines = outlines
        self._of: dict[int, list[int]] = {}
        for number, outline in enumerate(outlines):
            for task in dict.fromkeys(shown_by[task] for task in outline.tasks):
                self._of.setdefault(task, []).append(number)

    def of(self, *tasks: int) -> list[int]:
        """Return the numbers of the outlines around any of these tasks, ascending."""
        return sorted({number for task in tasks for number in self._of.get(task, ())})

    def kind(self, number: int) -> str:
        """Return the style sheet classes of an outline."""
        return f"ts-hue{number % HUES}" + (" ts-dashed" if self.outlines[number].dashed else "")

    def entries(self) -> Iterator[tuple[int, Outline]]:
        """Yield the outlines that have a drawn task, with their numbers."""
        drawn = {number for numbers in self._of.values() for number in numbers}
        for number in sorted(drawn):
            yield number, self.outlines[number]


DROPPED, RECOMPUTED, KEPT = "dropped", "recomputed", "kept"
SIGN_TITLES = {
    DROPPED: "drops its saved tensors",
    RECOMPUTED: "recomputes them first",
    KEPT: "newly keeps tensors for that",
}
"""The meaning of each kind of sign, in the order of the legend."""

# Each shape is 12 px wide and high. They differ in glyph and outline, so they can be told apart without colour.
SIGN_SHAPES = {
    DROPPED: '<rect class="ts-dropped" x=".65" y=".65" width="10.7" height="10.7" rx="3"/>',
    RECOMPUTED: '<rect class="ts-recomputed" x=".65" y=".65" width="10.7" height="10.7" rx="3"/>'
    '<path class="ts-arc" d="M8.1 3.9a3 3 0 1 0 0 4.2"/><path class="ts-tip" d="M9.7 5.4 9.5 1.3 5.7 4.5z"/>',
    KEPT: '<rect class="ts-kept" x=".65" y=".65" width="10.7" height="10.7" rx="3"/>'
    '<path class="ts-plus" d="M3 6h6M6 3v6"/>',
}


@dataclass(frozen=True, slots=True)
class Sign:
    """The signs of a task.

    Attributes:
        task: id of the task.
        kinds: keys of `SIGN_TITLES`.
        title: tooltip, one line or more.
    """

    task: int
    kinds: tuple[str, ...]
    title: str


class Signs:
    """The signs at each drawn task.

    Args:
        signs: the signs, at most one per task.
        shown_by: for each task, the task drawn in its place; see `Layout`.
    """

    def __init__(self, signs: Iterable[Sign], shown_by: Sequence[int]) -> None:
        self._of: dict[int, list[Sign]] = {}
        for each in signs:
            self._of.setdefault(shown_by[each.task], []).append(each)

    def at(self, *tasks: int) -> tuple[list[str], str] | None:
        """Return the kinds of sign at these drawn tasks and the tooltip, or None if they have no sign."""
        found = [sign for task in tasks for sign in self._of.get(task, ())]
        if not found:
            return None
        kinds = {kind for sign in found for kind in sign.kinds}
        if len(found) == 1:
            return [kind for kind in SIGN_TITLES if kind in kinds], found[0].title
        counts = {kind: sum(kind in sign.kinds for sign in found) for kind in SIGN_TITLES if kind in kinds}
        lines = [
            f"{SIGN_TITLES[kind]}: {count:,} {'task' if count == 1 else 'tasks'}" for kind, count in counts.items()
        ]
        return list(counts), "\n".join(lines)

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of sign in the picture, in the order of the legend."""
        there = {kind for signs in self._of.values() for sign in signs for kind in sign.kinds}
        return [kind for kind in SIGN_TITLES if kind in there]
