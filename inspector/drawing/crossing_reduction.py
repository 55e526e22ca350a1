"""The order of items and wires within each rank of a box, chosen to reduce crossings."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from .layout_types import LAYOUT, Extent, Link, Port

SWEEPS: int = LAYOUT["SWEEPS"]
FAR = float("inf")


class Piece(NamedTuple):
    """The part of a wire within one column: the nodes it passes, and its shift at both ends."""

    wire: int
    nodes: list[int]
    leaves: float
    arrives: float


class Net:
    """A graph whose edges span one rank: its nodes are the items, and one place per rank for each passing wire."""

    def __init__(self, extents: Sequence[Extent], ranks: list[int], cuts: list[int]) -> None:
        self.items = len(extents)
        self.cuts = cuts
        self.rank = ranks
        self.left = [extent.left for extent in extents]
        self.right = [extent.right for extent in extents]
        self.up: list[list[tuple[int, float]]] = [[] for _ in extents]  # (node above, x of this node - x of that one)
        self.down: list[list[tuple[int, float]]] = [[] for _ in extents]
        self.column = [column for column, (first, end) in enumerate(pairwise(cuts)) for _ in range(first, end)]
        self.weight = [0.0] * len(extents)  # the heaviest wire at an item, or the wire at a place
        self.links: list[Piece] = []
        self.jumps: list[tuple[Piece, Piece]] = []  # wires from one column to another
        self.entries: list[Piece] = []
        self.exits: list[Piece] = []
        self.layers: list[list[int]] = []
        self.place_of: list[int] = []
        self.x: list[float] = []

    def thread(self, links: Sequence[Link], entries: Sequence[Port], exits: Sequence[Port]) -> None:
        """Reserve a place for each wire in every rank it passes."""
        for item, wire, shift, weight, _ in entries:
            self.weight[item] = max(self.weight[item], weight)
            rank = self.rank[item]
            nodes = [*self._passes(range(self.cuts[self.column[rank]], rank), weight), item]
            self.entries.append(self._piece(wire, nodes, 0, shift))
        leaving: list[Link | Port] = [*links, *exits]
        leaving.sort(key=lambda each: each.output)
        for each in leaving:
            if isinstance(each, Port):
                item, wire, shift, weight, _ = each
                self.weight[item] = max(self.weight[item], weight)
                rank = self.rank[item]
                nodes = [item, *self._passes(range(rank + 1, self.cuts[self.column[rank] + 1]), weight)]
                self.exits.append(self._piece(wire, nodes, shift, 0))
            else:
                source, target, wire, leaves, arrives, weight, _ = each
                self.weight[source] = max(self.weight[source], weight)
                self.weight[target] = max(self.weight[target], weight)
                first, last = self.rank[source], self.rank[target]
                here, there = self.column[first], self.column[last]
                if here == there:
                    nodes = [source, *self._passes(range(first + 1, last), weight), target]
                    self.links.append(self._piece(wire, nodes, leaves, arrives))
                else:
                    nodes = [source, *self._passes(range(first + 1, self.cuts[here + 1]), weight)]
                    rest = [*self._passes(range(self.cuts[there], last), weight), target]
                    self.jumps.append((self._piece(wire, nodes, leaves, 0), self._piece(wire, rest, 0, arrives)))

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

    def _piece(self, wire: int, nodes: list[int], leaves: float, arrives: float) -> Piece:
        last = len(nodes) - 2
        for number, (above, below) in enumerate(pairwise(nodes)):
            shift = (leaves if number == 0 else 0) - (arrives if number == last else 0)
            self.down[above].append((below, shift))
            self.up[below].append((above, shift))
        return Piece(wire, nodes, leaves, arrives)

    def sort(self) -> None:
        """Order the nodes of each rank so that few wires cross."""
        self.place_of = [0] * len(self.rank)
        self.layers = self._first_order(mirrored=False)
        self._note_places()
        fewest = self._crossings()
        if not fewest:
            return
        best = self.layers
        # The sweeps end in a local minimum, which depends on the start: try both, and keep the best order of all.
        for mirrored in (False, True):
            self.layers = self._first_order(mirrored)
            self._note_places()
            for sweep in range(SWEEPS):
                self._sweep(upwards=sweep % 2 == 1)
                crossings = self._crossings()
                if crossings < fewest:
                    best, fewest = [list(layer) for layer in self.layers], crossings
                if not crossings:
                    break
        self.layers = best
        self._note_places()

    def _first_order(self, mirrored: bool) -> list[list[int]]:
        """Return the order of a depth-first walk downwards. Most graphs are nearly trees, for which nothing crosses."""
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
                below = self.down[node]
                stack.extend(other for other, _ in (below if mirrored else reversed(below)))
        if mirrored:
            for layer in layers:
                layer.reverse()
        return layers

    def _sweep(self, upwards: bool) -> None:
        """Order each rank by the mean place of its neighbours in the rank before."""
        place_of, neighbours, tilt = self.place_of, self.down if upwards else self.up, -0.001 if upwards else 0.001
        for layer in reversed(self.layers) if upwards else self.layers:
            if len(layer) > 1:
                keys = {}
                for node in layer:
                    near = neighbours[node]
                    if near:  # `tilt` breaks ties: of wires to one box, the one further left comes first
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
                # Wires cross if they start left of one another and end right: count inversions as in insertion sort.
                for end in found:
                    if ends and ends[-1] > end:
                        count += len(ends) - bisect_right(ends, (end[0], FAR))
                        insort(ends, end)
                    else:
                        ends.append(end)
        return count

    def main(self, node: int) -> tuple[int, float]:
        """Return the node below on the heaviest wire; of several equally heavy wires, the middle one."""
        below = self.down[node]
        if len(below) == 1:
            return below[0]
        heaviest = max(self.weight[other] for other, _ in below)
        equal = sorted((self.place_of[other], other, shift) for other, shift in below if self.weight[other] == heaviest)
        _, other, shift = equal[len(equal) // 2]
        return other, shift
