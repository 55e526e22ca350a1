"""Footprints of one step, taken for another: in which a leaf may have a .grad that had none, or the other way round."""

from __future__ import annotations

from dataclasses import replace

from ...inspector.graph.graph import Graph
from ...inspector.torch_internals.saved import saved_slots
from ..memory.footprint import Footprints
from ..words.estimates import Estimate

_WHY = (
    "{count:,} leaves have {now} .grad and had {then} in the run that was measured, of which the first is {name}: what "
    "that changes is worked out, and was not seen"
)


def for_graph(footprints: Footprints, graph: Graph) -> Footprints:
    """The footprints for a graph of the same forward, whose backward is to come: its leaves are as they are now.

    Those of a graph whose backward has run, as far as that can be told, are as they were when they were measured.
    """
    if graph is footprints.graph or graph.is_tape or footprints.keep_graph:
        return footprints
    if not any(next(saved_slots(node), None) for node in graph.nodes):  # it has run, or is from a file
        return footprints
    found = {task_id: leaf.grad is not None for task_id, leaf in graph.leaves.items()}
    known = footprints.leaves
    other = [task_id for task_id, has_grad in found.items() if task_id in known and known[task_id].has_grad != has_grad]
    if not other:
        return footprints
    task, has_grad = graph.tasks[other[0]], found[other[0]]
    now, then = ("a", "none") if has_grad else ("no", "one")
    why = _WHY.format(count=len(other), now=now, then=then, name=task.parameter or graph.describe(task.id))
    leaves = {**known, **{task_id: replace(known[task_id], has_grad=found[task_id]) for task_id in other}}
    return replace(footprints, leaves=leaves, limits=(*footprints.limits, Estimate(why)))
