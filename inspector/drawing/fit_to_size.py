"""Folding to fit a size: the most detailed picture that shows a whole graph at once.

The least informative parts are folded first: chains of views, then modules without submodules. If that is not enough,
all modules are closed, and reopened while the picture still fits, the outermost and largest first.
widgets/js/src/layout/fit_to_size.ts does the same for the size of the deck's panel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from ..graph.graph import Graph
from ..graph.kinds import Kind
from .fold import Folded, FoldedCalls, fold_graph
from .layout import Layout, lay_out
from .layout_types import LAYOUT

# Minimum area of an item in square pixels. No layout is tried if the items cannot fit.
LEAST_AREA: int = LAYOUT["LEAST_AREA"]
MOST_TRIED: int = LAYOUT["MOST_TRIED"]  # number of boxes tried one by one
TALL = (1, 0.6)  # column heights to try, as a share of the height; lower columns make a wider picture


def first_view(
    graph: Graph,
    width: float,
    height: float,
    most_tried: int = MOST_TRIED,
    *,
    shapes: bool = False,
    columns: bool = True,
) -> Layout:
    """Lay out a graph, folded until it fits; with all modules closed if even that does not fit.

    `shapes` is as in `lay_out`. Without `columns`, the graph is not cut into columns, and more of it is folded.

    If not all modules can be open, up to `most_tried` are tried one by one, each with a separate layout.
    """
    tree = _Tree(graph, shapes, TALL if columns else (inf,))
    for opened in tree.levels():
        placed = _fitted(graph, tree, opened, width, height)
        if placed is not None:
            return placed
    # Start with all modules closed, and open those that fit, the outermost and largest first. If equal layers do not
    # fit when open, single modules of the same kind also stay closed.
    opened = tree.failed()
    placed = _fitted(graph, tree, opened, width, height)
    if placed is None:
        return lay_out(graph, tree.with_open(opened), height * tree.tall[0], shapes=shapes)
    tried = 0
    refused = set()
    for number in sorted(tree.branching(), key=lambda number: (tree.boxes[number].depth, -tree.boxes[number].tasks)):
        box = tree.boxes[number]
        if not tree.is_seen(box.parent, opened) or _kind(box) in refused or tried == most_tried:
            continue
        tried += 1
        larger = _fitted(graph, tree, opened | {number}, width, height)
        if larger is not None:
            opened, placed = opened | {number}, larger
        elif box.group.times > 1:
            refused.add(_kind(box))
    return placed


@dataclass(frozen=True, slots=True)
class _Box:
    group: FoldedCalls
    parent: int  # -1 for an outermost box
    depth: int
    holds_modules: bool

    @property
    def tasks(self) -> int:
        """Number of tasks in all the equal layers that the box is drawn for."""
        return self.group.size * self.group.times


class _Tree:
    """The groups of a folded graph by number, the outermost first.

    `shapes` is as in `lay_out`; `tall` are the column heights to try, as shares of the height.
    """

    def __init__(self, graph: Graph, shapes: bool, tall: Sequence[float]) -> None:
        self.graph = graph
        self.folded = folded = fold_graph(graph, "fit")
        self.shapes = shapes
        self.tall = tall
        self.boxes: list[_Box] = []
        self.inside: list[list[int]] = []  # for each box, the numbers of the boxes in it
        self._add(folded.items, -1)
        for number, box in enumerate(self.boxes):  # `_add` appends to self.boxes during the loop
            self.inside.append(self._add(box.group.items, number))

    def _add(self, items: tuple[FoldedCalls | int, ...], parent: int) -> list[int]:
        depth = 1 if parent < 0 else self.boxes[parent].depth + 1
        first = len(self.boxes)
        for item in items:
            if isinstance(item, FoldedCalls) and not _is_single(item):
                holds = any(
                    isinstance(each, FoldedCalls) and not each.is_views and not _is_single(each) for each in item.items
                )
                self.boxes.append(_Box(item, parent, depth, holds))
        return list(range(first, len(self.boxes)))

    def levels(self) -> list[frozenset[int]]:
        """Return the sets of open boxes to try: all boxes, all but views, only modules with submodules."""
        quiet = {number for number, box in enumerate(self.boxes) if box.group.is_views}
        every = frozenset(range(len(self.boxes)))
        return [every, every - quiet, self.branching()]

    def branching(self) -> frozenset[int]:
        """Return the modules that have submodules, or in which the forward failed."""
        return self.failed().union(number for number, box in enumerate(self.boxes) if box.holds_modules)

    def failed(self) -> frozenset[int]:
        """Return the boxes around the call that ended the forward, which are never closed."""
        failed = {task.id for task in self.graph.tasks if task.kind is Kind.FAILED}
        return frozenset(
            number for number, box in enumerate(self.boxes) if failed and not failed.isdisjoint(box.group.tasks())
        )

    def is_seen(self, number: int, opened: frozenset[int]) -> bool:
        """Return whether a box and all boxes around it are open."""
        while number >= 0 and number in opened:
            number = self.boxes[number].parent
        return number < 0

    def with_open(self, opened: frozenset[int]) -> Folded:
        """Return the graph with these boxes open, and all others closed."""
        made: dict[int, FoldedCalls] = {}
        for number in range(len(self.boxes) - 1, -1, -1):
            group = self.boxes[number].group
            if number not in opened:
                made[number] = replace(group, items=tuple(group.tasks()), closed=True)
                continue
            inner = iter(self.inside[number])
            made[number] = replace(group, items=_with(group.items, inner, made))
        outer = (number for number, box in enumerate(self.boxes) if box.parent < 0)
        return replace(self.folded, items=_with(self.folded.items, outer, made))


def _with(
    items: tuple[FoldedCalls | int, ...], numbers: Iterator[int], made: dict[int, FoldedCalls]
) -> tuple[FoldedCalls | int, ...]:
    return tuple(item if isinstance(item, int) or _is_single(item) else made[next(numbers)] for item in items)


def _is_single(group: FoldedCalls) -> bool:
    """Return whether the group is drawn as its only task."""
    return group.size == 1 and group.times == 1


def _fitted(graph: Graph, tree: _Tree, opened: frozenset[int], width: float, height: float) -> Layout | None:
    """Return the layout with these boxes open, or None if it is too large."""
    seen = (box.group for number, box in enumerate(tree.boxes) if tree.is_seen(number, opened))
    rows = len(tree.folded.items) + sum(len(group.items) - 1 for group in seen)
    if rows * LEAST_AREA > width * height:
        return None
    folded = tree.with_open(opened)
    for share in tree.tall:
        placed = lay_out(graph, folded, share * height, shapes=tree.shapes)
        if placed.width <= width and placed.height <= height:
            return placed
    return None


def _kind(box: _Box) -> tuple[int, str, str]:
    """Return the kind of a box: its parent, its name without the number, and its class, such as `layers.`, `Block`."""
    title, subtitle = box.group.title.partition(" – ")[0], box.group.subtitle.partition(" ×")[0]
    return box.parent, re.sub(r"\d+", "", title), subtitle
