"""The native engine: PyTorch's own C++ engine runs everything, in an order pinned to it through sequence numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ..inspector.graph import Graph, Outputs
from ..inspector.torch_internals import compiled_autograd_is_on, graph_task_id, pinned_order


def execute_pinned(
    graph: Graph,
    planned: Sequence[int],
    tensors: Outputs,
    grad_tensors: Tensor | Sequence[Tensor | None] | None,
    retain_graph: bool | None,
    create_graph: bool,
    inputs: Tensor | Sequence[Tensor] | GradientEdge | Sequence[GradientEdge] | None,
) -> tuple[list[int], int]:
    """Runs `torch.autograd.backward` so that tasks start in the `planned` order.

    The engine's ready queue pops the highest sequence number first (engine.h, CompareNodeTaskTime), so numbers that
    fall along the order pin it. They are put back afterwards, also after an error. A pre-hook on each node notes what
    really ran.

    Returns:
        The ids of the tasks in the order in which they ran, and the nanoseconds of the backward.
    """
    if compiled_autograd_is_on():
        raise RuntimeError(
            "compiled autograd replaces the engine whose order tapehead pins; switch it off for this backward"
        )
    noter = _Noter({root.task for root in graph.roots})
    with ExitStack() as stack:
        for task_id, node in enumerate(graph.nodes):
            stack.callback(node.register_prehook(partial(noter.note, task_id)).remove)
        stack.enter_context(pinned_order([graph.nodes[task_id] for task_id in planned]))
        stack.enter_context(_one_queue(graph))
        started_ns = time.perf_counter_ns()
        try:
            torch.autograd.backward(
                tensors,  # type: ignore[arg-type]
                grad_tensors,
                retain_graph,
                create_graph,
                inputs=inputs,
            )
        except Exception as error:
            if noter.order:
                last = graph.describe(noter.order[-1])
                error.add_note(f"tapehead: raised in or after {last}, the last task that started")
            raise
        elapsed_ns = time.perf_counter_ns() - started_ns
    return noter.order, elapsed_ns


class _Noter:
    """Notes the tasks of one run of the engine, which starts at a root.

    A leaf's node may be run meanwhile by another thread's backward, or by one inside a hook or a reentrant checkpoint.
    """

    def __init__(self, roots: set[int]) -> None:
        self.order: list[int] = []
        self._roots = roots
        self._graph_task: int | None = None

    def note(self, task_id: int, gradients: object) -> None:
        graph_task = graph_task_id()
        if self._graph_task is None and task_id in self._roots:
            self._graph_task = graph_task
        if graph_task == self._graph_task:
            self.order.append(task_id)


def _one_queue(graph: Graph) -> torch.autograd.set_multithreading_enabled | nullcontext[None]:
    """With accelerators each device has a queue and a thread of its own; for one total order they must be one."""
    on_accelerator = any(meta.device.type != "cpu" for task in graph.tasks for meta in task.inputs)
    return torch.autograd.set_multithreading_enabled(False) if on_accelerator else nullcontext()
