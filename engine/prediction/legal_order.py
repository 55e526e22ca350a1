"""Whether a list of tasks is an order in which a backward can run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import index, lt

from torch import Tensor

from ...inspector.graph.graph import Graph
from ..queue.chosen_order import stages
from ..words.phrases import nth


def legal_order(graph: Graph, order: Sequence[int], edges: tuple[Sequence[int], Sequence[int]]) -> Sequence[int]:
    """The ids of the tasks in their order, which is legal.

    Args:
        edges: the tasks where the graph's edges start, and those where they end.

    Raises:
        ValueError: the order is not legal.
        TypeError: an id in it is something else.
    """
    if isinstance(order, Tensor) and (order.dim() != 1 or order.is_floating_point()):
        raise TypeError("order is a Tensor of other than whole numbers in a row; expected the ids of all tasks")
    order = tuple(order)
    if set(map(type, order)) - {int}:
        order = tuple(graph.task(index(each) if hasattr(each, "__index__") else each).id for each in order)
    count = len(graph)
    place_of = [-1] * count
    for place, task_id in enumerate(order):
        if not 0 <= task_id < count:
            graph.task(task_id)  # raises
        if place_of[task_id] >= 0:
            first, again = nth(place_of[task_id] + 1), nth(place + 1)
            raise ValueError(f"not a legal order: {graph.describe(task_id)} is in it twice, {first} and {again}")
        place_of[task_id] = place
    first_places, then_places = (map(place_of.__getitem__, tasks) for tasks in edges)
    if len(order) == count and all(map(lt, first_places, then_places)):
        _refuse_other_stages(graph, order)
        return order
    for edge in graph.edges:
        after = place_of[edge.next_task]
        if after >= 0 and not 0 <= place_of[edge.task] < after:
            describe = graph.in_order(order).describe
            first, then = describe(edge.task), describe(edge.next_task)
            why = f"comes before {first}" if place_of[edge.task] >= 0 else f"is in it without {first}"
            raise ValueError(f"not a legal order: {then} {why}, for whose gradient it waits")
    _refuse_other_stages(graph, order)
    return order


def _refuse_other_stages(graph: Graph, order: Sequence[int]) -> None:
    """An order given by hand keeps `fully_shard`'s stages, too (`engine/queue/stages.py`)."""
    numbers = stages(graph, frozenset(order))
    if numbers is None:
        return
    describe = graph.in_order(order).describe
    for before, after in pairwise(order):
        if numbers[after] < numbers[before]:
            raise ValueError(
                f"not a legal order: {describe(after)} comes after {describe(before)}, and under "
                "fully_shard, which reduces a group's gradients in a task of its own, it has to run before"
            )
