"""What the layout of one box takes and gives: extents of its items, wires between them; positions and points."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

LAYOUT: dict[str, Any] = json.loads(Path(__file__).with_name("layout_constants.json").read_text(encoding="utf-8"))
"""Sizes in pixels and counts that the layout of the deck reads, too."""

RANK_GAP: int = LAYOUT["RANK_GAP"]  # rows are 26 apart: 20 of a task, and this
ITEM_GAP: int = LAYOUT["ITEM_GAP"]
WIRE_GAP: int = LAYOUT["WIRE_GAP"]
GUTTER: int = LAYOUT["GUTTER"]  # between columns
LANE: int = LAYOUT["LANE"]  # between wires that run side by side around the columns

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Extent:
    """The room an item takes on both sides of its axis and below its top. Wires leave it at `foot`."""

    left: float
    right: float
    height: float
    foot: float


class Link(NamedTuple):
    """A wire from one item to another, with its distance from their axes where it leaves and where it arrives.

    Of the wires that leave an item, that of the greatest `weight` is straight where it can be, and that of a lower
    `output` is left of the others where nothing speaks against it.
    """

    source: int
    target: int
    wire: int
    leaves: float = 0
    arrives: float = 0
    weight: float = 0
    output: int = 0


class Port(NamedTuple):
    """Where a wire crosses the edge of the box: it comes to (or from) `item`, so far from its axis."""

    item: int
    wire: int
    shift: float = 0
    weight: float = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where the items' axes and tops are, and the points of each wire, from the corner of the box's content.

    The points of an entry start at the content's top, those of an exit end at its bottom.
    """

    width: float
    height: float
    xs: list[float]
    ys: list[float]
    links: dict[int, list[Point]]
    entries: dict[int, list[Point]]
    exits: dict[int, list[Point]]
