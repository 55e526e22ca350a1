"""The layered layout of what is directly in one box: ranks from top to bottom, columns from left to right.

The steps are Sugiyama's (ranks, order within ranks, positions), with three changes. A long column is cut, and goes on in the
next one at the right. The heaviest path is the spine of its column and exactly straight; everything else is packed towards
it, as rigid chains that are aligned where they can be (after Brandes and Köpf, Fast and Simple Horizontal Coordinate
Assignment, 2001). Where a wire passes a rank it holds a place of its own there, so it never crosses a box: between its places
it only moves sideways in the gap between two ranks, or in the lanes around the columns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import sqrt
from typing import NamedTuple

RANK_GAP = 14
ITEM_GAP = 14
WIRE_GAP = 9
GUTTER = 20
LANE = 6
WIDEST_RANK = 1500
LEAST_COLUMN = 480  # a lower column is not cut
SWEEPS = 4
_FAR = float("inf")

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

    Of the wires that leave an item, that of the greatest `weight` is straight where it can be.
    """

    source: int
    target: int
    wire: int
    leaves: float = 0
    arrives: float = 0
    weight: float = 0


class Port(NamedTuple):
    """Where a wire crosses the edge of the box: it comes to (or from) `item`, so far from its axis."""

    item: int
    wire: int
    shift: float = 0
    weight: float = 0


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
    net = _Net(extents, ranks, cuts)
    net.thread(links, entries, exits)
    net.sort()
    net.place()
    return _Drawing(net, extents).arrangement()


def _without_wide_ranks(extents: Sequence[Extent], ranks: Sequence[int]) -> list[int]:
    """Ranks in which no row is too wide: the items of one rank don't depend on each other, so some can go further down."""
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


class _Piece(NamedTuple):
    """The part of a wire that lies in one column: the nodes that it goes through, and its shift at both ends."""

    wire: int
    nodes: list[int]
    leaves: float
    arrives: float


