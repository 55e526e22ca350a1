"""Which tasks of two graphs are the same: of one program under two precisions, on two devices, or of two commits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

from ...inspector.graph.graph import Graph, Task
from ..words.phrases import was_captured
from .longest_common import longest_common
from .task_signatures import Signatures, Surveyed, label

_MOST_ROUNDS = 16  # each finds what the one before has come near to


Values = Mapping[int, Hashable]
"""By task what is known of the values that it takes and gives."""


def aligned(first: Graph, second: Graph, values: tuple[Values, Values] = ({}, {})) -> dict[int, int]:
    """For each task of the first graph that the second one has, too, the id of that one.

    Leaves belong together if they are the same tensor, else by the names of their parameters, if they are of one shape,
    or of equally many dimensions and nothing else is found for them. From there it goes on by what reaches what: tasks
    are the same if they are of one kind and all that they reach is the same, or all that reaches them; which of two
    factors or summands comes first does not matter, nor do casts. What such a pair leads to at once must not contradict
    it. Of several that are alike so, those of equal values belong together, else those that come first in order of
    creation.

    What is left is a longest common subsequence in order of creation, by kind and forward operation: first within the
    calls of modules that both have, then of all. What is then left between two of these belongs together if the same
    forward operations made it, one by one: other kernels have other nodes.

    Time: nearly linear where little differs, or each module call has few tasks; else see `longest_common`.
    """
    pairs = _same_tensors(first, second)
    growth = _Growth(first, second, pairs, values)
    for alike in (_shape, _dimensions):
        pairs.update(list(_same_names(first, second, pairs, alike)))
        growth.grow()
    both = was_captured(first) and was_captured(second)
    if both:
        growth.go_by_order(_call_of)
        growth.grow()
    growth.go_by_order(_anywhere, by_operation=both)
    return pairs


def _same_tensors(first: Graph, second: Graph) -> dict[int, int]:
    tensors = {id(leaf): task_id for task_id, leaf in second.leaves.items()}
    return {task_id: tensors[id(leaf)] for task_id, leaf in first.leaves.items() if id(leaf) in tensors}


def _same_names(
    first: Graph, second: Graph, pairs: Mapping[int, int], alike: Callable[[Task], Hashable]
) -> Iterator[tuple[int, int]]:
    """The leaves that are left, and of equal names and alike: numbered modules may have moved up."""
    taken = set(pairs.values())
    names = {task.parameter: task for task in second.tasks if task.is_leaf and task.id not in taken}
    for task in first.tasks:
        if task.is_leaf and task.parameter is not None and task.id not in pairs:
            named = names.get(task.parameter)
            if named is not None and alike(task) == alike(named):
                yield task.id, named.id


def _shape(task: Task) -> tuple[int, ...] | None:
    return task.inputs[0].shape


def _dimensions(task: Task) -> int | None:
    return None if task.inputs[0].shape is None else len(task.inputs[0].shape)


def _are_named(graph: Graph) -> bool:
    return any(task.parameter is not None for task in graph.tasks)


_Key = Callable[[Signatures, Task], Hashable | None]
"""What tasks have in common that may be the same; None: nothing that tells."""

_SUREST_FIRST: tuple[_Key, ...] = (
    lambda signatures, task: (signatures.below[task.id], signatures.above[task.id]),
    lambda signatures, task: signatures.below[task.id] if signatures.is_known[task.id] else None,
    lambda signatures, task: (label(task), near) if (near := signatures.next_known[task.id]) else None,
    lambda signatures, task: signatures.above[task.id],
)
_Group = Callable[[Graph, Task], Hashable | None]


class _Growth:
    """Finds pairs from pairs, to which it adds."""

    def __init__(self, first: Graph, second: Graph, pairs: dict[int, int], values: tuple[Values, Values]) -> None:
        self._graphs = first, second
        self._surveyed = Surveyed(first), Surveyed(second)
        self._pairs = pairs
        self._values = values
        self._named = _are_named(first) and _are_named(second)

    def grow(self) -> None:
        """Adds all that follow by what tasks reach and what reaches them, the surest first."""
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
        """Where both graphs have names, the shape alone of a leaf of another name says nothing."""
        return None if self._named and task.parameter is not None else signatures.below[task.id]

    def _matched(
        self, both: tuple[Signatures, Signatures], key: _Key, *, valued: bool = False, alone: bool = True
    ) -> bool:
        """Pairs the tasks of equal keys: those that are the only ones, or as many in both, in order of creation."""
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
        if not all(near) or near[0] & near[1]:  # else they lead at once to what is known, and to nothing in common
            self._pairs[task_id] = twin

    def go_by_order(self, group: _Group, *, by_operation: bool = True) -> None:
        """Adds pairs of tasks that are left, in order of creation, within groups that both graphs have."""
        both = self._signatures()
        taken = self._pairs, set(self._pairs.values())
        first, second = (_grouped(graph, each, group) for graph, each in zip(self._graphs, taken, strict=True))
        for name, mine in first.items():
            for task_id, twin in _in_order(mine, second.get(name, []), by_operation, self._named):
                self._add(both, task_id, twin)


def _call_of(graph: Graph, task: Task) -> Hashable | None:
    """The module call in which a task's node was made; None outside of any."""
    if task.call is None:
        return None
    call = graph.calls[task.call]
    return call.path, call.class_name, call.index


def _anywhere(graph: Graph, task: Task) -> Hashable | None:
    return True


def _grouped(graph: Graph, without: Collection[int], group: _Group) -> dict[Hashable, list[Task]]:
    found: dict[Hashable, list[Task]] = {}
    for task in graph.tasks:
        if task.id not in without and (name := group(graph, task)) is not None:
            found.setdefault(name, []).append(task)
    return found


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
        if len(mine) == len(other) and all(map(_same_operation, mine, other)):
            yield from ((task.id, each.id) for task, each in zip(mine, other, strict=True))
        before = place


def _operation(task: Task) -> str | None:
    return None if task.operation is None else task.operation.name


def _same_operation(first: Task, second: Task) -> bool:
    return first.operation is not None and _operation(first) == _operation(second) and first.is_leaf == second.is_leaf
