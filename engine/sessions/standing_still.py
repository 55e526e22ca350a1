"""Why a device stands still: which task it waits for, and where that one is."""

from __future__ import annotations

from collections.abc import Sequence

from ...inspector.graph.graph import Graph
from ...inspector.graph.words import nth


def why_still(graph: Graph, device: str, planned: Sequence[int], ran: Sequence[int]) -> str:
    """Why a device on which no task is ready has none.

    Args:
        planned: all tasks in the order in which they ran and are going to.
        ran: those that have.
    """
    done = set(ran)
    left = (task_id for task_id in planned if task_id not in done and str(graph.tasks[task_id].device) == device)
    coming = next(left, None)
    if coming is None:
        return f"{device} has run all of its tasks"
    places = {task_id: place for place, task_id in enumerate(planned, 1)}
    missing = {edge.task for edge in graph.in_edges[coming] if edge.task in places} - done
    last = max(missing, key=places.__getitem__)
    where = str(graph.tasks[last].device)
    return (
        f"{device} stands still: {graph.describe(coming)}, its next task, waits for {graph.describe(last)}, which runs "
        f"{nth(places[last])}, on {where}"
    )
