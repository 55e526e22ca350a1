"""One task, run from Python as PyTorch's engine runs it (engine.cpp, evaluate_function and call_function)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from ..inspector.graph import Graph, Task, TensorMeta
from ..inspector.kinds import Kind
from ..inspector.torch_internals import (
    call_node,
    free_function,
    free_saved,
    gradient_dtype,
    hides_saved,
    leaf_of,
    node_hooks,
    packed_by_user,
    saved_variables,
)
from .accumulate import accumulate
from .graph_task import GraphTask
from .hook_watch import HookWatch
from .input_buffer import fits, fitted
from .task_hooks import (
    Gradients,
    OnHook,
    hook_name,
    run_leaf_hooks,
    run_post_hooks,
    run_pre_hooks,
    run_tensor_hooks,
)

OnOutputs = Callable[
    [int, Sequence[Tensor | None], Sequence[Tensor | None], Node, Sequence[Tensor | None] | None], None
]
OnEnd = Callable[[Sequence[Tensor | None]], None]

APPLIED = {Kind.FUNCTION, Kind.CHECKPOINT, Kind.MODULE_HOOK, Kind.COMPILED}  # Python nodes: not callable themselves


class TaskRunner:
    """Runs the tasks of one backward, each when it is told to.

    Args:
        graph: the graph.
        needed: the tasks that `inputs=` needs; None: all.
        keep_graph: whether the nodes keep what they saved.
        create_graph: whether the backward gets a graph of its own.
        on_hook: is told of each hook before it runs.

    Attributes:
        graph_task: what torch's engine has for this backward.
        takes: for each task what it takes, one per input number.
        frees: whether a node frees what it saved right after its task; else `free` does later.
        on_hook: as given.
        on_outputs: is told of what a task takes and gives, while the node still has what it saved: its inputs, its
            outputs as the next tasks get them, the node, and the outputs as the node gave them. Of a leaf's task right
            before it runs.
    """

    def __init__(
        self,
        graph: Graph,
        needed: Collection[int] | None,
        keep_graph: bool,
        create_graph: bool,
        on_hook: OnHook | None,
    ) -> None:
        self.graph_task = GraphTask(graph, needed, keep_graph, create_graph)
        self.takes = [takes_of(task, node) for task, node in zip(graph.tasks, graph.nodes, strict=True)]
        self._graph = graph
        self._needed = needed
        self.frees = not keep_graph
        self.on_hook = on_hook
        self.on_outputs: OnOutputs | None = None

    @cached_property
    def watch(self) -> HookWatch:
        """Whether there may be hooks at all. The first look goes through all objects of the process."""
        return HookWatch(self._graph.nodes)

    def run(
        self, task: Task, gradients: list[Tensor | None], hooks: bool, on_end: OnEnd | None = None
    ) -> list[Tensor | None]:
        """Runs a task on its input buffer, with its hooks, lets the buffer go, and frees its node.

        Args:
            gradients: the input buffer, which nobody else holds. It is empty afterwards.
            hooks: whether there may be any. Not looking for them saves most of the time.
            on_end: is told of the outputs as its node and its hooks gave them.

        Returns:
            The outputs as the next tasks take them, one per entry of `next_functions`.
        """
        node = self.graph_task.node = self._graph.nodes[task.id]
        on_hook = self.on_hook
        if task.kind is Kind.ACCUMULATE_GRAD:
            self._accumulate(task, node, gradients, hooks)
            if on_end is not None:
                on_end([])
            return []
        python = task.kind in APPLIED
        saved = saved_variables(node) if self.frees and not python else []
        hidden = self.frees and (hides_saved(node) or packed_by_user(saved))
        free = hidden and not self.watch.possible()
        raw: list[Tensor | None] | None = None
        wants_zeros = python and any(each is None for each in gradients)
        if free or wants_zeros or task.kind is Kind.COMPILED or (not python and self._is_partly_needed(task.id)):
            outputs = self._outputs_by_engine(node, gradients, free)
        elif not hooks:
            outputs = self._call(task, node, gradients)
        else:
            gradients[:] = run_tensor_hooks(self.graph_task, node, gradients, on_hook)
            gradients[:] = run_pre_hooks(node, gradients, on_hook)
            outputs = self._call(task, node, gradients)
            after = node_hooks(node)[1]
            if after:
                raw = None if self.on_outputs is None else list(outputs)
                self._fit(task, outputs)  # the hooks see what the next tasks will get
                outputs = list(run_post_hooks(after, outputs, gradients, on_hook))
        if on_end is not None:
            on_end(outputs)
        if raw is None and self.on_outputs is not None:
            raw = list(outputs)
        self._fit(task, outputs)
        if self.on_outputs is not None:
            self.on_outputs(task.id, gradients, outputs, node, raw)
        raw = None
        gradients.reverse()  # the first goes first
        gradients.clear()
        if self.frees:
            if python:
                free_function(node)
            else:
                free_saved(saved)
        return outputs

    def is_packed(self, task: Task) -> bool:
        """Whether `saved_tensors_hooks` give what its node saved: those of checkpoints compute it again."""
        return packed_by_user(saved_variables(self._graph.nodes[task.id]))

    def free(self, task: Task) -> None:
        """Lets a node that has run free what it saved, where it has not. To be called inside the backward."""
        node = self._graph.nodes[task.id]
        if task.kind in APPLIED:
            free_function(node)
        elif task.kind is Kind.COPY_SLICES and not self.watch.possible():
            self._outputs_by_engine(node, [None] * len(task.inputs), free=True)
        elif not task.is_leaf:
            free_saved(saved_variables(node))

    def _fit(self, task: Task, outputs: list[Tensor | None]) -> list[Tensor | None]:
        """Makes of these outputs what the next tasks will get."""
        for edge in self._graph.out_edges[task.id]:
            gradient = outputs[edge.output]
            if gradient is not None and (self._needed is None or edge.next_task in self._needed):
                takes = self.takes[edge.next_task][edge.input]
                if not fits(gradient, takes):
                    outputs[edge.output] = fitted(gradient, takes, self._graph, edge)
        return outputs

    def _accumulate(self, task: Task, node: Node, gradients: list[Tensor | None], hooks: bool) -> None:
        on_hook = self.on_hook
        if hooks:
            gradients[:] = run_leaf_hooks(node, gradients, on_hook)
            gradients[:] = run_pre_hooks(node, gradients, on_hook)
        if self.on_outputs is not None:
            self.on_outputs(task.id, gradients, (), node, None)
        accumulate(node, gradients, on_hook and (lambda hook: on_hook("post_accumulate", hook_name(hook))))
        if hooks:
            run_post_hooks(node_hooks(node)[1], [], gradients, on_hook)

    def _call(self, task: Task, node: Node, gradients: list[Tensor | None]) -> list[Tensor | None]:
        if task.kind in APPLIED:
            return list(by_edge(task, node, call_node(node, gradients)))
        if self._needed is not None and not any(
            edge.next_task in self._needed for edge in self._graph.out_edges[task.id]
        ):
            return [None] * len(node.next_functions)  # as C++ nodes ask, task_should_compute_output
        return list(call_node(node, gradients))

    def _outputs_by_engine(self, node: Node, gradients: list[Tensor | None], free: bool) -> list[Tensor | None]:
        limited = self.graph_task.limited
        wanted = [
            GradientEdge(child, number)
            for child, number in node.next_functions
            if child is not None and (free or (limited and self.graph_task.will_execute(child)))
        ]
        return self.graph_task.run_in_engine(node, gradients, wanted, free)

    def _is_partly_needed(self, task_id: int) -> bool:
        """Whether only some of its outputs lead to inputs=: a C++ node then computes only them."""
        needed = self._needed
        return needed is not None and len({edge.next_task in needed for edge in self._graph.out_edges[task_id]}) == 2


def by_edge(task: Task, node: Any, outputs: tuple[Any, ...]) -> Gradients:
    """Sorts what a custom Function gives, one per argument of its forward, to its edges (python_function.cpp)."""
    needed = node.needs_input_grad
    while len(outputs) > len(needed) and outputs[-1] is None:
        outputs = outputs[:-1]
    if len(outputs) != len(needed):
        raise RuntimeError(
            f"function {task.name} returned an incorrect number of gradients "
            f"(expected {len(needed)}, got {len(outputs)})"
        )
    unwanted = sum(output is not None and not need for output, need in zip(outputs, needed, strict=True))
    if unwanted > sum(child is None for child, _ in node.next_functions):
        raise RuntimeError(
            f"function {task.name} returned a gradient different than None for an argument of its forward that was "
            "not a Variable"
        )
    wanted = iter([output for output, need in zip(outputs, needed, strict=True) if need])
    found = [next(wanted, None) if child is not None else None for child, _ in node.next_functions]
    for output in found:
        if output is not None and not isinstance(output, Tensor):
            raise TypeError(
                f"function {task.name} returned a {type(output).__name__} as a gradient; expected a Tensor or None"
            )
    return found


def takes_of(task: Task, node: Node) -> tuple[TensorMeta, ...]:
    """What a task takes: a leaf's `grad_dtype` is not in its node's metadata."""
    if task.kind is not Kind.ACCUMULATE_GRAD:
        return task.inputs
    dtype = gradient_dtype(leaf_of(node))
    return task.inputs if dtype is None else (replace(task.inputs[0], dtype=dtype),)
