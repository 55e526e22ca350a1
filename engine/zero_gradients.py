"""Which leaves of a graph no gradient reaches, or none but zeros, and where that begins: found by a real backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..inspector.graph import Graph
from ..inspector.kinds import Kind
from ..inspector.torch_internals import computes_itself, stored_values, torch_backward, unobserved
from .make_loss import own_gradients

State = bool | None
"""Of a gradient: None where it is undefined, else whether any element is not zero."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a gradient that is none, or all zero, begins.

    Attributes:
        task: the task.
        how: "task": it gives such a gradient although it takes another one; "sum": those that it takes are not zero one
            by one, and their sum is, or a hook made it so.
        undefined: whether there is no gradient at all.
        gradients: how many come to it.
    """

    task: int
    how: Literal["task", "sum"]
    undefined: bool
    gradients: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """What came to a leaf: its gradient's state, and where that begins if the gradient is none or zero."""

    state: State
    origins: tuple[Origin, ...] = ()


def arrived_at(loss: Tensor, graph: Graph, leaves: Sequence[Tensor]) -> list[Arrived]:
    """Runs the backward of a loss, which frees its graph, and says what came to each leaf. No .grad changes.

    Hooks of tensors run, those of .grad (`register_post_accumulate_grad_hook`, DistributedDataParallel's) do not: the
    gradients are only looked at. But a graph with reentrant checkpoints can't be run so; there they run, too.
    """
    watch = _Watch(graph)
    tasks = {id(leaf): task_id for task_id, leaf in graph.leaves.items()}
    try:
        watch.open()
        if any(task.kind is Kind.CHECKPOINT for task in graph.tasks):
            with own_gradients(leaves):
                for leaf in leaves:
                    leaf.grad = None
                torch_backward(loss)
                found = [_state(leaf.grad) for leaf in leaves]
        else:
            inside = [leaf for leaf in leaves if id(leaf) in tasks]
            gradients = torch.autograd.grad(loss, inside, allow_unused=True) if inside else ()
            states = {id(leaf): _state(gradient) for leaf, gradient in zip(inside, gradients, strict=True)}
            found = [states.get(id(leaf), _nothing) for leaf in leaves]
    finally:
        watch.close()
    arrived = []
    for leaf, read in zip(leaves, found, strict=True):
        state = read()
        task_id = tasks.get(id(leaf))
        origins = () if state or task_id is None else tuple(watch.origins(task_id))
        arrived.append(Arrived(state, origins))
    return arrived


class _Watch:
    """Hooks on all nodes, which note which gradients are undefined or zero; accelerators are not waited for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._taken: dict[int, list[Callable[[], State]]] = {}
        self._given: dict[int, list[Callable[[], State]]] = {}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def open(self) -> None:
        for task, node in zip(self._graph.tasks, self._graph.nodes, strict=True):
            if not task.is_leaf:
                self._handles.append(node.register_hook(partial(self._ran, task.id)))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _ran(self, task_id: int, given: Sequence[Tensor | None], taken: Sequence[Tensor | None]) -> None:
        self._given[task_id] = [_state(each) for each in given]
        self._taken[task_id] = [_state(each) for each in taken]

    def origins(self, leaf: int) -> Iterator[Origin]:
        """From a leaf upwards: where what reaches it was still something. Those next to the leaf come first."""
        todo = [leaf]
        seen = {leaf}
        while todo:
            task_id = todo.pop(0)
            edges = self._graph.in_edges[task_id]
            given = [self._given[edge.task][edge.output]() if edge.task in self._given else None for edge in edges]
            if any(given):
                yield Origin(task_id, "sum", False, len(edges))
                continue
            for edge, state in zip(edges, given, strict=True):
                if edge.task in seen:
                    continue
                seen.add(edge.task)
                taken = [read() for read in self._taken.get(edge.task, ())]
                if any(taken):
                    yield Origin(edge.task, "task", state is None, len(taken))
                else:
                    todo.append(edge.task)


def _state(gradient: Tensor | None) -> Callable[[], State]:
    """Looks at a gradient now; to be asked later."""
    if gradient is None:
        return _nothing
    with unobserved():
        if computes_itself(gradient) or gradient.is_quantized or gradient.is_nested or gradient.device.type == "meta":
            return _something
        values = gradient if gradient.layout is torch.strided else stored_values(gradient)
        return partial(_read, values.count_nonzero())


def _read(count: Tensor) -> State:
    with unobserved():
        return bool(count)


def _nothing() -> State:
    return None


def _something() -> State:
    return True
