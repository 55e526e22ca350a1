"""Which tasks of two graphs are the same: of one program under two precisions, on two devices, or of two commits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..inspector.graph import Graph, Task
from .longest_common import longest_common
from .storage_words import was_captured


def aligned(first: Graph, second: Graph) -> dict[int, int]:
    """For each task of the first graph that the second one has, too, the id of that one.

    AccumulateGrad tasks belong together by the names of their parameters. The others must be of the same call of the
    same module; there they are a longest common subsequence by the node's kind, the forward operation and the order of
    creation. What is left between two of these belongs together if the same forward operations made it, one by one:
    other kernels have other nodes (NativeBatchNormBackward0, CudnnBatchNormBackward0). Where a graph was not captured,
    or no module of one is in the other, the whole graphs are compared so.

    Time: nearly linear where each module call has few tasks; outside of modules see `longest_common`.
    """
    both = was_captured(first) and was_captured(second)
    parameters = _by_parameter(first, second)
    taken = set(parameters.values())
    of_first = _by_call(first, both, parameters)
    of_second = _by_call(second, both, taken)
    modules = [{call[0] for call in calls if call is not None and call[0]} for calls in (of_first, of_second)]
    by_name = both and (bool(modules[0] & modules[1]) or modules == [set(), set()])
    if not by_name:
        of_first, of_second = _by_call(first, False, parameters), _by_call(second, False, taken)
    pairs = dict(parameters)
    for call, mine in of_first.items():
        if call in of_second:
            pairs.update(_matched(mine, of_second[call], both, by_name))
    return pairs


def _by_parameter(first: Graph, second: Graph) -> dict[int, int]:
    names = [
        {task.parameter: task.id for task in graph.tasks if task.is_leaf and task.parameter is not None}
        for graph in (first, second)
    ]
    return {task_id: names[1][name] for name, task_id in names[0].items() if name in names[1]}


_Call = tuple[str, int] | None


def _by_call(graph: Graph, by_call: bool, without: Collection[int]) -> dict[_Call, list[Task]]:
    """The tasks by module path and number of the call; all under None if that is not asked for."""
    found: dict[_Call, list[Task]] = {}
    for task in graph.tasks:
        if task.id not in without:
            call = None if task.call is None or not by_call else graph.calls[task.call]
            found.setdefault(None if call is None else (call.path, call.index), []).append(task)
    return found


def _matched(first: Sequence[Task], second: Sequence[Task], by_operation: bool, by_name: bool) -> dict[int, int]:
    labels = [
        [
            (task.short_name, task.parameter if by_name else None, _operation(task) if by_operation else None)
            for task in tasks
        ]
        for tasks in (first, second)
    ]
    places = longest_common(*labels)
    pairs = {first[mine].id: second[other].id for mine, other in places}
    if by_operation:
        before = (-1, -1)
        for place in [*places, (len(first), len(second))]:
            mine, other = first[before[0] + 1 : place[0]], second[before[1] + 1 : place[1]]
            if len(mine) == len(other) and all(map(_same_operation, mine, other)):
                pairs.update((task.id, each.id) for task, each in zip(mine, other, strict=True))
            before = place
    return pairs


def _operation(task: Task) -> str | None:
    return None if task.operation is None else task.operation.name


def _same_operation(first: Task, second: Task) -> bool:
    return first.operation is not None and _operation(first) == _operation(second) and first.is_leaf == second.is_leaf
