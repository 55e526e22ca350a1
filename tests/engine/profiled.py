"""A backward's memory as torch.profiler alone tells it: an oracle which shares no code with what it is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

import tapescope as ts

_BACKWARD = "## backward"
_TASK = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Profiled:
    """Levels count from just before the forward.

    Attributes:
        start: the level when the engine starts its first task, the root's gradient included.
        peak: the highest level from then on.
        end: the level when backward() has returned.
        tasks: for each task that ran its allocations and frees, in bytes, in order.
    """

    graph: ts.Graph
    order: list[int]
    start: int
    peak: int
    end: int
    tasks: list[list[int]]


def profiled(make_loss: Callable[[], Tensor], order: Callable[[ts.Graph], Sequence[int]], **arguments: Any) -> Profiled:
    """Runs a fresh forward, and its backward in this order on PyTorch's engine, under the profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        loss = make_loss()
        graph = ts.graph(loss)
        chosen = list(order(graph))
        numbers = [node._sequence_nr() for node in graph.nodes]
        for place, task_id in enumerate(chosen):
            graph.nodes[task_id]._set_sequence_nr(len(chosen) - place)
        with record_function(_BACKWARD):
            loss.backward(**arguments)
        for node, number in zip(graph.nodes, numbers, strict=True):
            node._set_sequence_nr(number)
    events: list[tuple[int, int, int, int]] = []  # when, address, bytes, task: -2 in the forward, -1 outside of any
    names: list[str] = []

    def visit(event: Any, task: int) -> None:
        if event.name == "[memory]":
            fields = event.extra_fields
            events.append((event.start_time_ns, fields.ptr, fields.alloc_size, task))
        elif event.name == _BACKWARD:
            task = -1
        elif task == -1 and event.name.startswith(_TASK):
            task = len(names)
            names.append(event.name.removeprefix(_TASK))
        for child in event.children:
            visit(child, task)

    for event in found.profiler.kineto_results.experimental_event_tree():
        visit(event, -2)
    assert names == [graph.tasks[task_id].name for task_id in chosen], "the engine ran them in this order"
    events.sort(key=lambda event: event[0])
    level, levels = 0, []
    alive: set[int] = set()
    tasks: list[list[int]] = [[] for _ in chosen]
    begin = None
    for _, address, nbytes, task in events:
        if nbytes < 0 and address not in alive:
            continue  # was there before
        (alive.add if nbytes > 0 else alive.discard)(address)
        if task >= 0:
            begin = len(levels) if begin is None else begin
            tasks[task].append(nbytes)
        level += nbytes
        levels.append(level)
    assert begin is not None
    return Profiled(graph, chosen, levels[begin - 1], max(levels[begin - 1 :]), levels[-1], tasks)
