"""Layered layout of one box: ranks from top to bottom, columns from left to right, and the points of wires."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import sqrt

from .column_positions import pack
from .crossing_reduction import FAR, Net, Piece
from .layout_types import GUTTER, ITEM_GAP, LANE, LAYOUT, RANK_GAP, Arrangement, Extent, Link, Point, Port


class _Drawing:
    """Positions of columns, side by side, and ranks, below one another, and the points of each wire."""

    def __init__(self, net: Net, extents: Sequence[Extent]) -> None:
        self.net = net
        self.extents = extents
        self.heights = [0.0] * net.cuts[-1]
        for rank, extent in zip(net.rank, extents, strict=False):
            self.heights[rank] = max(self.heights[rank], extent.height)
        self.gutters = self._gutters()
        self.above: float = max((LANE * len(lanes) + 4 for lanes in self.gutters.values()), default=0)
        self.tops = [0.0] * net.cuts[-1]
        self.floors: list[float] = []  # bottom of each column
        for first, end in pairwise(net.cuts):  # stack the ranks; the gap is wider where wires run far sideways
            y: float = self.above
            for rank in range(first, end):
                self.tops[rank] = y
                y += self.heights[rank]
                if rank + 1 < end:
                    y += RANK_GAP + self._fan(net.layers[rank])
            self.floors.append(y)
        self.starts: list[float] = []  # left edge of each column
        edge = 0.0
        for column, (first, end) in enumerate(pairwise(net.cuts)):
            nodes = [node for layer in net.layers[first:end] for node in layer]
            if column:
                edge += GUTTER + LANE * len(self.gutters.get(column, ()))
            shift = edge - min(net.x[node] - net.left[node] for node in nodes)
            for node in nodes:
                net.x[node] += shift
            self.starts.append(edge)
            edge = max(net.x[node] + net.right[node] for node in nodes)
        self.width = edge

    def arrangement(self) -> Arrangement:
        net = self.net
        links = {piece.wire: self._points(piece, True, True) for piece in net.links}
        depth = self._draw_jumps(links)
        height = max(max(self.floors), depth)
        entries = {piece.wire: self._points(piece, False, True) for piece in net.entries}
        for points in entries.values():
            _extend(points, points[0][0], 0.0, at_start=True)
        exits = {piece.wire: self._points(piece, True, False) for piece in net.exits}
        for points in exits.values():
            _extend(points, points[-1][0], height)
        ys = [self.tops[net.rank[item]] for item in range(net.items)]
        return Arrangement(self.width, height, net.x[: net.items], ys, links, entries, exits)

    def _gutters(self) -> dict[int, dict[tuple[int, float], int]]:
        """Return for each column with wires from other columns the lane of each of their sources, the nearest first.

        The wire that ends furthest right uses the outermost lane, so that wires do not cross above the column.
        """
        net = self.net
        reach: dict[int, dict[tuple[int, float], float]] = defaultdict(dict)
        for before, after in net.jumps:
            lanes = reach[net.column[net.rank[after.nodes[0]]]]
            start = (before.nodes[0], before.leaves)
            lanes[start] = max(lanes.get(start, -FAR), net.x[after.nodes[0]])
        return {
            column: {start: lane for lane, start in enumerate(sorted(lanes, key=lanes.__getitem__))}
            for column, lanes in reach.items()
        }

    def _fan(self, layer: list[int]) -> float:
        net = self.net
        if len(layer) == 1 and len(net.down[layer[0]]) == 1:
            return 0
        furthest = max(
            (abs(net.x[below] - net.x[node] - by) for node in layer for below, by in net.down[node]), default=0
        )
        return min(48.0, max(0.0, (furthest - 40) / 9))

    def _points(self, piece: Piece, at_source: bool, at_target: bool) -> list[Point]:
        """Return the points from the source's foot (or the column's first rank) to the target's top."""
        net, tops, heights = self.net, self.tops, self.heights
        points: list[Point] = []
        nodes = piece.nodes
        for number, node in enumerate(nodes):
            x, rank = net.x[node], net.rank[node]
            top = tops[rank]
            if node >= net.items:
                _extend(points, x, top)
                _extend(points, x, top + heights[rank])
            elif at_source and number == 0:
                _extend(points, x + piece.leaves, top + self.extents[node].foot)
                _extend(points, x + piece.leaves, top + heights[rank])
            elif at_target:
                _extend(points, x + piece.arrives, top)
        return points

    def _draw_jumps(self, links: dict[int, list[Point]]) -> float:
        """Lead wires from the bottom of one column through the gutter to the top of another.

        Returns:
            The y of the lowest point.
        """
        net = self.net
        lowest = 0.0
        lanes: list[tuple[float, float]] = []  # lanes below the columns: the x from which it is free, and its y
        jumps = []
        for before, after in net.jumps:
            head = self._points(before, True, False)
            column = net.column[net.rank[after.nodes[0]]]
            start = (before.nodes[0], before.leaves)
            gutter = self.starts[column] - GUTTER / 2 - LANE * self.gutters[column][start]
            jumps.append((gutter, -head[-1][0], start, column, before, after, head))
        jumps.sort(key=lambda jump: jump[:4])
        taken: dict[tuple[int, float], dict[float, float]] = defaultdict(dict)
        for gutter, from_, start, column, before, after, head in jumps:
            here = net.column[net.rank[before.nodes[0]]]
            y = taken[start].get(gutter)
            if y is None:
                floor = max(self.floors[here:column]) + 8
                number = next(
                    (number for number, (free, at) in enumerate(lanes) if free < -from_ - LANE and at >= floor),
                    len(lanes),
                )
                if number == len(lanes):
                    y = max([floor, *(at + LANE for _, at in lanes)]) if lanes else floor
                    lanes.append((gutter, y))
                else:
                    y = lanes[number][1]
                    lanes[number] = (gutter, y)
                taken[start][gutter] = y
            lowest = max(lowest, y)
            tail = self._points(after, False, True)
            above = self.above - 4 - LANE * self.gutters[column][start]
            _extend(head, -from_, y)
            for x, at in ((gutter, y), (gutter, above), (tail[0][0], above), *tail):
                _extend(head, x, at)
            links[after.wire] = head
        return lowest


