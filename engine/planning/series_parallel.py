"""Segments of an order: the series-parallel parts of a graph are contracted to rows in the best order."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias

_FALLS = -(1 << 62)  # below the key of any segment that ends no lower than it began
_SEARCHED = 32  # vertices visited to find that an edge is redundant

Parts: TypeAlias = "int | tuple[Parts, Parts]"
"""The place of a task, or the two segments that were joined."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tasks that run one after the other.

    Attributes:
        tasks: in their order.
        hill: the highest level within them, relative to the level before.
        change: the level after them, relative to the level before.
        nexts: the numbers of the successor segments.
    """

    tasks: tuple[int, ...]
    hill: int
    change: int
    nexts: list[int] = field(default_factory=list)


class _Part(NamedTuple):
    """A segment under construction, sorted by `key` and then by `start`, the place of its first task."""

    key: int
    start: int
    hill: int
    change: int
    parts: Parts


_Row: TypeAlias = list[_Part]
"""Segments in the order in which they run, which is the order of their keys."""


def contracted(
    order: Sequence[int], nexts: Sequence[Collection[int]], hills: Sequence[int], changes: Sequence[int]
) -> list[Segment]:
    """Return the tasks as segments. A series-parallel graph becomes one row, and no order has a lower peak.

    Chains of tasks are contracted, and branches between a fork and a join are merged, repeatedly. Segments of branches
    are merged by Johnson's rule: first those that end lower than they began, by ascending hill, then the others, by
    descending hill minus change. If the last segment of a part does not sort before the first of the next part, the two
    are joined. C. L. Monma and J. B. Sidney, "Sequencing with
    series-parallel precedence constraints" (1979), who improve on H. M. Abdel-Wahab and T. Kameda (1978); on trees the
    segments are those of J. W. H. Liu (1987).

    If this does not lead to one row, redundant edges are removed, and last tasks that need no memory: these are in no
    segment and can run as soon as they are ready. About O(n log n + edges), since a row is a sorted list.

    Args:
        order: the tasks in any legal order; equal segments are sorted by their first task in it.
        nexts: the successors of each task; tasks that are not in `order` are ignored.
        hills: for each task, bytes by which the level rises within it; at least 0 and at least its change.
        changes: for each task, bytes by which it changes the level, independent of the order.
    """
    contraction = _Contraction(order, nexts, hills, changes)
    if not contraction.contract():
        contraction.leave_out_repetitions()
        contraction.leave_out_ends()
        contraction.contract()
    return contraction.segments()


class _Contraction:
    """The graph during contraction. Vertices are places in the order, a source and a sink; an edge may carry a row."""

    def __init__(
        self, order: Sequence[int], nexts: Sequence[Collection[int]], hills: Sequence[int], changes: Sequence[int]
    ) -> None:
        count = len(order)
        self._order = order
        self._source, self._sink = count, count + 1
        self._parts = [
            _Part(_key(hills[task], changes[task]), place, hills[task], changes[task], place)
            for place, task in enumerate(order)
        ]
        places = {task: place for place, task in enumerate(order)}
        self._ahead: list[dict[int, _Row | None]] = [
            {places[next_task]: None for next_task in nexts[task] if next_task in places} or {self._sink: None}
            for task in order
        ]
        self._behind = [0] * (count + 2)  # the number of incoming edges
        self._before = [0] * (count + 2)  # the sum of their start vertices: with one edge, its start
        for place, edges in enumerate(self._ahead):
            for after in edges:
                self._behind[after] += 1
                self._before[after] += place
        starts = [place for place in range(count) if not self._behind[place]]
        for place in starts:
            self._behind[place] = 1
            self._before[place] = self._source
        self._ahead += (dict.fromkeys(starts), {})

    def contract(self) -> bool:
        """Remove vertices with one incoming and one outgoing edge, and merge parallel edges, repeatedly. Return whether
        one row is left."""
        ahead, behind, before_of, parts = self._ahead, self._behind, self._before, self._parts
        stack = list(range(self._source - 1, -1, -1))
        while stack:
            vertex = stack.pop()
            if vertex >= self._source or behind[vertex] != 1 or len(ahead[vertex]) != 1:
                continue
            before = before_of[vertex]
            after, rest = ahead[vertex].popitem()
            edges = ahead[before]
            row = edges.pop(vertex)
            if row is None:
                row = [parts[vertex]]
            else:
                _append(row, parts[vertex])
            if rest is not None:
                row = _in_series(row, rest)
            behind[vertex] = 0
            before_of[after] -= vertex
            if after in edges:
                behind[after] -= 1
                if (other := edges[after]) is not None:
                    row = _merged(other, row)
                stack += (after, before)
            else:
                before_of[after] += before
            edges[after] = row
        return all(after == self._sink for after in ahead[self._source])

    def leave_out_repetitions(self) -> None:
        """Remove edges that a longer path makes redundant, if a short search finds it."""
        for vertex, edges in enumerate(self._ahead):
            if len(edges) > 1:
                for after in [after for after, row in edges.items() if row is None and self._behind[after] > 1]:
                    others = islice((other for other in edges if other != after), _SEARCHED)  # a fan may have thousands
                    if self._is_reached(after, others):
                        self._take_out(vertex, after)

    def _is_reached(self, vertex: int, starts: Iterable[int]) -> bool:
        stack = [start for start in starts if start < vertex]
        seen = set(stack)
        while stack:
            edges = self._ahead[stack.pop()]
            if vertex in edges:
                return True
            for after in edges:
                if after < vertex and after not in seen and len(seen) < _SEARCHED:
                    seen.add(after)
                    stack.append(after)
        return False

    def leave_out_ends(self) -> None:
        """Remove tasks without successors that have several predecessors and never raise the level."""
        ends = {self._sink}
        for vertex in range(self._source - 1, -1, -1):
            edges = self._ahead[vertex]
            part = self._parts[vertex]
            if self._behind[vertex] > 1 and part.hill <= 0 and ends.issuperset(edges) and not any(edges.values()):
                ends.add(vertex)
        for vertex, edges in enumerate(self._ahead):
            for after in [after for after in edges if after in ends and after != self._sink]:
                row = self._take_out(vertex, after)
                if vertex in ends:
                    continue
                if self._sink in edges:
                    other = edges[self._sink]
                    edges[self._sink] = other if row is None else row if other is None else _merged(other, row)
                elif row is not None or not edges:
                    edges[self._sink] = row
                    self._behind[self._sink] += 1
                    self._before[self._sink] += vertex
        for vertex in ends:
            if self._sink in self._ahead[vertex]:
                self._take_out(vertex, self._sink)

    def _take_out(self, vertex: int, after: int) -> _Row | None:
        self._behind[after] -= 1
        self._before[after] -= vertex
        return self._ahead[vertex].pop(after)

    def segments(self) -> list[Segment]:
        """Return the current segments, in the order of their first tasks."""
        chains = []
        for vertex, edges in enumerate(self._ahead):
            for after, row in edges.items():
                chain = list(row or ())
                if vertex != self._source:
                    chain.insert(0, self._parts[vertex])
                if after != self._sink:
                    chain.append(self._parts[after])
                chains.append(chain)
        left = {part.start: part for chain in chains for part in chain}
        numbers = {start: number for number, start in enumerate(sorted(left))}
        found = [Segment(self._tasks(left[start].parts), left[start].hill, left[start].change) for start in numbers]
        for chain in chains:
            for part, following in pairwise(chain):
                found[numbers[part.start]].nexts.append(numbers[following.start])
        return found

    def _tasks(self, parts: Parts) -> tuple[int, ...]:
        found = []
        stack = [parts]
        while stack:
            part = stack.pop()
            if isinstance(part, int):
                found.append(self._order[part])
            else:
                stack += (part[1], part[0])
        return tuple(found)


def _key(hill: int, change: int) -> int:
    """Return the sort key for merging segments of branches."""
    return _FALLS + hill if change < 0 else change - hill


def _join(first: _Part, second: _Part) -> _Part:
    """Join two consecutive segments."""
    _, start, hill, change, parts = first
    hill = max(hill, change + second.hill)
    change += second.change
    return _Part(_key(hill, change), start, hill, change, (parts, second.parts))


def _append(row: _Row, part: _Part) -> None:
    """Append a segment to a row."""
    while row and row[-1].key >= part.key:
        part = _join(row.pop(), part)
    row.append(part)


def _in_series(row: _Row, rest: _Row) -> _Row:
    """Concatenate two rows. Neither may be used afterwards."""
    used = 0
    if row[-1].key >= rest[0].key:
        part = _join(row.pop(), rest[0])
        used = 1
        while True:
            if row and row[-1].key >= part.key:
                part = _join(row.pop(), part)
            elif used < len(rest) and part.key >= rest[used].key:
                part = _join(part, rest[used])
                used += 1
            else:
                break
        row.append(part)
    if len(row) < len(rest) - used:
        rest[:used] = row
        return rest
    row += rest[used:]
    return row


def _merged(row: _Row, other: _Row) -> _Row:
    """Merge two independent rows. Neither may be used afterwards."""
    if len(row) < len(other):
        row, other = other, row
    if 8 * len(other) < len(row):
        for part in other:
            insort(row, part)
    else:
        row += other
        row.sort()
    return row
