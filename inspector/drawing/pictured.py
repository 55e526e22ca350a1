"""The graph as a picture shows it: with the tensors that get no gradient, and the call that ended the forward."""

from __future__ import annotations

from dataclasses import replace

from ..graph.graph import Edge, Graph, Root, Task
from ..graph.kinds import Kind

_FIRST_OUTPUT = 1_000  # above the outputs of any task, so that these edges differ from its own


def pictured(graph: Graph) -> Graph:
    """Return the graph with a task for `graph.failed` and each of `graph.untracked`, or itself without any.

    They only exist in pictures: no backward runs them.
    """
    tasks, edges, roots = [*graph.tasks], [*graph.edges], graph.roots
    if (failed := graph.failed) is not None:
        roots = (Root(len(tasks), 0), *roots)
        tasks.append(Task(len(tasks), failed.title, Kind.FAILED, 0, (), call=failed.call))
        edges += failed.edges
    for place, each in enumerate(graph.untracked):
        number = len(tasks)
        tasks.append(Task(number, each.kind, Kind.UNTRACKED, 0, (each.meta,), each.name))
        edges += [Edge(user, _FIRST_OUTPUT + place, number, 0) for user in each.users]
    if len(tasks) == len(graph.tasks):
        return graph
    return replace(
        graph, tasks=tuple(tasks), edges=tuple(sorted(edges, key=lambda edge: (edge.task, edge.output))), roots=roots
    )