class _Net:
    """Items and the places that wires hold in the ranks they pass, as nodes of a graph whose edges span one rank."""

    def __init__(self, extents: Sequence[Extent], ranks: list[int], cuts: list[int]) -> None:
        self.items = len(extents)
        self.cuts = cuts
        self.rank = ranks
        self.left = [extent.left for extent in extents]
        self.right = [extent.right for extent in extents]
        self.up: list[list[tuple[int, float]]] = [[] for _ in extents]  # (node above, x of this node - x of that one)
        self.down: list[list[tuple[int, float]]] = [[] for _ in extents]
        self.column = [column for column, (first, end) in enumerate(pairwise(cuts)) for _ in range(first, end)]
        self.weight = [0.0] * len(extents)  # of the heaviest wire at an item; of a place, that of its wire
        self.links: list[_Piece] = []
        self.jumps: list[tuple[_Piece, _Piece]] = []  # wires from one column to another
        self.entries: list[_Piece] = []
        self.exits: list[_Piece] = []
        self.layers: list[list[int]] = []
        self.place_of: list[int] = []
        self.x: list[float] = []

    def thread(self, links: Sequence[Link], entries: Sequence[Port], exits: Sequence[Port]) -> None:
        """Gives each wire its places."""
        rank, cuts, column, weights = self.rank, self.cuts, self.column, self.weight
        # By wire number, so that of two wires that leave an item that of the lower output is the left one.
        for each in sorted([*links, *exits], key=lambda each: each.wire):
            weights[each[0]] = max(weights[each[0]], each.weight)
            if isinstance(each, Port):
                item, wire, shift, weight = each
                nodes = [item, *self._passes(range(rank[item] + 1, cuts[column[rank[item]] + 1]), weight)]
                self.exits.append(self._piece(wire, nodes, shift, 0))
                continue
            source, target, wire, leaves, arrives, weight = each
            weights[target] = max(weights[target], weight)
            first, last = rank[source], rank[target]
            here, there = column[first], column[last]
            if here == there:
                nodes = [source, *self._passes(range(first + 1, last), weight), target]
                self.links.append(self._piece(wire, nodes, leaves, arrives))
            else:
                nodes = [source, *self._passes(range(first + 1, cuts[here + 1]), weight)]
                rest = [*self._passes(range(cuts[there], last), weight), target]
                self.jumps.append((self._piece(wire, nodes, leaves, 0), self._piece(wire, rest, 0, arrives)))
        for item, wire, shift, weight in entries:
            weights[item] = max(weights[item], weight)
            nodes = [*self._passes(range(cuts[column[rank[item]]], rank[item]), weight), item]
            self.entries.append(self._piece(wire, nodes, 0, shift))

    def _passes(self, ranks: range, weight: float) -> range:
        if not ranks:
            return range(0)
        start = len(self.rank)
        count = len(ranks)
        self.rank.extend(ranks)
        self.left.extend([1.0] * count)
        self.right.extend([1.0] * count)
        self.weight.extend([weight] * count)
        self.up.extend([] for _ in ranks)
        self.down.extend([] for _ in ranks)
        return range(start, start + count)

    def _piece(self, wire: int, nodes: list[int], leaves: float, arrives: float) -> _Piece:
        last = len(nodes) - 2
        for number, (above, below) in enumerate(pairwise(nodes)):
            shift = (leaves if number == 0 else 0) - (arrives if number == last else 0)
            self.down[above].append((below, shift))
            self.up[below].append((above, shift))
        return _Piece(wire, nodes, leaves, arrives)

    def sort(self) -> None:
        """Orders each rank by the mean place of its neighbours above and below, in turns; keeps the best order seen."""
        self.layers = self._first_order()
        self.place_of = [0] * len(self.rank)
        self._note_places()
        if max(map(len, self.layers)) < 2:
            return
        best = [list(layer) for layer in self.layers]
        fewest = self._crossings()
        for sweep in range(SWEEPS):
            if fewest == 0:
                break
            neighbours = self.down if sweep % 2 else self.up
            for layer in reversed(self.layers) if sweep % 2 else self.layers:
                if len(layer) > 1:
                    self._sort_layer(layer, neighbours, -0.001 if sweep % 2 else 0.001)
            crossings = self._crossings()
            if crossings < fewest:
                best = [list(layer) for layer in self.layers]
                fewest = crossings
        self.layers = best
        self._note_places()

    def _first_order(self) -> list[list[int]]:
        """The order in which a walk downwards meets the nodes: most graphs are nearly trees, and have no crossing then."""
        layers: list[list[int]] = [[] for _ in range(self.cuts[-1])]
        seen = bytearray(len(self.rank))
        rank = self.rank
        stack = [node for node in range(len(rank)) if not self.up[node]]
        stack.sort(key=lambda node: (-rank[node], -node))
        while stack:
            node = stack.pop()
            if not seen[node]:
                seen[node] = 1
                layers[rank[node]].append(node)
                stack.extend(below for below, _ in reversed(self.down[node]))
        return layers

    def _sort_layer(self, layer: list[int], neighbours: list[list[tuple[int, float]]], tilt: float) -> None:
        place_of = self.place_of
        keys = {}
        for node in layer:
            near = neighbours[node]
            if near:  # of wires to one box, the one further left comes first
                keys[node] = sum(place_of[other] + shift * tilt for other, shift in near) / len(near)
            else:
                keys[node] = place_of[node]
        layer.sort(key=keys.__getitem__)
        for place, node in enumerate(layer):
            place_of[node] = place

    def _note_places(self) -> None:
        for layer in self.layers:
            for place, node in enumerate(layer):
                self.place_of[node] = place

    def _crossings(self) -> int:
        place_of, down = self.place_of, self.down
        count = 0
        for layer in self.layers:
            if len(layer) < 2:
                continue
            ends: list[tuple[int, float]] = []
            for node in layer:
                near = down[node]
                if not near:
                    continue
                if len(near) == 1:
                    found = [(place_of[near[0][0]], near[0][1])]
                else:
                    found = sorted([(place_of[below], shift) for below, shift in near])
                for end in found:
                    if ends and ends[-1] > end:
                        count += len(ends) - bisect_right(ends, (end[0], _FAR))
                        insort(ends, end)
                    else:
                        ends.append(end)
        return count

    def place(self) -> None:
        """Gives each node its x, from the spine of its column."""
        self.x = [0.0] * len(self.rank)
        jumps = sorted(self.jumps, key=lambda jump: self.weight[jump[1].nodes[0]])
        after_jump = {before.nodes[-1]: after.nodes[0] for before, after in jumps}
        entered = {piece.nodes[0] for piece in self.entries}
        start: int | None = None
        for first, end in pairwise(self.cuts):
            layers = self.layers[first:end]
            if start is None or self.rank[start] != first:
                start = max(layers[0], key=lambda node: (node in entered, self.weight[node]))
            spine = self._spine(start)
            if len(spine) < len(layers) or max(map(len, layers)) > 1:
                _Column(self, layers, spine).place()
            start = after_jump.get(spine[-1])

    def _spine(self, node: int) -> list[int]:
        spine = [node]
        while self.down[node]:
            node = self.main(node)[0]
            spine.append(node)
        return spine

    def main(self, node: int) -> tuple[int, float]:
        """Of the nodes below that of the heaviest wire; of several equally heavy ones that in the middle."""
        below = self.down[node]
        if len(below) == 1:
            return below[0]
        heaviest = max(self.weight[other] for other, _ in below)
        equal = sorted((self.place_of[other], other, shift) for other, shift in below if self.weight[other] == heaviest)
        _, other, shift = equal[len(equal) // 2]
        return other, shift


class _Column:
    """The nodes of one column as rigid chains, pushed towards the spine from both sides."""

    def __init__(self, net: _Net, layers: list[list[int]], spine: list[int]) -> None:
        self.net = net
        self.layers = layers
        self.spine = set(spine)
        self.chain: dict[int, int] = {}  # node -> number of its chain
        self.offset: dict[int, float] = {}  # node -> its x from that of its chain
        self.chains: list[list[int]] = []

    def place(self) -> None:
        """Sets `net.x` of the column's nodes."""
        self._make_chains(self._aligned())
        positions = self._packed()
        if positions is None:  # chains cross in a way that no position satisfies: then nothing is aligned
            self.chain, self.offset, self.chains = {}, {}, []
            self._make_chains({})
            positions = self._packed()
            assert positions is not None, "single nodes in rows can always be placed"
        x = self.net.x
        for node, chain in self.chain.items():
            x[node] = positions[chain] + self.offset[node]

    def _aligned(self) -> dict[int, tuple[int, float]]:
        """Which node is to be straight below which, without crossings; wires before boxes, the spine before all."""
        net, spine = self.net, self.spine
        aligned: dict[int, tuple[int, float]] = {}
        for layer in self.layers[:-1]:
            wanted: dict[int, tuple[int, int, float]] = {}
            for node in layer:
                if not net.down[node]:
                    continue
                below, shift = net.main(node)
                if (node in spine) != (below in spine):
                    continue
                priority = 4 if node in spine else 1 + (node >= net.items) + (below >= net.items)
                if below not in wanted or wanted[below][0] < priority:
                    wanted[below] = priority, node, shift
            accepted: list[tuple[int, int, int, int, float]] = []
            for candidate in sorted(
                (net.place_of[node], net.place_of[below], priority, node, shift)
                for below, (priority, node, shift) in wanted.items()
            ):
                while accepted and accepted[-1][1] > candidate[1] and accepted[-1][2] < candidate[2]:
                    accepted.pop()
                if not accepted or accepted[-1][1] < candidate[1]:
                    accepted.append(candidate)
            by_place = {net.place_of[below]: below for below in wanted}
            for _, place, _, node, shift in accepted:
                aligned[node] = by_place[place], shift
        return aligned

    def _make_chains(self, aligned: dict[int, tuple[int, float]]) -> None:
        """Chain 0 is the spine, with every node at 0: where its wires leave a wide box aside, they bend, and it goes on."""
        self.chains.append(sorted(self.spine, key=self.net.rank.__getitem__))
        for node in self.chains[0]:
            self.chain[node], self.offset[node] = 0, 0.0
        for layer in self.layers:
            for node in layer:
                if node in self.chain:
                    continue
                chain = len(self.chains)
                self.chains.append([])
                offset = 0.0
                while True:
                    self.chain[node], self.offset[node] = chain, offset
                    self.chains[chain].append(node)
                    if node not in aligned:
                        break
                    node, shift = aligned[node]
                    offset += shift

    def _packed(self) -> list[float] | None:
        """The x of each chain: those on either side of the spine as near to it as they can be, then nearer to their own."""
        sides = self._sides()
        positions = [0.0] * len(self.chains)
        pushed = []
        for sign in (-1, 1):
            push = self._push([row[sign] for row in sides], sign, positions)
            if push is None:
                return None
            pushed.append((sign, *push))
        for sign, order, limits in pushed:
            self._loosen(sign, order, limits, positions)
        return positions

    def _sides(self) -> list[dict[int, list[int]]]:
        """For each rank the nodes left (-1) and right (1) of the spine, from the spine outwards, and the spine's node (0).

        Below the end of the spine a chain stays on the side where its upper neighbour is.
        """
        side = {0: 0}
        rows = []
        for layer in self.layers:
            middle = next((place for place, node in enumerate(layer) if node in self.spine), None)
            row: dict[int, list[int]] = {-1: [], 0: [], 1: []}
            for place, node in enumerate(layer):
                chain = self.chain[node]
                if chain not in side:
                    if middle is not None:
                        side[chain] = -1 if place < middle else 1
                    else:
                        above = [side.get(self.chain.get(other, 0), 0) for other, _ in self.net.up[node]]
                        side[chain] = -1 if sum(above) < 0 else 1
                row[side[chain]].append(node)
            row[-1].reverse()
            rows.append(row)
        return rows

    def _push(
        self, rows: list[list[int]], sign: int, positions: list[float]
    ) -> tuple[list[int], dict[int, list[tuple[int, float]]]] | None:
        """Sets the positions of the chains on one side. Gives them from the spine outwards, with the least distances.

        `None` if they cross in a circle.
        """
        net, chain_of, offset = self.net, self.chain, self.offset
        outer, inner = (net.right, net.left) if sign > 0 else (net.left, net.right)
        apart: dict[int, list[tuple[int, float]]] = defaultdict(list)
        missing: dict[int, int] = {}
        for layer, row in zip(self.layers, rows, strict=True):
            if not row:
                continue
            previous = next((node for node in layer if node in self.spine), None)
            for node in row:
                chain = chain_of[node]
                missing.setdefault(chain, 0)
                if previous is None:
                    least = ITEM_GAP / 2 + inner[node] - sign * offset[node]
                    positions[chain] = sign * max(sign * positions[chain], least)
                else:
                    both_items = node < net.items and previous < net.items
                    least = outer[previous] + (ITEM_GAP if both_items else WIRE_GAP) + inner[node]
                    before = chain_of[previous]
                    least += sign * (offset[previous] - offset[node])
                    if before == 0:
                        positions[chain] = sign * max(sign * positions[chain], least)
                    else:
                        apart[before].append((chain, least))
                        missing[chain] += 1
                previous = node
        order = [chain for chain, count in missing.items() if not count]
        for chain in order:
            for after, least in apart[chain]:
                positions[after] = sign * max(sign * positions[after], sign * positions[chain] + least)
                missing[after] -= 1
                if not missing[after]:
                    order.append(after)
        return (order, apart) if len(order) == len(missing) else None

    def _loosen(
        self, sign: int, order: list[int], apart: dict[int, list[tuple[int, float]]], positions: list[float]
    ) -> None:
        """Moves chains outwards, where there is room, to be straight with what they are joined to."""
        net, chain_of, offset = self.net, self.chain, self.offset
        for chain in reversed(order):
            wanted = []
            for node in self.chains[chain]:
                for neighbours, way in ((net.up[node], 1), (net.down[node], -1)):
                    for other, shift in neighbours:
                        if chain_of.get(other, chain) != chain:
                            place = positions[chain_of[other]] + offset[other] + way * shift - offset[node]
                            wanted.append(sign * place)
            if not wanted:
                continue
            wanted.sort()
            distance = sign * positions[chain]
            room = min((sign * positions[after] - least for after, least in apart[chain]), default=wanted[-1])
            positions[chain] = sign * max(distance, min(wanted[(len(wanted) - 1) // 2], room))


class _Drawing:
    """Columns side by side, ranks at their heights, and each wire's places as points."""

    def __init__(self, net: _Net, extents: Sequence[Extent]) -> None:
        self.net = net
        self.extents = extents
        self.heights = [0.0] * net.cuts[-1]
        for rank, extent in zip(net.rank, extents, strict=False):
            self.heights[rank] = max(self.heights[rank], extent.height)
        self.gutters = self._gutters()
        self.above = max((LANE * len(lanes) + 4 for lanes in self.gutters.values()), default=0)
        self.tops = [0.0] * net.cuts[-1]
        self.floors: list[float] = []  # the bottom of each column
        self._stack_ranks()
        self.starts: list[float] = []  # the left edge of each column
        self.width = self._set_columns_side_by_side()

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
        """For each column with wires from others: its lane, counted from the column, for each place wires come from.

        The wire that goes furthest right takes the outermost lane, so that they don't cross above the column.
        """
        net = self.net
        reach: dict[int, dict[tuple[int, float], float]] = defaultdict(dict)
        for before, after in net.jumps:
            lanes = reach[net.column[net.rank[after.nodes[0]]]]
            start = (before.nodes[0], before.leaves)
            lanes[start] = max(lanes.get(start, -_FAR), net.x[after.nodes[0]])
        return {
            column: {start: lane for lane, start in enumerate(sorted(lanes, key=lanes.__getitem__))}
            for column, lanes in reach.items()
        }

    def _stack_ranks(self) -> None:
        """The tops of the ranks. Where wires go far sideways between two ranks, the gap is wider."""
        net = self.net
        for first, end in pairwise(net.cuts):
            y = self.above
            for rank in range(first, end):
                self.tops[rank] = y
                y += self.heights[rank]
                if rank + 1 < end:
                    y += RANK_GAP + self._fan(net.layers[rank])
            self.floors.append(y)

    def _fan(self, layer: list[int]) -> float:
        net = self.net
        if len(layer) == 1 and len(net.down[layer[0]]) == 1:
            return 0
        furthest = max(
            (abs(net.x[below] - net.x[node] - by) for node in layer for below, by in net.down[node]), default=0
        )
        return min(48.0, max(0.0, (furthest - 110) / 9))

    def _set_columns_side_by_side(self) -> float:
        net = self.net
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
        return edge

    def _points(self, piece: _Piece, at_source: bool, at_target: bool) -> list[Point]:
        """From the source's foot (or the column's first rank) through the places held to the target's top."""
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
        """Leads wires from the bottom of one column through the gutter to the top of another. Gives the lowest point."""
        net = self.net
        lowest = 0.0
        lanes: list[tuple[float, float]] = []  # of each lane below the columns: where it is free from, and its y
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
    """Adds a point, in place of one that lies on the straight vertical way to it."""
    end, before = (0, 1) if at_start else (-1, -2)
    if points and points[end] == (x, y):
        return
    if len(points) > 1 and points[end][0] == points[before][0] == x:
        points[end] = (x, y)
    elif at_start:
        points.insert(0, (x, y))
    else:
        points.append((x, y))
