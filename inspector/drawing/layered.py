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
from itertools import accumulate, pairwise
from math import sqrt

from .arrangement import GUTTER, ITEM_GAP, RANK_GAP, Arrangement, Extent, Link, Port
from .net import Net
from .packing import pack
from .routes import draw

WIDEST_RANK = 1500
LEAST_COLUMN = 480  # a lower column is not cut


def arrange(
    extents: Sequence[Extent],
    ranks: Sequence[int],
    links: Sequence[Link],
    entries: Sequence[Port],
    exits: Sequence[Port],
    aspect: float,
) -> Arrangement:
    """Lays out the items of one box.

    Args:
        extents: of each item, in pixels.
        ranks: of each item; every link goes to a higher rank.
        links, entries, exits: the wires within the box, and those that come into it and leave it.
        aspect: the width to height that cutting into columns aims at.
    """
    ranks = _without_wide_ranks(extents, ranks)
    cuts = _cuts(extents, ranks, links, aspect)
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


def _cuts(extents: Sequence[Extent], ranks: Sequence[int], links: Sequence[Link], aspect: float) -> list[int]:
    """The first rank of each column, and the number of ranks."""
    count = max(ranks) + 1
    heights = [0.0] * count
    widths = [-float(ITEM_GAP)] * count
    for rank, extent in zip(ranks, extents, strict=True):
        heights[rank] = max(heights[rank], extent.height + RANK_GAP)
        widths[rank] += extent.left + extent.right + ITEM_GAP
    ends = [0.0, *accumulate(heights)]
    if ends[-1] <= LEAST_COLUMN:
        return [0, count]
    crossing = [0] * (count + 1)
    for link in links:
        crossing[ranks[link.source] + 1] += 1
        crossing[ranks[link.target] + 1] -= 1
    crossing = list(accumulate(crossing))
    typical = sorted(widths)[int(0.8 * (count - 1))] + GUTTER
    guess = round(sqrt(aspect * ends[-1] / typical))
    best = [0, count]
    least = ends[-1]
    for columns in sorted({2, guess - 1, guess, guess + 1, guess + 2}):
        if 2 <= columns <= ends[-1] / LEAST_COLUMN * 2:
            cuts = _balanced_cuts(ends, crossing, columns)
            spans = list(pairwise(cuts))
            width = sum(max(widths[first:end]) + GUTTER for first, end in spans)
            height = max(ends[end] - ends[first] for first, end in spans)
            score = max(width / aspect, height) + 5 * sum(crossing[cut] - 1 for cut in cuts[1:-1])
            if score < least:
                best, least = cuts, score
    return best


def _balanced_cuts(ends: list[float], crossing: list[int], columns: int) -> list[int]:
    """Cuts into so many columns at most, none much higher than it has to be."""
    height = ends[-1] / columns
    while len(cuts := _fill(ends, crossing, height)) > columns + 1:
        height *= 1.06
    return cuts


def _fill(ends: list[float], crossing: list[int], height: float) -> list[int]:
    """Cuts where the fewest wires cross, each column at most so high unless one rank is higher."""
    cuts = [0]
    last = len(ends) - 1
    while ends[last] - ends[cuts[-1]] > height * 1.04:
        start = cuts[-1]
        full = max(start + 1, bisect_right(ends, ends[start] + height * 1.04) - 1)
        early = min(full, max(start + 1, bisect_left(ends, ends[start] + height * 0.8)))
        cuts.append(min(range(full, early - 1, -1), key=crossing.__getitem__))
    return cuts if cuts[-1] == last else [*cuts, last]
