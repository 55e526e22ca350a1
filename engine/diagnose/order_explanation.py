"""What a closer look at two orders says of a task with which they begin to differ, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...inspector.graph.graph import Graph, Task, told_apart
from ...inspector.graph.phrases import joined
from ...inspector.torch_private.tensors import equal_elements
from ...inspector.torch_private.thread_state import unobserved
from ..execution.node_runner import APPLIED
from ..session.breakpoints.nan_origin import index_text, number_text
from .order_dependence import Cause, Departure, How
from .run_in_order import Looked, OrderRun, SharedWrite

FIRST = "heap"
"""The order that the others are held against: PyTorch's own."""


class AtDeparture(NamedTuple):
    """A task with which orders begin to differ, and what is known of it."""

    task: int
    how: How
    orders: tuple[str, ...]
    order: str = ""
    element: str = ""
    write: SharedWrite | None = None
    draws: bool = False
    hooks: tuple[str, ...] = ()


def tell(task: int, plain: OrderRun, other: OrderRun, order: str, orders: tuple[str, ...]) -> AtDeparture:
    """Of a task at which this order begins to differ from the first one, from closer looks at both."""
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
        # in both: a hook makes something of a sum, and of one that rounds differently the like
        same = all(wrong) and _all_close(first.taken[task], second.taken[task])
        return "rounding" if same else "written"
    edges = plain.graph.in_edges[task]
    return "rounding" if len({edge.input for edge in edges}) < len(edges) else "unsteady"


def departure_of(graph: Graph, told: AtDeparture) -> Departure:
    """The same in sentences; the graph is that of the first order's run."""
    task = graph.tasks[told.task]
    write = told.write
    writer = None if write is None or write.task == task.id else write.task
    story, advice, cause = "", "", _cause(told)
    if told.how == "unsteady":
        story = "Something else comes of equal gradients each time, in the same order, too."
        advice = (
            "Reset in make_loss what hooks and Functions count; of kernels that vary by themselves "
            "torch.use_deterministic_algorithms(True) takes others."
        )
    elif told.how != "rounding":
        story = " ".join(_story(graph, task, told))
        advice = _advice(graph, task, told)
    return Departure(task.id, told.how, told.orders, graph.module(task), task.source, story, advice, writer, cause)


def _cause(told: AtDeparture) -> Cause | None:
    if told.write is not None:
        return "write"
    if told.draws:
        return "random"
    return "hook" if told.hooks else None


def _story(graph: Graph, task: Task, told: AtDeparture) -> Sequence[str]:
    said = []
    if told.how == "written":
        said.append(f"Under {told.order} it takes something else than what was given to it.")
    elif task.is_leaf:
        said.append(f"Under {told.order} something else is in .grad, of an equal gradient.")
    else:
        said.append(f"Under {told.order} it gives something else of equal gradients{told.element}.")
    if (write := told.write) is not None:
        called = write.source if graph.tasks[write.task].kind in APPLIED else None  # else the engine does
        place = "" if called is None else f" at {called.short}"
        who = "It" if write.task == task.id else told_apart(graph, write.task)
        what = "into it" if told.how == "written" else "into what it reads"
        said.append(f"{who} writes {what}, with {write.operation}{place}.")
    elif told.draws:
        said.append("It draws random numbers.")
    elif told.hooks:
        said.append(f"Hooks run there: {joined(told.hooks)}.")
    elif told.how == "written":
        said.append("By what is not seen: a hook of its tensor, or something past torch's operations.")
    else:
        said.append("What it goes by besides its gradients is not seen: an attribute, a counter, NumPy's memory.")
    return said


def _advice(graph: Graph, task: Task, told: AtDeparture) -> str:
    if (write := told.write) is not None:
        writer = graph.tasks[write.task]
        if writer.kind in APPLIED:
            return (
                f"In the backward of {writer.short_name} make a new tensor (grad * 2, not grad.mul_(2)), or clone what "
                "others read."
            )
        return "Clone what others read before it is written."
    if told.draws:
        return "Draw them in the forward, and keep them with ctx.save_for_backward."
    if told.hooks or task.kind not in APPLIED:
        return "Let hooks go by the gradient alone that they are given."
    return f"Let the backward of {task.short_name} go by its gradients and by what ctx.save_for_backward has kept."


def _element(first: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> str:
    """The first element that differs: `: 3 of 64 elements, first at [0, 1], 1.5 instead of 0.75`."""
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
