"""Explains why two orders start to differ at a task, and how to fix it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...inspector.graph.graph import Graph, Task, unique_name
from ...inspector.graph.phrases import joined
from ...inspector.text.sizes_and_counts import index_text, number_text
from ...inspector.torch_private.tensors import equal_elements
from ...inspector.torch_private.thread_state import unobserved
from ..execution.node_runner import APPLIED
from .order_dependence import Cause, Departure, How
from .run_in_order import Looked, OrderRun, SharedWrite

FIRST = "heap"
"""The order that the others are compared with: PyTorch's own."""


class AtDeparture(NamedTuple):
    """A task at which orders start to differ, and the facts known about it."""

    task: int
    how: How
    orders: tuple[str, ...]
    order: str = ""
    element: str = ""
    write: SharedWrite | None = None
    draws: bool = False
    hooks: tuple[str, ...] = ()


def tell(task: int, plain: OrderRun, other: OrderRun, order: str, orders: tuple[str, ...]) -> AtDeparture:
    """Return the facts about a task at which an order starts to differ from the first, from detailed runs of both."""
    first, second = plain.looked, other.looked
    assert first is not None
    assert second is not None
    how = _how(task, plain, other, first, second)
    if how in ("rounding", "unsteady"):
        return AtDeparture(task, how, orders)
    both = (second, first) if how == "result" or task in second.wrong_sums else (first, second)
    write = next((write for looked in both for write in looked.touches.writes_to(task)), None)
    element = _element(first.given.get(task, ()), second.given.get(task, ())) if how == "result" else ""
    where = order if how == "result" or task in second.wrong_sums else FIRST
    draws, hooks = task in second.drew or task in first.drew, second.hooks.get(task, ())
    return AtDeparture(task, how, orders, where, element, write, draws, hooks)


def _how(task: int, plain: OrderRun, other: OrderRun, first: Looked, second: Looked) -> How:
    if plain.taken.get(task) == other.taken.get(task):
        return "unsteady" if plain.given.get(task) == other.given.get(task) else "result"
    wrong = [task in looked.wrong_sums for looked in (first, second)]
    if any(wrong):
        # If the sum is wrong in both runs, a hook changes it, and the hook's input may only round differently.
        same = all(wrong) and _all_close(first.taken[task], second.taken[task])
        return "rounding" if same else "written"
    edges = plain.graph.in_edges[task]
    return "rounding" if len({edge.input for edge in edges}) < len(edges) else "unsteady"


def departure_of(graph: Graph, found: AtDeparture) -> Departure:
    """Return the facts as a `Departure` with sentences. graph: the graph of the first order's run."""
    task = graph.tasks[found.task]
    write = found.write
    writer = None if write is None or write.task == task.id else write.task
    story, advice = "", ""
    cause: Cause | None = "hook" if found.hooks else None
    if found.write is not None:
        cause = "write"
    elif found.draws:
        cause = "random"
    if found.how == "unsteady":
        story = "The results for equal gradients differ each time, even in the same order."
        advice = (
            "Reset the counters of hooks and Functions in make_loss. If kernels are nondeterministic, use "
            "torch.use_deterministic_algorithms(True)."
        )
    elif found.how != "rounding":
        story = " ".join(_story(graph, task, found))
        advice = _advice(graph, task, found)
    return Departure(task.id, found.how, found.orders, graph.module(task), task.source, story, advice, writer, cause)


def _story(graph: Graph, task: Task, found: AtDeparture) -> Sequence[str]:
    said = []
    if found.how == "written":
        said.append(f"Under {found.order} its input differs from the gradients sent to it.")
    elif task.is_leaf:
        said.append(f"Under {found.order} the same gradient leads to a different .grad.")
    else:
        said.append(f"Under {found.order} it returns different results for equal gradients{found.element}.")
    if (write := found.write) is not None:
        # For other kinds the engine's own code writes, so the line would mislead.
        called = write.source if graph.tasks[write.task].kind in APPLIED else None
        place = "" if called is None else f" at {called.short}"
        who = "It" if write.task == task.id else unique_name(graph, write.task)
        what = "it" if found.how == "written" else "its input"
        said.append(f"{who} modifies {what} in place with {write.operation}{place}.")
    elif found.draws:
        said.append("It draws random numbers.")
    elif found.hooks:
        said.append(f"Hooks run there: {joined(found.hooks)}.")
    elif found.how == "written":
        said.append("The cause was not recorded: a tensor hook, or a write outside torch's operations.")
    else:
        said.append("It depends on something else that is not recorded: an attribute, a counter, a NumPy array.")
    return said


def _advice(graph: Graph, task: Task, found: AtDeparture) -> str:
    if (write := found.write) is not None:
        writer = graph.tasks[write.task]
        if writer.kind in APPLIED:
            return (
                f"In the backward of {writer.short_name}, create a new tensor (grad * 2, not grad.mul_(2)), or clone "
                "tensors that other tasks read."
            )
        return "Clone a tensor that other tasks read before modifying it in place."
    if found.draws:
        return "Draw them in the forward and save them with ctx.save_for_backward."
    if found.hooks or task.kind not in APPLIED:
        return "Make hooks depend only on the gradient passed to them."
    return f"Make the backward of {task.short_name} depend only on its gradients and saved tensors."


def _element(first: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> str:
    """Describe the first difference: `: 3 of 64 elements, first at [0, 1], 1.5 instead of 0.75`."""
    with unobserved():
        for one, two in zip(first, other, strict=False):
            if one is None or two is None or one.shape != two.shape:
                continue
            differs = ~equal_elements(one, two)
            if differs.any():
                index = tuple(int(each) for each in differs.nonzero()[0])
                value, before = (number_text(each[index].item()) for each in (two, one))
                where = f", first at {index_text(index)}" if index else ""
                return f": {int(differs.sum()):,} of {differs.numel():,} elements{where}, {value} instead of {before}"
    return ""


def _all_close(first: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    try:
        with unobserved():
            torch.testing.assert_close(list(first), list(other), equal_nan=True)
    except (AssertionError, TypeError):
        return False
    return True
