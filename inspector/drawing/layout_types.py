"""Input and output of the layout of one box: extents and wires; positions and points."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

LAYOUT: dict[str, Any] = json.loads(Path(__file__).with_name("layout_constants.json").read_text(encoding="utf-8"))
"""Sizes in pixels and counts, shared with the deck's layout."""

RANK_GAP: int = LAYOUT["RANK_GAP"]  # between rows; a task is 20 high, so rows are 26 apart
ITEM_GAP: int = LAYOUT["ITEM_GAP"]
WIRE_GAP: int = LAYOUT["WIRE_GAP"]
GUTTER: int = LAYOUT["GUTTER"]  # between columns
LANE: int = LAYOUT["LANE"]  # between parallel wires around the columns

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Extent:
    """The space an item needs on both sides of its axis and below its top. Wires leave it at `foot`."""

    left: float
    right: float
    height: float
    foot: float


class Link(NamedTuple):
    """A wire from one item to another. `leaves` and `arrives` are its distances from the axes of both.

    Of the wires that leave an item, the one of the greatest `weight` is straight if possible. Wires of lower `output`
    numbers are preferably further left.
    """

    source: int
    target: int
    wire: int
    leaves: float = 0
    arrives: float = 0
    weight: float = 0
    output: int = 0


class Port(NamedTuple):
    """A wire across the edge of the box, to or from `item`, at the distance `shift` from the item's axis."""

    item: int
    wire: int
    shift: float = 0
    weight: float = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Axes and tops of the items and points of the wires, relative to the top left corner of the box's contents.

    The points of an entry start at the top of the contents, those of an exit end at the bottom.
    """

    width: float
    height: float
    xs: list[float]
    ys: list[float]
    links: dict[int, list[Point]]
    entries: dict[int, list[Point]]
    exits: dict[int, list[Point]]
