"""The x positions of the nodes in a column: a straight spine, and rigid chains packed towards it."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from .crossing_reduction import Net
from .layout_types import ITEM_GAP, LAYOUT, WIRE_GAP

WIDE: int = LAYOUT["WIDE"]


def pack(net: Net) -> None:
    """Set the x of each node, relative to the spine of its column."""
    net.x = [0.0] * len(net.rank)
    jumps = sorted(net.jumps, key=lambda jump: net.weight[jump[1].nodes[0]])
    after_jump = {before.nodes[-1]: after.nodes[0] for before, after in jumps}
    entered = {piece.nodes[0] for piece in net.entries}
    start: int | None = None
    for first, end in pairwise(net.cuts):
        layers = net.layers[first:end]
        # The spine continues the heaviest wire from the column before, so that the main path stays straight in each.
        if start is None or net.rank[start] != first:
            start = max(layers[0], key=lambda node: (node in entered, net.weight[node]))
        spine = [start]  # the heaviest path from there to the end of the column
        while net.down[spine[-1]]:
            spine.append(net.main(spine[-1])[0])
        if len(spine) < len(layers) or max(map(len, layers)) > 1:
            _Column(net, layers, spine).place()
        start = after_jump.get(spine[-1])


class _Column:
    """The nodes of one column as rigid chains, pushed towards the spine from both sides."""

    def __init__(self, net: Net, layers: list[list[int]], spine: list[int]) -> None:
        self.net = net
        self.layers = layers
        self.spine = set(spine)
        self.chain: dict[int, int] = {}  # node -> number of its chain
        self.offset: dict[int, float] = {}  # node -> its x relative to its chain
        self.chains: list[list[int]] = []

    def place(self) -> None:
        """Set `net.x` of the column's nodes."""
        self._make_chains(self._aligned())
        positions = self._packed()
        if positions is None:  # the chains cross, so no position satisfies all: align nothing
            self.chain, self.offset, self.chains = {}, {}, []
            self._make_chains({})
            positions = self._packed()
            assert positions is not None, "single nodes in rows can always be placed"
        x = self.net.x
        for node, chain in self.chain.items():
            x[node] = positions[chain] + self.offset[node]

    def _aligned(self) -> dict[int, tuple[int, float]]:
        """Return for each node the node to align below it; alignments do not cross.

        The spine takes precedence, then wires, then boxes.
        """
        net, spine = self.net, self.spine
        aligned: dict[int, tuple[int, float]] = {}
        for layer in self.layers[:-1]:
            wanted: dict[int, tuple[int, int, float]] = {}
            for node in layer:
                if not net.down[node]:
                    continue
                below, shift = net.main(node)
                if (node in spine) != (below in spine) or self._too_wide(node, below):
                    continue
                priority = 4 if node in spine else 1 + (node >= net.items) + (below >= net.items)
                if below not in wanted or wanted[below][0] < priority:
                    wanted[below] = priority, node, shift
            accepted: list[tuple[int, int, int, int, float]] = []
            for candidate in sorted(
                (net.place_of[node], net.place_of[below], priority, node, shift)
                for below, (priority, node, shift) in wanted.items()
            ):
                # Two alignments cross if their order above differs from that below; the one of higher priority wins.
                while accepted and accepted[-1][1] > candidate[1] and accepted[-1][2] < candidate[2]:
                    accepted.pop()
                if not accepted or accepted[-1][1] < candidate[1]:
                    accepted.append(candidate)
            by_place = {net.place_of[below]: below for below in wanted}
            for _, place, _, node, shift in accepted:
                aligned[node] = by_place[place], shift
        return aligned

    def _too_wide(self, node: int, below: int) -> bool:
        """Return whether aligning a wire with a box, both off the spine, would push the wires apart."""
        net = self.net
        if (node < net.items) == (below < net.items) or node in self.spine:
            return False
        item = min(node, below)
        return net.left[item] + net.right[item] > WIDE

    def _make_chains(self, aligned: dict[int, tuple[int, float]]) -> None:
        """Group the nodes into chains of aligned nodes. Chain 0 is the spine, with every node at x = 0.

        A wire that leaves a wide box off its axis bends, so that the spine stays straight.
        """
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
        """Return the x of each chain, or None if the chains cross.

        Each chain is first placed as near to the spine as possible, then moved outwards towards its neighbours.
        """
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
        """Return for each rank the nodes left (-1) and right (1) of the spine, from the spine outwards.

        Below the end of the spine a chain stays on the side of its upper neighbour.
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
        """Set the positions of the chains on one side, as near to the spine as possible.

        Returns:
            The chains from the spine outwards, and the minimum distances between neighbours; None if the chains cross
            in a cycle.
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
        # A chain is final once all chains between it and the spine are, so go through them in topological order.
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
        """Move chains outwards, as far as there is room, to line up with the nodes they are connected to."""
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
            # The median of the wanted places keeps the most wires straight.
            room = min((sign * positions[after] - least for after, least in apart[chain]), default=wanted[-1])
            positions[chain] = sign * max(distance, min(wanted[(len(wanted) - 1) // 2], room))
