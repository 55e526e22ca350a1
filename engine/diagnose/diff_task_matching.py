"""Matches the tasks of two graphs by the tasks that they reach and by a longest common subsequence."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

from ...inspector.graph.graph import Edge, Graph, Task
from ...inspector.graph.kinds import short_name
from ...inspector.graph.paths_and_repeats import ranks_of
from ...inspector.graph.phrases import was_captured

_MOST_BITS = 2**30  # limit for all rows together, 128 MiB; longer sequences are matched window by window
_WINDOW = 2**14


def longest_common(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the pairs of positions of a longest common subsequence, ascending.

    The algorithm is bit-parallel (Hyyrö, 2004): row i has a zero bit j if the longest common subsequence of first[:i]
    and second[:j + 1] is longer than that of first[:i] and second[:j]. Two sequences of 20,000 take a quarter of a
    second. Much longer sequences are matched in windows of 16,384.
    """
    start = 0
    while start < min(len(first), len(second)) and first[start] == second[start]:
        start += 1
    ends = len(first), len(second)
    while min(ends) > start and first[ends[0] - 1] == second[ends[1] - 1]:
        ends = ends[0] - 1, ends[1] - 1
    found = [(place, place) for place in range(start)]
    at = start, start
    while (ends[0] - at[0]) * (ends[1] - at[1]) > _MOST_BITS:
        pairs = _matched(first[at[0] : at[0] + _WINDOW], second[at[1] : at[1] + _WINDOW])
        kept = pairs[: -(-3 * len(pairs) // 4)]  # the last quarter may match better in the next window
        if not kept:
            at = min(at[0] + _WINDOW // 2, ends[0]), min(at[1] + _WINDOW // 2, ends[1])
            continue
        found += [(at[0] + mine, at[1] + other) for mine, other in kept]
        at = found[-1][0] + 1, found[-1][1] + 1
    found += [
        (at[0] + mine, at[1] + other) for mine, other in _matched(first[at[0] : ends[0]], second[at[1] : ends[1]])
    ]
    found += [(ends[0] + step, ends[1] + step) for step in range(len(first) - ends[0])]
    return found


def _matched(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    places: dict[Hashable, int] = {}
    for place, each in enumerate(second):
        places[each] = places.get(each, 0) | 1 << place
    every = (1 << len(second)) - 1
    row = every
    rows = [row]
    for each in first:
        common = row & places.get(each, 0)
        row = ((row + common) | (row - common)) & every
        rows.append(row)
    found = []
    mine, other = len(first), len(second)
    while mine and other:
        if rows[mine] >> (other - 1) & 1:
            other -= 1
        elif not rows[mine - 1] >> (other - 1) & 1:
            mine -= 1
        else:
            mine, other = mine - 1, other - 1
            found.append((mine, other))
    return found[::-1]


COMMUTATIVE = frozenset({"Add", "Mul", "Maximum", "Minimum", "Hypot", "Logaddexp"})
"""Kinds of tasks whose two operands may be swapped."""

_CASTS = frozenset({"ToCopy"})  # autocast inserts these between two tasks
_OF_A_DEVICE = re.compile(r"^(?:Native|Cudnn|Miopen)(?=BatchNorm)|(?<=ScaledDotProduct)\w+?(?=Attention)|ForCpu$")


class Surveyed:
    """The data for the signatures of a graph's tasks that do not depend on the known pairs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.labels = list(map(label, graph.tasks))
        self.outputs = [[_output(task, edge) for edge in graph.out_edges[task.id]] for task in graph.tasks]
        self.casts = {task.id for task in graph.tasks if _kind(task.name) in _CASTS}
        self.sources_first = ranks_of(len(graph), ((edge.task, edge.next_task) for edge in graph.edges))[1]


class Signatures:
    """Numbers for a graph's tasks that are equal for equal neighborhoods, in all graphs that share a table.

    Args:
        surveyed: the graph.
        known: for each matched task, the number of its pair.
        table: the number of each key seen so far; shared by the graphs that are compared.
    """

    def __init__(self, surveyed: Surveyed, known: Mapping[int, int], table: dict[Hashable, int]) -> None:
        self._surveyed = surveyed
        self._graph = surveyed.graph
        self._known = known
        self._table = table

    def _number(self, key: Hashable) -> int:
        return self._table.setdefault(key, len(self._table))

    @cached_property
    def below(self) -> list[int]:
        """For each task, a signature of its downstream tasks. Paths end at matched tasks."""
        found = [0] * len(self._graph)
        for task_id in reversed(self._surveyed.sources_first):
            edges = self._graph.out_edges[task_id]
            if task_id in self._known:
                found[task_id] = self._number(("known", self._known[task_id]))
            elif task_id in self._surveyed.casts and len(edges) == 1:
                found[task_id] = found[edges[0].next_task]
            else:
                reached = [found[edge.next_task] for edge in edges]
                below = sorted(zip(self._surveyed.outputs[task_id], reached, strict=True))
                found[task_id] = self._number(("below", self._surveyed.labels[task_id], *below))
        return found

    @cached_property
    def above(self) -> list[int]:
        """For each task, a signature of its upstream tasks. Paths start at matched tasks."""
        found = [0] * len(self._graph)
        arriving: list[list[tuple[int, ...]]] = [[] for _ in self._graph.tasks]
        for place, root in enumerate(self._graph.roots):
            arriving[root.task].append((-1, place))
        for task_id in self._surveyed.sources_first:
            known = self._known.get(task_id)
            above = sorted(arriving[task_id])
            label = self._surveyed.labels[task_id]
            found[task_id] = self._number(("above", label, *above) if known is None else ("known", known))
            is_cast = known is None and task_id in self._surveyed.casts
            for edge, output in zip(self._graph.out_edges[task_id], self._surveyed.outputs[task_id], strict=True):
                given = [each[:-1] for each in above] if is_cast else [(found[task_id], output)]
                arriving[edge.next_task] += [(*each, edge.input) for each in given]
        return found

    @cached_property
    def is_known(self) -> list[bool]:
        """For each task, whether every downstream path from it arrives at a matched task."""
        found = [False] * len(self._graph)
        for task_id in reversed(self._surveyed.sources_first):
            edges = self._graph.out_edges[task_id]
            found[task_id] = task_id in self._known or (bool(edges) and all(found[edge.next_task] for edge in edges))
        return found

    @cached_property
    def next_known(self) -> list[frozenset[int]]:
        """For each task, the first matched tasks downstream. Only tasks with a single next task may lie between."""
        found: list[frozenset[int]] = [frozenset()] * len(self._graph)
        for task_id in reversed(self._surveyed.sources_first):
            reached: set[int] = set()
            for edge in self._graph.out_edges[task_id]:
                if edge.next_task in self._known:
                    reached.add(self._known[edge.next_task])
                elif len(self._graph.out_edges[edge.next_task]) == 1:
                    reached |= found[edge.next_task]
            found[task_id] = frozenset(reached)
        return found


def label(task: Task) -> Hashable:
    """Return the label to match in both graphs: the kind of node, independent of the device, or a leaf's shape."""
    return ("leaf", task.inputs[0].shape) if task.is_leaf else _kind(task.name)


@lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    return _OF_A_DEVICE.sub("", short_name(name))


def _output(task: Task, edge: Edge) -> int:
    return -1 if _kind(task.name) in COMMUTATIVE else edge.output


_MOST_ROUNDS = 16  # each round extends the pairs of the one before


Values = Mapping[int, Hashable]
"""Maps a task's id to a key that stands for the known values of its inputs and outputs."""


def aligned(first: Graph, second: Graph, values: tuple[Values, Values] = ({}, {})) -> dict[int, int]:
    """Return, for each task of the first graph that the second one has too, the id of the second one's task.

    Leaves match if they are the same tensor. Otherwise they match by the names of their parameters if the shapes are
    equal, or if the numbers of dimensions are equal and no better match exists. From there matches spread along the
    edges: two tasks match if they are of one kind and all the tasks they reach match, or all the tasks that reach them.
    The order of two factors or summands does not matter, and casts are skipped. The next tasks of a pair must not
    contradict it. Among several candidates, tasks of equal values match, and otherwise tasks in order of creation.

    The rest is matched by a longest common subsequence in order of creation, by kind and forward operation: first
    within the module calls that both graphs have, then globally. Tasks left between two of these match one by one if
    the same forward operations created them, because other kernels have other nodes.

    The time is nearly linear if little differs or each module call has few tasks; otherwise see `longest_common`.
    """
    tensors = {id(leaf): task_id for task_id, leaf in second.leaves.items()}
    pairs = {task_id: tensors[id(leaf)] for task_id, leaf in first.leaves.items() if id(leaf) in tensors}
    growth = _Growth(first, second, pairs, values)
    for by_shape in (True, False):
        pairs.update(list(_same_names(first, second, pairs, by_shape)))
        growth.grow()
    both = was_captured(first) and was_captured(second)
    if both:
        growth.go_by_order(_call_of)
        growth.grow()
    growth.go_by_order(lambda graph, task: True, by_operation=both)
    return pairs


def _same_names(first: Graph, second: Graph, pairs: Mapping[int, int], by_shape: bool) -> Iterator[tuple[int, int]]:
    """Match the remaining leaves of equal names whose shapes, or numbers of dimensions, are equal."""
    taken = set(pairs.values())
    names = {task.parameter: task for task in second.tasks if task.is_leaf and task.id not in taken}
    for task in first.tasks:
        if task.is_leaf and task.parameter is not None and task.id not in pairs:
            named = names.get(task.parameter)
            if named is None:
                continue
            mine, other = task.inputs[0].shape, named.inputs[0].shape
            if mine == other or (not by_shape and mine is not None and other is not None and len(mine) == len(other)):
                yield task.id, named.id


_Key = Callable[[Signatures, Task], Hashable | None]
"""Returns the key of a group of tasks that may match; None if a task belongs to no group."""

_SUREST_FIRST: tuple[_Key, ...] = (
    lambda signatures, task: (signatures.below[task.id], signatures.above[task.id]),
    lambda signatures, task: signatures.below[task.id] if signatures.is_known[task.id] else None,
    lambda signatures, task: (label(task), near) if (near := signatures.next_known[task.id]) else None,
    lambda signatures, task: signatures.above[task.id],
)
_Group = Callable[[Graph, Task], Hashable | None]


class _Growth:
    """Extends the matched pairs, starting from those already known."""

    def __init__(self, first: Graph, second: Graph, pairs: dict[int, int], values: tuple[Values, Values]) -> None:
        self._graphs = first, second
        self._surveyed = Surveyed(first), Surveyed(second)
        self._pairs = pairs
        self._values = values
        self._named = all(any(task.parameter is not None for task in graph.tasks) for graph in self._graphs)

    def grow(self) -> None:
        """Add all pairs that follow from the tasks below or above, the most certain first."""
        keys = *_SUREST_FIRST, self._below
        for _ in range(_MOST_ROUNDS):
            if len(self._pairs) == min(map(len, self._graphs)):
                return
            signatures = self._signatures()
            if not (
                any(self._matched(signatures, key) for key in keys)
                or any(self._matched(signatures, key, valued=True) for key in keys)
                or any(self._matched(signatures, key, alone=False) for key in keys)
            ):
                return

    def _signatures(self) -> tuple[Signatures, Signatures]:
        table: dict[Hashable, int] = {}
        back = {other: mine for mine, other in self._pairs.items()}
        known = dict(zip(self._pairs, self._pairs, strict=True))
        return Signatures(self._surveyed[0], known, table), Signatures(self._surveyed[1], back, table)

    def _below(self, signatures: Signatures, task: Task) -> Hashable | None:
        """Return the signature below a task; None for a leaf if both graphs have names, as its shape is not enough."""
        return None if self._named and task.parameter is not None else signatures.below[task.id]

    def _matched(
        self, both: tuple[Signatures, Signatures], key: _Key, *, valued: bool = False, alone: bool = True
    ) -> bool:
        """Pair tasks of equal keys, in order of creation, if both graphs have equally many of them."""
        classes: list[dict[Hashable, list[int]]] = []
        taken = self._pairs, set(self._pairs.values())
        for graph, signatures, without, values in zip(self._graphs, both, taken, self._values, strict=True):
            classes.append({})
            for task in graph.tasks:
                if task.id not in without and (found := key(signatures, task)) is not None:
                    value = values.get(task.id) if valued else None
                    classes[-1].setdefault((found, value), []).append(task.id)
        before = len(self._pairs)
        for found, mine in classes[0].items():
            other = classes[1].get(found, [])
            if len(mine) == len(other) and (len(mine) == 1 or not alone):
                for task_id, twin in zip(mine, other, strict=True):
                    self._add(both, task_id, twin)
        return len(self._pairs) > before

    def _add(self, both: tuple[Signatures, Signatures], task_id: int, twin: int) -> None:
        near = both[0].next_known[task_id], both[1].next_known[twin]
        # Two next tasks that are matched, but not with each other, contradict the pair.
        if not all(near) or near[0] & near[1]:
            self._pairs[task_id] = twin

    def go_by_order(self, group: _Group, *, by_operation: bool = True) -> None:
        """Add pairs of the remaining tasks, in order of creation, within groups that both graphs have."""
        both = self._signatures()
        taken = self._pairs, set(self._pairs.values())
        first: dict[Hashable, list[Task]] = {}
        second: dict[Hashable, list[Task]] = {}
        for graph, without, found in zip(self._graphs, taken, (first, second), strict=True):
            for task in graph.tasks:
                if task.id not in without and (name := group(graph, task)) is not None:
                    found.setdefault(name, []).append(task)
        for name, mine in first.items():
            for task_id, twin in _in_order(mine, second.get(name, []), by_operation, self._named):
                self._add(both, task_id, twin)


def _call_of(graph: Graph, task: Task) -> Hashable | None:
    """Return the module call in which a task's node was created; None outside any module."""
    if task.call is None:
        return None
    call = graph.calls[task.call]
    return call.path, call.class_name, call.index


def _in_order(
    first: Sequence[Task], second: Sequence[Task], by_operation: bool, by_name: bool
) -> Iterator[tuple[int, int]]:
    labels = [
        [
            (label(task), task.parameter if by_name else None, _operation(task) if by_operation else None)
            for task in tasks
        ]
        for tasks in (first, second)
    ]
    places = longest_common(*labels)
    yield from ((first[mine].id, second[other].id) for mine, other in places)
    if not by_operation:
        return
    before = (-1, -1)
    for place in [*places, (len(first), len(second))]:
        mine, other = first[before[0] + 1 : place[0]], second[before[1] + 1 : place[1]]
        if len(mine) == len(other) and all(
            task.operation is not None and _operation(task) == _operation(twin) and task.is_leaf == twin.is_leaf
            for task, twin in zip(mine, other, strict=True)
        ):
            yield from ((task.id, each.id) for task, each in zip(mine, other, strict=True))
        before = place


def _operation(task: Task) -> str | None:
    return None if task.operation is None else task.operation.name
