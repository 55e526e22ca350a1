"""The layered layout of what is directly in one box: ranks from top to bottom, columns from left to right.

The steps are Sugiyama's (ranks, order within ranks, positions), with three changes. A long column is cut, and goes on
in the next one at the right. The heaviest path is the spine of its column and exactly straight; everything else is
packed towards it, as rigid chains that are aligned where they can be (after Brandes and Köpf, Fast and Simple
Horizontal Coordinate Assignment, 2001). Where a wire passes a rank it holds a place of its own there, so it never
crosses a box: between its places it only moves sideways in the gap between two ranks, or in the lanes around the
columns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt

from .arrangement import GUTTER, ITEM_GAP, RANK_GAP, Arrangement, Extent, Link, Port
from .net import Net
from .packing import pack
from .routes import draw

WIDEST_RANK = 1500
WIDEST_SHAPE = 6  # no picture is made so many times as wide as it is high to keep its columns low
HALVINGS = 12  # in which the height of balanced columns is found


def arrange(
    extents: Sequence[Extent],
    ranks: Sequence[int],
    links: Sequence[Link],
    entries: Sequence[Port],
    exits: Sequence[Port],
    tall: float,
) -> Arrangement:
    """Lays out the items of one box.

    Args:
        extents: of each item, in pixels.
        ranks: of each item; every link goes to a higher rank.
        links, entries, exits: the wires within the box, and those that come into it and leave it.
        tall: columns are cut to be no taller.
    """
    ranks = _without_wide_ranks(extents, ranks)
    cuts = _cuts(extents, ranks, links, tall)
    net = Net(extents, ranks, cuts)
    net.thread(links, entries, exits)
    net.sort()
    pack(net)
    return draw(net, extents)


def _without_wide_ranks(extents: Sequence[Extent], ranks: Sequence[int]) -> list[int]:
    """Ranks none of which is too wide: the items of one don't depend on each other, so some can go further down."""
    rows: list[list[int]] = [[] for _ in range(max(ranks) + 1)]
    for item, rank in enumerate(ranks):
        rows[rank].append(item)
    narrow = [0] * len(ranks)
    rank = -1
    for row in rows:
        rank += 1
        width = 0.0
        for item in row:
            needed = extents[item].left + extents[item].right + ITEM_GAP
            if width and width + needed > WIDEST_RANK:
                rank += 1
                width = 0
            width += needed
            narrow[item] = rank
    return narrow


def _cuts(extents: Sequence[Extent], ranks: Sequence[int], links: Sequence[Link], tall: float) -> list[int]:
    """The first rank of each column, and the number of ranks: as few columns as are no taller than they may be."""
    count = max(ranks) + 1
    heights = [0.0] * count
    widths = [-float(ITEM_GAP)] * count
    for rank, extent in zip(ranks, extents, strict=True):
        heights[rank] = max(heights[rank], extent.height + RANK_GAP)
        widths[rank] += extent.left + extent.right + ITEM_GAP
    ends = [0.0, *accumulate(heights)]
    if ends[-1] <= tall + RANK_GAP:
        return [0, count]
    crossing = [0] * (count + 1)
    for link in links:
        crossing[ranks[link.source] + 1] += 1
        crossing[ranks[link.target] + 1] -= 1
    typical = sorted(widths)[int(0.8 * (count - 1))] + GUTTER
    most = max(tall, sqrt(ends[-1] * typical / WIDEST_SHAPE)) + RANK_GAP
    return _balanced_cuts(ends, list(accumulate(crossing)), most)


def _balanced_cuts(ends: list[float], crossing: list[int], most: float) -> list[int]:
    """As many columns as it takes where none is taller than `most`, and none much taller than it has to be."""
    cuts = _fill(ends, crossing, most)
    low, high = ends[-1] / (len(cuts) - 1), most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        lower = _fill(ends, crossing, middle)
        if len(lower) > len(cuts):
            low = middle
        else:
            cuts, high = lower, middle
    return cuts


def _fill(ends: list[float], crossing: list[int], height: float) -> list[int]:
    """Cuts where the fewest wires cross, each column at most so high unless one rank is higher."""
    cuts = [0]
    last = len(ends) - 1
    while ends[last] - ends[cuts[-1]] > height:
        start = cuts[-1]
        full = max(start + 1, bisect_right(ends, ends[start] + height) - 1)
        early = min(full, max(start + 1, bisect_left(ends, ends[start] + height * 0.8)))
        cuts.append(min(range(full, early - 1, -1), key=crossing.__getitem__))
    return cuts if cuts[-1] == last else [*cuts, last]
