"""Running one node as PyTorch's engine does (engine.cpp, evaluate_function and call_function)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import is_
from typing import Self

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from ...inspector.capture.build_graph import read_graph as graph_of
from ...inspector.graph.freed_nodes import SpentNodes, is_spent
from ...inspector.graph.graph import Edge, Graph, Task, TensorMeta
from ...inspector.graph.kinds import Kind
from ...inspector.graph.source_lines import warn
from ...inspector.torch_private.compiled import compiled_autograd_is_on
from ...inspector.torch_private.engine import gradient_dtypes
from ...inspector.torch_private.hooks import node_hooks
from ...inspector.torch_private.nodes import call_node, leaf_of, notes_on
from ...inspector.torch_private.saved_variables import (
    FREED,
    free_function,
    free_saved,
    hides_saved,
    packed_by_user,
    saved_variables,
)
from ...inspector.torch_private.thread_state import unobserved, without_torch_function
from .accumulate_grad import accumulate
from .accumulation_rule import Accumulate
from .backward_arguments import BackwardCall, expect_inputs, needed_tasks, root_gradients
from .fast_loop import FastLoop, LoopSession
from .find_hooks import HookWatch, look_is_cheap
from .graph_task import GraphTask
from .input_buffer import BUFFERS, InputBuffer, fits, fitted
from .node_runner import APPLIED, Measuring, OnEnd, Runner, by_edge
from .run_hooks import hook_name, run_leaf_hooks, run_post_hooks, run_pre_hooks, run_tensor_hooks
from .streams import TaskStreams
from .undo_side_effects import NodeChanges
from .unsupported import cannot, refuse_tasks, refuse_transforms


def check_nan(name: str, outputs: Sequence[Tensor | None]) -> None:
    """Raise the engine's error for the first gradient with a NaN (engine.cpp, evaluate_function)."""
    for number, output in enumerate(outputs):
        if output is not None and torch.isnan(output.detach()).any():
            raise RuntimeError(f"Function '{name}' returned nan values in its {number}th output.")


def warn_of_forward(node: Node) -> None:
    """Warn with the place where the forward created the node, as anomaly mode does (python_anomaly_mode.cpp,
    print_stack)."""
    notes = notes_on(node)
    if "traceback_" not in notes:
        warn(
            f"Error detected in {node.name()}. No forward pass information available. Enable detect anomaly during "
            "forward pass for more information."
        )
        return
    warn(
        f"Error detected in {node.name()}. Traceback of forward call that caused the error:\n"
        f"{''.join(notes['traceback_'])}"
    )
    parent = notes.get("parent_")
    while parent is not None:
        notes = notes_on(parent)
        if "traceback_" not in notes:
            break
        warn(
            f"\n\nPrevious calculation was induced by {parent.name()}. Traceback of forward call that induced the "
            f"previous calculation:\n{''.join(notes['traceback_'])}"
        )
        parent = notes.get("parent_")


_SOME_TASKS = 50  # tasks from which a search of the process for hooks may be cheaper than a check of each node


