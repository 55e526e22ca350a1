"""Builds the table of `graph.summary()` from a graph."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from .graph import Graph, module_name
from .module_summary import ModuleRow, ModuleSummary


def module_summary(graph: Graph) -> ModuleSummary:
    """Return the summary of a graph's modules. See `Graph.summary`."""
    around = [[*_around(graph, call.id)] for call in graph.calls]
    parameters: dict[str, dict[object, tuple[int, bool]]] = {}
    outputs: dict[int, dict[tuple[int, int], None]] = {}
    within = [frozenset(() if task.call is None else around[task.call]) for task in graph.tasks]
    failed = graph.failed
    if failed is not None:
        within.append(frozenset(() if failed.call is None else around[failed.call]))
    for edge in (*graph.edges, *(() if failed is None else failed.edges)):
        task = graph.tasks[edge.next_task]
        if task.is_leaf:
            size = prod(task.inputs[0].shape or ())
            for call in within[edge.task]:
                parameters.setdefault(graph.calls[call].path, {})[task.id] = size, False
        else:
            for call in within[edge.next_task] - within[edge.task]:
                outputs.setdefault(call, {})[edge.next_task, edge.input] = None
    unfinished = frozenset[int]() if failed is None else within[-1]
    for root in graph.roots:
        for call in () if graph.tasks[root.task].is_leaf else within[root.task] - unfinished:
            outputs.setdefault(call, {})[root.task, root.input] = None
    for each in graph.untracked:
        for user in each.users if each.kind == "frozen parameter" else ():
            for call in within[user]:
                parameters.setdefault(graph.calls[call].path, {})[each.name] = prod(each.meta.shape or ()), True
    knows_saved = bool(graph.nodes) or "saved" in vars(graph)
    storages: dict[str, dict[int, int]] = {}
    for saved in graph.known_saved:
        if saved.parameter is None and saved.storage is not None:
            for call in within[saved.task]:
                storages.setdefault(graph.calls[call].path, {})[saved.storage] = saved.storage_bytes or 0
    calls_of: dict[str, list[int]] = {}
    for made in graph.calls:
        calls_of.setdefault(made.path, []).append(made.id)
    rows = []
    for path, calls in calls_of.items():
        used = parameters.get(path, {}).values()
        shapes = tuple(graph.tasks[task].inputs[number].shape for task, number in sorted(outputs.get(calls[-1], ())))
        rows.append(
            ModuleRow(
                *(path, graph.calls[calls[0]].class_name, len(calls), shapes),
                *(sum(size for size, _ in used), sum(size for size, is_frozen in used if is_frozen)),
                sum(storages.get(path, {}).values()) if knows_saved else None,
            )
        )
    place = "" if failed is None or failed.call is None else graph.calls[failed.call].path
    return ModuleSummary(
        tuple(rows),
        graph.raised,
        None if failed is None else failed.title + (f" in {module_name(place)}" if place else ""),
    )


def _around(graph: Graph, call: int | None) -> Iterator[int]:
    """Yield a module call and those around it, the innermost first."""
    while call is not None:
        yield call
        call = graph.calls[call].parent
