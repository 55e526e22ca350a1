"""One task, run from Python as PyTorch's engine runs it (engine.cpp, evaluate_function and call_function)."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from ..inspector.graph import Edge, Graph, Outputs, Task, TensorMeta
from ..inspector.kinds import Kind
from ..inspector.spent import SpentNodes, is_spent
from ..inspector.torch_internals import (
    FREED,
    call_node,
    compiled_autograd_is_on,
    free_function,
    free_saved,
    function_is_freed,
    function_of,
    functorch_is_active,
    gradient_dtype,
    hides_saved,
    hook_dicts,
    is_recomputed,
    leaf_of,
    node_hooks,
    packed_by_user,
    post_accumulate_hooks,
    regions_around,
    saved_variables,
    unpacking,
    version_of,
)
from ..inspector.walk import graph as graph_of
from .accumulate import accumulate
from .accumulation import Accumulate
from .anomaly import check_nan, warn_of_forward
from .graph_task import GraphTask
from .has_to_end import is_sharded
from .history import Ran
from .hook_state import HookState
from .hook_watch import HookWatch, Registry, node_of, of_tensors, tensors_and_hooks
from .input_buffer import BUFFERS, InputBuffer, fits, fitted
from .needed import Inputs, as_inputs, needed_tasks
from .recomputed_buffers import RecomputedBuffers
from .roots import as_gradients, as_outputs, given_gradients, root_gradients
from .runner import BareLoop, Measuring, OnEnd, Runner
from .task_hooks import (
    Gradients,
    hook_name,
    run_leaf_hooks,
    run_post_hooks,
    run_pre_hooks,
    run_tensor_hooks,
)

APPLIED = {Kind.FUNCTION, Kind.CHECKPOINT, Kind.MODULE_HOOK, Kind.COMPILED}  # Python nodes: not callable themselves


_SPECIAL = APPLIED | {Kind.COPY_SLICES, Kind.ERROR}

_MANY_TASKS = 1000  # from here on looking through the process for hooks is cheaper than asking each node


class TaskRunner(Runner):
    """Runs PyTorch's nodes as its engine does.

    Args:
        graph: the graph.
        needed: the tasks that `inputs=` needs; None: all.
        keep_graph: whether the nodes keep what they saved.
        create_graph: whether the backward gets a graph of its own.
        roots: by root of the graph the gradient from which the backward starts.

    Attributes:
        graph_task: what torch's engine has for this backward.
        takes: for each task what it takes, one per input number.
        hooked: tasks the hooks of whose tensors have run before their turn: of each hook its kind and name.
    """

    def __init__(
        self,
        graph: Graph,
        needed: frozenset[int] | None,
        keep_graph: bool,
        create_graph: bool,
        roots: Iterable[Tensor | None],
    ) -> None:
        self.graph_task = GraphTask(graph, needed, keep_graph, create_graph)
        self.takes = [takes_of(task, node) for task, node in zip(graph.tasks, graph.nodes, strict=True)]
        self.graph = self._graph = graph
        self.needed = self._needed = needed
        self.keep_graph = keep_graph
        self.frees = not keep_graph
        self.roots = list(roots)
        self.hooked: dict[int, tuple[tuple[str, str], ...]] = {}
        self._spent = SpentNodes()
        self._recomputed: WeakKeyDictionary[Hashable, RecomputedBuffers] = WeakKeyDictionary()
        self._other_hooks: list[ref[Registry]] = []  # of tensors, which may be gone: torch lists no hooks of those

    @classmethod
    def of(
        cls,
        tensors: Outputs,
        grad_tensors: Any,
        retain_graph: bool | None,
        create_graph: bool,
        inputs: Inputs | None,
        measuring: Measuring | None = None,
    ) -> Self:
        """The nodes below these tensors. Arguments as for `Stepper`.

        Args:
            measuring: begins to measure the memory, once the graph is known and before anything is made.

        Raises:
            NotImplementedError: what would not be done as PyTorch does it.
        """
        tensors = as_outputs(tensors)
        limits = None if inputs is None else as_inputs(inputs)
        _refuse_surroundings()
        graph = graph_of(tensors)
        needed = None if limits is None else needed_tasks(graph, limits)
        _refuse_tasks(graph)
        keep_graph = create_graph if retain_graph is None else retain_graph
        _wait_for_accelerators(graph)
        grad_tensors = as_gradients(grad_tensors)
        memory = None
        if measuring is not None:
            memory = measuring(graph, tensors, given_gradients(tensors, grad_tensors), keep_graph, create_graph)
        runner = cls(graph, needed, keep_graph, create_graph, root_gradients(tensors, grad_tensors))
        runner.memory = memory
        return runner

    def fitted_roots(self) -> list[Tensor | None]:
        gradients = list(self.roots)
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
        return self.watch if len(self.graph) >= _MANY_TASKS else None

    @cached_property
    def watch(self) -> HookWatch:
        """Whether there may be hooks at all. The first look goes through all objects of the process."""
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
        if free or wants_zeros or task.kind is Kind.COMPILED or (not python and self._is_partly_needed(task.id)):
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
                self.fit(task, outputs)  # the hooks see what the next tasks will get
                outputs = list(run_post_hooks(after, outputs, gradients, on_hook))
        if on_end is not None:
            on_end(outputs)
        if raw is None and self.on_outputs is not None:
            raw = list(outputs)
        self.fit(task, outputs)
        if self.on_outputs is not None:
            self.on_outputs(task.id, gradients, outputs, node, raw)
        raw = None
        if self.memory is not None:
            self.memory.end(task.id, outputs)
        if torch.is_anomaly_check_nan_enabled() and torch.is_anomaly_enabled():
            check_nan(task.name, outputs)
        gradients.reverse()  # the first goes first
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
        if task.kind in APPLIED:
            free_function(node)
        elif task.kind is Kind.COPY_SLICES and not self.watch.possible():
            self._outputs_by_engine(task, node, [None] * len(task.inputs), free=True)
        elif not task.is_leaf:
            saved = saved_variables(node)
            free_saved(saved)
            if hides_saved(node) or packed_by_user(saved):
                self._spent.add(node)

    def run_bare(self, loop: BareLoop, last: Container[int], watch: HookWatch) -> None:
        """All in one loop: on small tasks the calls between its parts would cost as much as the tasks themselves."""
        graph, queue, buffers, missing, order = self.graph, loop._queue, loop._buffers, loop._missing, loop._order
        kinds = [task.kind for task in graph.tasks]
        edges, takes_of, keep_graph = graph.out_edges, self.takes, self.keep_graph
        while queue and not loop._stopped and not watch.registered():
            task_id = queue.choose()
            if task_id in last:
                break
            kind, node = kinds[task_id], graph.nodes[task_id]
            leaf = kind is Kind.ACCUMULATE_GRAD
            saved = [] if leaf or keep_graph or kind in APPLIED else saved_variables(node)
            if kind in _SPECIAL or packed_by_user(saved) or is_spent(node) or torch.is_anomaly_enabled():
                loop._execute(task_id, hooks=False)
                continue
            queue.remove(task_id)
            gradients = buffers.pop(task_id).gradients
            self.graph_task.node = node
            try:
                if leaf:
                    accumulate(node, gradients, None)
                    gradients.clear()
                    order.append(task_id)
                    continue
                result = node(*gradients)  # type: ignore[operator]
                outputs = list(result) if type(result) is tuple else [result]
                del result
                for edge in edges[task_id]:
                    gradient = outputs[edge.output]
                    if gradient is not None:
                        takes = takes_of[edge.next_task][edge.input]
                        if not fits(gradient, takes):
                            outputs[edge.output] = fitted(gradient, takes, graph, edge)
                gradient = None
                gradients.clear()
                free_saved(saved)
                order.append(task_id)
                for edge in edges[task_id]:
                    next_task = edge.next_task
                    buffer = buffers.get(next_task)
                    if buffer is None:
                        buffer = buffers[next_task] = InputBuffer(len(takes_of[next_task]))
                    gradient = outputs[edge.output]
                    if gradient is not None and buffer.add(edge.input, gradient):
                        outputs[edge.output] = None  # the buffer alone holds it
                    gradient = None
                    missing[next_task] -= 1
                    if not missing[next_task]:
                        queue.push(next_task)
                outputs.clear()
            except BaseException as error:
                loop._fail(error, task_id)
                raise

    def inside(self, body: Callable[[], None], order: Callable[[], Sequence[int]]) -> None:
        self.graph_task.run(body, order)

    def pass_by(self) -> None:
        """The engine looks at a root that is the only one before it finds that nothing is needed (engine.cpp,
        evaluate_function): hooks of its tensor run, and its gradient is retained."""
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

    @property
    def callbacks_left(self) -> int:
        return self.graph_task.callbacks_left

    def begin(self, entry: Ran) -> None:
        if self.graph.tasks[entry.task].is_leaf:
            leaf = self.leaf(entry.task)
            entry.version = version_of(leaf)
            entry.values = leaf.detach().clone() if post_accumulate_hooks(leaf) else None
        entry.packed = packed_by_user(saved_variables(self.graph.nodes[entry.task]))
        entry.kept = HookState(self._code_of(self.graph.tasks[entry.task]))
        self.graph_task.accumulated_inside = False
        number = self.graph_task.number
        regions = regions_around(self.graph.nodes[entry.task])
        due = [] if number is None else [each for each in regions if not is_recomputed(each, number)]
        entry.recomputed = RecomputedBuffers(due, self._recomputed, number) if due and number is not None else None

    def end(self, entry: Ran) -> None:
        if entry.recomputed is not None:
            entry.recomputed.end()
        if entry.kept is not None and not entry.kept.end():
            entry.kept = None if entry.kept.spoiled is None else entry.kept

    def _code_of(self, task: Task) -> Iterator[Any]:
        """What a task may call: hooks, its Function, what unpacks its saved tensors."""
        node = self.graph.nodes[task.id]
        yield from self._hooks_of(task)
        if isinstance(node, BackwardCFunction):
            yield vars(node)
            yield from function_of(node).__mro__
            yield function_of(node).backward
        yield from unpacking(node)
        yield from filter(None, [each() for each in self._other_hooks])

    def _hooks_of(self, task: Task) -> Iterator[dict[int, Any]]:
        """The hooks that torch lists."""
        node = self.graph.nodes[task.id]
        yield from hook_dicts(node)
        if task.is_leaf:
            leaf = leaf_of(node)
            yield from filter(None, (leaf._backward_hooks, leaf._post_accumulate_grad_hooks))

    def why_not_back(self, entry: Ran) -> str | None:
        task, node = self.graph.tasks[entry.task], self.graph.nodes[entry.task]
        if task.kind is Kind.COMPILED:
            return "is a compiled region, which runs once: it gives away the memory of what it saved"
        if self.graph_task.accumulated_inside:
            return "ran a backward of its own, which added to .grad"
        if entry.kept is not None and entry.kept.spoiled is not None:
            return entry.kept.spoiled
        if task.is_leaf:
            leaf, values = leaf_of(node), entry.values
            entry.values = None
            written = values is not None and not torch.equal(values, leaf.detach())  # through .data, for instance
            if written or version_of(leaf) != entry.version:
                return "had a hook that changed the parameter itself, as an optimizer's step does"
        elif not self.keep_graph and task.kind in APPLIED and function_is_freed(node):
            return "has freed what it saved by itself"
        return None

    @property
    def why_end_stays(self) -> str | None:
        return self.graph_task.why_end_stays

    def undo_end(self) -> None:
        self.graph_task.undo_end()

    def reopen(self, callbacks: int, another: bool) -> None:
        self.graph_task.reopen(callbacks, another)

    def retaining(self) -> dict[int, list[ref[Tensor]]]:
        ids: dict[Node | None, int] = {node: task_id for task_id, node in enumerate(self.graph.nodes)}
        tensors, hooks = tensors_and_hooks(self.graph.nodes)
        here = {id(each) for task in self.graph.tasks for each in self._hooks_of(task)} if hooks else ()
        hooks[:] = [each for each in hooks if id(each) not in here]  # no other list may hold them
        self._other_hooks = of_tensors(hooks)
        found: dict[int, list[ref[Tensor]]] = {}
        for each in tensors:
            tensor = each()
            if tensor is not None and (task_id := ids.get(node_of(tensor))) is not None:
                found.setdefault(task_id, []).append(each)
        return found

    def fit(self, task: Task, outputs: list[Tensor | None]) -> list[Tensor | None]:
        """Makes of these outputs what the next tasks will get."""
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
            self.on_outputs(task.id, gradients, (), node, None)
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
        if self._needed is not None and not any(
            edge.next_task in self._needed for edge in self._graph.out_edges[task.id]
        ):
            return [None] * len(node.next_functions)  # as C++ nodes ask, task_should_compute_output
        return list(call_node(node, gradients))

    def _outputs_by_engine(
        self, task: Task, node: Node, gradients: list[Tensor | None], free: bool
    ) -> list[Tensor | None]:
        limited = self.graph_task.limited
        wanted = [
            GradientEdge(child, number)
            for child, number in node.next_functions
            if child is not None and (free or (limited and self.graph_task.will_execute(child)))
        ]
        on_start = None if self.memory is None else partial(self.memory.start, task.id)
        return self.graph_task.run_in_engine(node, gradients, wanted, free, on_start)

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


def _wait_for_accelerators(graph: Graph) -> None:
    """Lets the forward finish on all its streams: the nodes are going to run on the current one."""
    for device in graph.devices:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)


def _refuse_tasks(graph: Graph) -> None:
    """Says what can't be run before anything is."""
    for task in graph.tasks:
        if any(meta.shape is None for meta in task.inputs):
            raise cannot(f"check the nested gradients of {graph.describe(task)}")
    if is_sharded(graph):
        raise cannot(
            "gather parameters and reduce gradients as fully_shard (FSDP2) and FullyShardedDataParallel do, in hooks "
            "and at the end of a backward"
        )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise cannot(
            "run the C++ hooks that DistributedDataParallel may have in any graph, as torch.distributed is initialised"
        )


def _refuse_surroundings() -> None:
    if functorch_is_active():
        raise RuntimeError(
            "backward() called inside a functorch transform. This is not supported, please use functorch.grad or "
            "functorch.vjp instead or call backward() outside of functorch transforms."
        )
    if compiled_autograd_is_on():
        raise cannot("run under compiled autograd")


def cannot(what: str) -> NotImplementedError:
    """The error for what the direct engine would not do as PyTorch does."""
    return NotImplementedError(f'the direct engine cannot {what}; use engine="native"')
