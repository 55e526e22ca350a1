"""A graph of tasks as segments of an order: what is series-parallel in it becomes one row, in the best order."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias

_FALLS = -(1 << 62)  # below the key of any segment that ends no lower than it began
_SEARCHED = 32  # vertices that are looked at to find out that an edge says nothing new

Parts: TypeAlias = "int | tuple[Parts, Parts]"
"""The place of a task, or what two segments were that are one now."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tasks that run one after the other.

    Attributes:
        tasks: in their order.
        hill: the highest level within them, over that before them.
        change: the level after them, over that before them.
        nexts: the numbers of the segments that wait for this one.
    """

    tasks: tuple[int, ...]
    hill: int
    change: int
    nexts: list[int] = field(default_factory=list)


class _Part(NamedTuple):
    """A segment while it grows. They sort by `key` and then by `start`, the place of the first task."""

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
    """The tasks as segments; if the whole is series-parallel they are one row, and no order has a lower peak.

    Tasks that run one after the other anyhow are contracted, and branches with one fork and one join are merged, over
    and over. Segments of branches are merged by Johnson's rule: first those that end lower than they began, the lowest
    hill first, then the others, by hill minus change, the highest first. Where the last segment of a part does not come
    before the first of the part that follows, the two are one. C. L. Monma and J. B. Sidney, "Sequencing with
    series-parallel precedence constraints" (1979), who improve on H. M. Abdel-Wahab and T. Kameda (1978); on trees the
    segments are those of J. W. H. Liu (1987).

    If that does not get to one row, edges that repeat what others say are left out, and last tasks that need no memory:
    they are in no segment, and can run as soon as they are ready. About O(n log n + edges): a row is a sorted list, and
    what is put into it moves the rest.

    Args:
        order: the tasks in any legal order; of equal segments the one comes first whose first task does.
        nexts: by task those that wait for it; others than those in `order` do not matter.
        hills: by task, bytes by which the level rises within it; at least 0 and at least its change.
        changes: by task, bytes by which the level is higher after it than before, whatever else ran before it.
    """
    contraction = _Contraction(order, nexts, hills, changes)
    contraction.contract()
    if not contraction.is_one_row:
        contraction.leave_out_repetitions()
        contraction.leave_out_ends()
        contraction.contract()
    return contraction.segments()


class _Contraction:
    """What is not contracted yet. Vertices are places in the order, a source and a sink; an edge may have a row."""

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
        self._behind = [0] * (count + 2)  # the number of edges that come in
        self._before = [0] * (count + 2)  # the vertices from which they come, summed: one edge's is that vertex
        for place, edges in enumerate(self._ahead):
            for after in edges:
                self._behind[after] += 1
                self._before[after] += place
        starts = [place for place in range(count) if not self._behind[place]]
        for place in starts:
            self._behind[place] = 1
            self._before[place] = self._source
        self._ahead += (dict.fromkeys(starts), {})

    @property
    def is_one_row(self) -> bool:
        return all(after == self._sink for after in self._ahead[self._source])

    def contract(self) -> None:
        """Takes out vertices with one edge in and one out, as long as there are any; parallel edges become one."""
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

    def leave_out_repetitions(self) -> None:
        """Takes out edges beside which a longer way leads to the same vertex, where that is found soon."""
        for vertex, edges in enumerate(self._ahead):
            if len(edges) > 1:
                for after in [after for after, row in edges.items() if row is None and self._behind[after] > 1]:
                    others = islice((other for other in edges if other != after), _SEARCHED)  # of a fan maybe thousands
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
        """Takes out tasks after which none has to come, which wait for several, and which never raise the level."""
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
        """What there is now, as a graph of segments, in the order of their first tasks."""
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
    """By which the segments of branches are merged, the least first."""
    return _FALLS + hill if change < 0 else change - hill


def _join(first: _Part, second: _Part) -> _Part:
    """One segment of two that follow each other."""
    _, start, hill, change, parts = first
    hill = max(hill, change + second.hill)
    change += second.change
    return _Part(_key(hill, change), start, hill, change, (parts, second.parts))


def _append(row: _Row, part: _Part) -> None:
    """The segment comes after the row."""
    while row and row[-1].key >= part.key:
        part = _join(row.pop(), part)
    row.append(part)


def _in_series(row: _Row, rest: _Row) -> _Row:
    """One row, of which `rest` is the second part. Neither may be used any more."""
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
    """One row of two that do not wait for each other. Neither may be used any more."""
    if len(row) < len(other):
        row, other = other, row
    if 8 * len(other) < len(row):
        for part in other:
            insort(row, part)
    else:
        row += other
        row.sort()
    return row