class TaskRunner(Runner):
    """Runs PyTorch's nodes as its engine does.

    Args:
        graph: the graph.
        needed: the tasks that `inputs=` needs; None for all.
        keep_graph: whether the nodes keep their saved tensors.
        create_graph: whether the backward builds a graph.
        roots: the gradient of each root, from which the backward starts.
        streams: the streams of accelerators on which tasks run.

    Attributes:
        graph_task: the graph task of this backward.
        takes: by task, the metadata of its inputs.
        hooked: tasks whose tensor hooks ran before their turn, with each hook's kind and name.
    """

    def __init__(
        self,
        graph: Graph,
        needed: frozenset[int] | None,
        keep_graph: bool,
        create_graph: bool,
        roots: Iterable[Tensor | None],
        streams: TaskStreams | None = None,
    ) -> None:
        self.streams = streams
        self.graph_task = GraphTask(graph, needed, keep_graph, create_graph, streams)
        self.inside = self.graph_task.run
        self.takes = all_taken(graph)
        self.fast_loop_records = all(map(is_, self.takes, [task.inputs for task in graph.tasks]))  # no `grad_dtype`
        self.graph = self._graph = graph
        self.needed = self._needed = needed
        self.keep_graph = keep_graph
        self.frees = not keep_graph
        self.roots = list(roots)
        self.hooked: dict[int, tuple[tuple[str, str], ...]] = {}
        self._limits: tuple[Tensor | GradientEdge, ...] = ()
        self._spent = SpentNodes()
        self.changes = NodeChanges(graph, self.graph_task)

    @classmethod
    def of(cls, call: BackwardCall, measuring: Measuring | None = None) -> Self:
        """Create a runner of the nodes below these tensors.

        Args:
            call: the arguments of the backward.
            measuring: begins to measure the memory once the graph is known, before anything is allocated.

        Raises:
            NotImplementedError: If the backward would differ from PyTorch's.
        """
        outputs, keep_graph, create_graph = call.outputs, bool(call.keep_graph), bool(call.create_graph)
        if (limits := call.limits) is not None:
            expect_inputs(limits)
        refuse_transforms()
        if compiled_autograd_is_on():
            raise cannot("run under compiled autograd")
        graph = graph_of(outputs).owned()
        needed = None if limits is None else needed_tasks(graph, limits)
        refuse_tasks(graph)
        streams = TaskStreams.of(graph)
        memory = None
        if measuring is not None:
            if streams is not None:
                streams.use_one_stream()
            with unobserved():
                memory = measuring(graph, outputs, call.given, keep_graph, create_graph)
        runner = cls(graph, needed, keep_graph, create_graph, root_gradients(outputs, call.grad_tensors), streams)
        runner.memory = memory
        runner._limits = limits or ()
        return runner

    def fitted_roots(self) -> list[Tensor | None]:
        gradients = list(self.roots)
        with without_torch_function():
            for position, root in enumerate(self.graph.roots):
                gradient, takes = gradients[position], self.takes[root.task][root.input]
                needed = self.needed is None or root.task in self.needed
                if gradient is not None and needed and not fits(gradient, takes):
                    edge = Edge(root.task, position, root.task, root.input)
                    gradients[position] = fitted(gradient, takes, self.graph, edge)
        return gradients

    def buffer(self, task_id: int, accumulate: Accumulate) -> InputBuffer:
        return BUFFERS[accumulate](len(self.takes[task_id]))

    def leaf(self, task_id: int) -> Tensor:
        return leaf_of(self.graph.nodes[task_id])

    def hook_watch(self) -> HookWatch | None:
        return self.watch if len(self.graph) >= _SOME_TASKS and look_is_cheap() else None

    @cached_property
    def watch(self) -> HookWatch:
        """The watch for hooks. Its first search examines all objects of the process."""
        return HookWatch(self._graph.nodes)

    def run(
        self, task: Task, gradients: list[Tensor | None], hooks: bool, on_end: OnEnd | None = None
    ) -> list[Tensor | None]:
        node = self.graph_task.node = self._graph.nodes[task.id]
        on_hook = self.on_hook
        if is_spent(node):
            raise RuntimeError(FREED)
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
        if free or wants_zeros or task.kind is Kind.COMPILED or (not python and self.graph_task.wants_part_of(task.id)):
            outputs = self._outputs_by_engine(task, node, gradients, free)
        elif not hooks:
            outputs = self._call(task, node, gradients)
        else:
            self._run_tensor_hooks(task.id, node, gradients)
            gradients[:] = run_pre_hooks(node, gradients, on_hook)
            outputs = self._call(task, node, gradients)
            after = node_hooks(node)[1]
            if after:
                raw = None if self.on_outputs is None else list(outputs)
                self.fit(task, outputs)  # before post-hooks, as validate_outputs in engine.cpp, call_function
                outputs = list(run_post_hooks(after, outputs, gradients, on_hook))
        if on_end is not None:
            on_end(outputs)
        if raw is None and self.on_outputs is not None:
            raw = list(outputs)
        self.fit(task, outputs)
        if self.on_outputs is not None:
            self.on_outputs(task.id, gradients, outputs, raw)
        raw = None
        if self.memory is not None:
            self.memory.end(task.id, outputs)
        if torch.is_anomaly_check_nan_enabled() and torch.is_anomaly_enabled():
            check_nan(task.name, outputs)
        if self.streams is not None:
            self.streams.before_release(node, gradients, saved)
        # list.clear() frees from the end, std::vector from the front. Freeing in the engine's order lets a caching
        # allocator reuse the same blocks.
        gradients.reverse()
        gradients.clear()
        if self.frees:
            if python:
                free_function(node)
            else:
                free_saved(saved)
                if hidden and not free:
                    self._spent.add(node)
        return outputs

    def spend(self, task: Task) -> None:
        if not (self.keep_graph or task.is_leaf):
            self._spent.add(self._graph.nodes[task.id])

    def unspend(self, task: Task) -> None:
        self._spent.remove(self._graph.nodes[task.id])

    def free(self, task: Task) -> None:
        node = self._graph.nodes[task.id]
        saved = [] if task.is_leaf or task.kind in APPLIED else saved_variables(node)
        if self.streams is not None:
            self.streams.before_release(node, (), saved)
        if task.kind in APPLIED:
            free_function(node)
        elif task.kind is Kind.COPY_SLICES and not self.watch.possible():
            self._outputs_by_engine(task, node, [None] * len(task.inputs), free=True)
        elif not task.is_leaf:
            free_saved(saved)
            if hides_saved(node) or packed_by_user(saved):
                self._spent.add(node)

    def run_fast(self, loop: LoopSession, last: Collection[int], watch: HookWatch) -> None:
        self._fast_loop.run(loop, last, watch)

    @cached_property
    def _fast_loop(self) -> FastLoop:
        free = None if self.streams is None else self.streams.free_saved
        return FastLoop(self._graph, self.takes, self.fast_loop_records, self.keep_graph, self.graph_task, free)

    def retain_inputs(self) -> None:
        limits, self._limits = self._limits, ()
        for each in limits:
            if isinstance(each, Tensor):
                each.retain_grad()

    def pass_by(self) -> None:
        """Run the hooks of the only root's tensor and retain its gradient: the engine does so before it finds that
        nothing is needed (engine.cpp, evaluate_function)."""
        if self.needed or self.needed is None or len(self.roots) != 1:
            return
        (root,), (gradient,) = self.graph.roots, self.roots
        task, node = self.graph.tasks[root.task], self.graph.nodes[root.task]
        gradients = [gradient if number == root.input else None for number in range(len(task.inputs))]
        if task.is_leaf:
            run_leaf_hooks(node, gradients, self.on_hook)
        else:
            run_tensor_hooks(self.graph_task, node, gradients, self.on_hook)

    def finish(self, again: bool) -> None:
        self.graph_task.finish(again)

    def rest(self) -> None:
        self.graph_task.node = None

    def failed(self, task: Task) -> None:
        if torch.is_anomaly_enabled():
            warn_of_forward(self.graph.nodes[task.id])

    def fit(self, task: Task, outputs: list[Tensor | None]) -> list[Tensor | None]:
        """Convert the outputs in place for the next tasks, and return them."""
        with without_torch_function():  # as in C++
            for edge in self._graph.out_edges[task.id]:
                gradient = outputs[edge.output]
                if gradient is not None and (self._needed is None or edge.next_task in self._needed):
                    takes = self.takes[edge.next_task][edge.input]
                    if not fits(gradient, takes):
                        outputs[edge.output] = fitted(gradient, takes, self._graph, edge)
        return outputs

    def _run_tensor_hooks(self, task_id: int, node: Node, gradients: list[Tensor | None]) -> None:
        if task_id not in self.hooked:
            gradients[:] = run_tensor_hooks(self.graph_task, node, gradients, self.on_hook)
            return
        for hook in self.hooked.pop(task_id):
            if self.on_hook is not None:
                self.on_hook(*hook)

    def _accumulate(self, task: Task, node: Node, gradients: list[Tensor | None], hooks: bool) -> None:
        on_hook = self.on_hook
        if hooks:
            gradients[:] = run_leaf_hooks(node, gradients, on_hook)
            gradients[:] = run_pre_hooks(node, gradients, on_hook)
        if self.on_outputs is not None:
            self.on_outputs(task.id, gradients, (), None)
        if self.memory is not None:
            self.memory.start(task.id, gradients)
        accumulate(node, gradients, on_hook and (lambda hook: on_hook("post_accumulate", hook_name(hook))))
        if hooks:
            run_post_hooks(node_hooks(node)[1], [], gradients, on_hook)
        if self.memory is not None:
            self.memory.end(task.id, ())

    def _call(self, task: Task, node: Node, gradients: list[Tensor | None]) -> list[Tensor | None]:
        if self.memory is not None:
            self.memory.start(task.id, gradients)
        if task.kind in APPLIED:
            return list(by_edge(task, node, call_node(node, gradients)))
        needed = self._needed
        if needed is not None and not any(edge.next_task in needed for edge in self._graph.out_edges[task.id]):
            return [None] * len(node.next_functions)  # as C++ nodes ask, task_should_compute_output
        return list(call_node(node, gradients))

    def _outputs_by_engine(
        self, task: Task, node: Node, gradients: list[Tensor | None], free: bool
    ) -> list[Tensor | None]:
        on_start = None if self.memory is None else partial(self.memory.start, task.id)
        return self.graph_task.run_in_engine(node, gradients, self.graph_task.wanted(node, free), free, on_start)


def all_taken(graph: Graph) -> list[tuple[TensorMeta, ...]]:
    """Return the metadata of each task's inputs, with a leaf's `grad_dtype`, which its node's metadata does not have.

    Raises:
        NotImplementedError: If a leaf accepts gradients of any dtype.
    """
    kind = Kind.ACCUMULATE_GRAD
    found = [task.inputs for task in graph.tasks]
    leaves = [task.id for task in graph.tasks if task.kind is kind]
    usual = [found[task_id][0].dtype for task_id in leaves]
    for place, dtype in gradient_dtypes([graph.nodes[task_id] for task_id in leaves], usual).items():
        if dtype is None:
            leaf = graph.describe(leaves[place])
            raise cannot(f"keep the gradient of {leaf} in its own dtype (grad_dtype is None)")
        found[leaves[place]] = (replace(found[leaves[place]][0], dtype=dtype),)
    return found