def _extend(points: list[Point], x: float, y: float, *, at_start: bool = False) -> None:
    """Add a point; it replaces the previous point if that lies on the same vertical line."""
    end, before = (0, 1) if at_start else (-1, -2)
    if points and points[end] == (x, y):
        return
    if len(points) > 1 and points[end][0] == points[before][0] == x:
        points[end] = (x, y)
    elif at_start:
        points.insert(0, (x, y))
    else:
        points.append((x, y))


WIDEST_RANK: int = LAYOUT["WIDEST_RANK"]
# Columns are not cut if the picture would become wider than this many times its height.
WIDEST_SHAPE: int = LAYOUT["WIDEST_SHAPE"]
HALVINGS: int = LAYOUT["HALVINGS"]  # steps of the bisection for the height of balanced columns


def arrange(
    extents: Sequence[Extent],
    ranks: Sequence[int],
    links: Sequence[Link],
    entries: Sequence[Port],
    exits: Sequence[Port],
    tall: float,
) -> Arrangement:
    """Lay out the items of one box.

    Args:
        extents: extent of each item, in pixels.
        ranks: rank of each item; every link leads to a higher rank.
        links, entries, exits: wires within the box, into the box, and out of it.
        tall: maximum height of a column.
    """
    ranks = _without_wide_ranks(extents, ranks)
    cuts = _cuts(extents, ranks, links, tall)
    net = Net(extents, ranks, cuts)
    net.thread(links, entries, exits)
    net.sort()
    pack(net)
    return _Drawing(net, extents).arrangement()


def _without_wide_ranks(extents: Sequence[Extent], ranks: Sequence[int]) -> list[int]:
    """Split ranks that are too wide. Items of one rank do not depend on each other, so some can move further down."""
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
    """Return the first rank of each column, and the number of ranks: the fewest columns that are not too tall."""
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
    crossing = list(accumulate(crossing))
    cuts = _fill(ends, crossing, most)
    low, high = ends[-1] / (len(cuts) - 1), most  # find the lowest height with that many columns
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        lower = _fill(ends, crossing, middle)
        if len(lower) > len(cuts):
            low = middle
        else:
            cuts, high = lower, middle
    return cuts


def _fill(ends: list[float], crossing: list[int], height: float) -> list[int]:
    """Cut where the fewest wires cross. A column is higher than `height` only if a single rank is."""
    cuts = [0]
    last = len(ends) - 1
    while ends[last] - ends[cuts[-1]] > height:
        start = cuts[-1]
        full = max(start + 1, bisect_right(ends, ends[start] + height) - 1)
        early = min(full, max(start + 1, bisect_left(ends, ends[start] + height * 0.8)))
        cuts.append(min(range(full, early - 1, -1), key=crossing.__getitem__))
    return cuts if cuts[-1] == last else [*cuts, last]
