"""The direct engine: a Python loop that calls one node at a time, so that any ready task may run next."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ..inspector.graph import Edge, Graph, Outputs, Task, TensorMeta
from ..inspector.kinds import Kind
from ..inspector.torch_internals import (
    call_node,
    compiled_autograd_is_on,
    gradient_dtype,
    in_checkpoint_group,
    leaf_hooks,
    leaf_of,
    new_checkpoint_group,
    node_hooks,
    run_tensor_hooks,
)
from ..inspector.walk import graph as graph_of
from .hook_watch import HookWatch
from .input_buffer import InputBuffer, fitted
from .policies import AnyPolicy, find_policy, policy_name
from .ready_queue import ReadyTask, ready_queue
from .roots import as_outputs, root_gradients
from .run import Run
from .schedule import dependencies

Gradients = Sequence[Tensor | None]

_APPLIED = {Kind.FUNCTION, Kind.CHECKPOINT, Kind.MODULE_HOOK}  # Python nodes: not callable themselves

_MANY_TASKS = 1000  # from here on looking through the process for hooks is cheaper than asking each node


class Stepper:
    """A backward that runs one task at a time, when told to. `th.debug(loss)` makes one.

    Reproduces PyTorch's engine: per edge the summing of broadcast gradients, casts and their errors, accumulation,
    hooks on tensors, nodes and leaves, checkpoints. Under "heap" the gradients are equal bit for bit; other orders add
    in another order. Must be used in one thread, with the grad mode, autocast and default hooks in which the backward
    would be called.

    Known limitations. Refused, with a sentence: create_graph, inputs=, C++ hooks (DistributedDataParallel), compiled
    regions and compiled autograd, anomaly mode, and a custom Function that gets a gradient for some of its outputs
    only. Different from PyTorch: the graph is never freed (as with retain_graph=True), a parameter's first gradient is
    cloned where PyTorch may take the tensor as it is, hooks of a non-leaf tensor whose node gets no gradient at all are
    not called with None, `register_multi_grad_hook` counts each task as a backward of its own, and callbacks queued for
    the end of the backward run at once. Hooks registered from C++ are not seen.

    Args:
        tensors, grad_tensors: as in `torch.autograd.backward`.
        policy: a name, a `Policy` or a callable (ready tasks, state) -> task; it picks when `step` is not told.

    Attributes:
        graph: the graph that is run.
        order: the ids of the tasks that have run.
    """

    def __init__(
        self,
        tensors: Outputs,
        grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
        *,
        policy: AnyPolicy = "heap",
    ) -> None:
        chosen = find_policy(policy)
        tensors = as_outputs(tensors)
        _refuse_surroundings()
        self.graph: Graph = graph_of(tensors)
        self.policy: str = policy_name(chosen)
        self.order: list[int] = []
        _refuse_tasks(self.graph)
        self._queue = ready_queue(self.graph, chosen, self.order)
        self._missing = dependencies(self.graph)
        self._takes = [_takes(task, node) for task, node in zip(self.graph.tasks, self.graph.nodes, strict=True)]
        self._buffers: dict[int, InputBuffer] = {}
        self._elapsed_ns = 0
        self._over: str | None = None  # why no step is possible any more
        self._group = new_checkpoint_group()
        self._hooks = HookWatch(self.graph.nodes) if len(self.graph) >= _MANY_TASKS else None
        _wait_for_accelerators(self.graph)
        with torch.no_grad():
            for position, gradient in enumerate(root_gradients(tensors, grad_tensors)):
                root = self.graph.roots[position]
                self._deliver(Edge(root.task, position, root.task, root.input), gradient)

    def __repr__(self) -> str:
        state = self._over or f"{len(self._queue)} ready"
        return f"<Stepper under {self.policy}: {len(self.order)} of {len(self.graph)} tasks have run, {state}>"

    def __enter__(self) -> Stepper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ready(self) -> list[ReadyTask]:
        """The ready queue, in the order in which it would pop; under a user's own policy in order of arrival."""
        return self._queue.entries()

    @property
    def current(self) -> Task | None:
        """The task that `step()` would run now; None when all have run."""
        return self.graph.tasks[self._queue.choose()] if len(self._queue) else None

    def waiting(self, task: Task | ReadyTask | int) -> tuple[Tensor | None, ...]:
        """The gradients in a task's input buffer, one per input number, None where nothing has come yet."""
        task = self._task(task)
        buffer = self._buffers.get(task.id)
        return buffer.look() if buffer else (None,) * len(task.inputs)

    def step(self, task: Task | ReadyTask | int | None = None) -> Task:
        """Runs one task: the given one (a task, its number, an entry of `ready`), or the policy's choice. Returns it.

        If it raises (a hook, a custom Function, a freed graph), the error says in which task, and the session is over:
        what had been accumulated into .grad by then stays, as after an exception in `loss.backward()`.

        Raises:
            ValueError: the given task is not ready.
            RuntimeError: no task is left, or the session is over.
        """
        self._check_open()
        if task is None:
            if not len(self._queue):
                raise RuntimeError(f"no task is left: all {len(self.order)} have run")
            task_id = self._queue.choose()
        else:
            task_id = self._task(task).id
            if task_id not in self._queue:
                raise ValueError(f"{self.graph.describe(task_id)} is not ready: {self._why_not(task_id)}")
        with self._running():
            self._execute(task_id)
        return self.graph.tasks[task_id]

    def run(self) -> Run:
        """Runs all tasks that are left, in the policy's order."""
        self._check_open()
        queue = self._queue
        with self._running():
            watch = self._hooks
            ask = watch is None or watch.possible()
            while queue:
                self._execute(queue.choose(), hooks=ask or (watch is not None and watch.registered()))
        order = tuple(self.order)
        return Run(self.graph, self.policy, "direct", order, order, self._elapsed_ns)

    def close(self) -> None:
        """Ends the session and lets the waiting gradients go. Does nothing a second time."""
        self._buffers.clear()
        self._over = self._over or "closed"

    @contextmanager
    def _running(self) -> Iterator[None]:
        started_ns = time.perf_counter_ns()
        with torch.no_grad(), in_checkpoint_group(self._group):
            yield
        self._elapsed_ns += time.perf_counter_ns() - started_ns

    def _check_open(self) -> None:
        if self._over is not None:
            raise RuntimeError(
                f"this session is over ({self._over}); start a new one on a fresh forward with th.debug(loss)"
            )

    def _task(self, task: Task | ReadyTask | int) -> Task:
        return self.graph.task(task.task if isinstance(task, ReadyTask) else task)

    def _why_not(self, task_id: int) -> str:
        if self._missing[task_id]:
            count = self._missing[task_id]
            return f"it waits for {count} more gradient{'' if count == 1 else 's'}"
        return "it has run"

    def _execute(self, task_id: int, hooks: bool = True) -> None:
        """Runs one task as engine.cpp's evaluate_function does. Not looking for hooks saves most of the time."""
        gradients: Gradients = self._buffers[task_id].gradients
        try:
            outputs = self._outputs_with_hooks(task_id, gradients) if hooks else self._outputs(task_id, gradients)
            self._queue.remove(task_id)
            del self._buffers[task_id]
            self.order.append(task_id)
            for edge in self.graph.out_edges[task_id]:
                self._deliver(edge, outputs[edge.output])
        except BaseException as error:
            self._over = f"{type(error).__name__} in {self.graph.describe(task_id)}"
            self._buffers.clear()
            error.add_note(f"tapehead: raised in {self.graph.describe(task_id)}")
            raise

    def _outputs(self, task_id: int, gradients: Gradients) -> Gradients:
        """Calls the task's node. Its outputs, one per entry of `next_functions`."""
        node = self.graph.nodes[task_id]
        task = self.graph.tasks[task_id]
        if task.kind not in _APPLIED:
            return call_node(node, gradients)
        if any(gradient is None for gradient in gradients):
            raise _cannot_materialize(self.graph, task)
        return _by_edge(task, node, call_node(node, gradients))

    def _outputs_with_hooks(self, task_id: int, gradients: Gradients) -> Gradients:
        node = self.graph.nodes[task_id]
        if self.graph.tasks[task_id].kind is Kind.ACCUMULATE_GRAD:
            gradients = _run_leaf_hooks(node, gradients)
        else:
            gradients = run_tensor_hooks(node, gradients)
        before, after = node_hooks(node)
        for hook in before:
            gradients = _replaced(hook, hook(tuple(gradients)), gradients)
        outputs = self._outputs(task_id, gradients)
        if after:
            fit = list(outputs)
            for edge in self.graph.out_edges[task_id]:  # the hooks see what the next tasks will get
                gradient = fit[edge.output]
                if gradient is not None:
                    fit[edge.output] = fitted(gradient, self._takes[edge.next_task][edge.input], self.graph, edge)
            outputs = fit
        for hook in after:
            outputs = _replaced(hook, hook(tuple(outputs), tuple(gradients)), outputs)
        return outputs

    def _deliver(self, edge: Edge, gradient: Tensor | None) -> None:
        """Puts a gradient into the next task's buffer. The last makes it ready, also when all are undefined."""
        next_task = edge.next_task
        takes = self._takes[next_task]
        buffer = self._buffers.get(next_task)
        if buffer is None:
            buffer = self._buffers[next_task] = InputBuffer(len(takes))
        if gradient is not None:
            meta = takes[edge.input]
            if (
                gradient.shape != meta.shape
                or gradient.dtype != meta.dtype
                or gradient.device != meta.device
                or gradient.layout is not torch.strided
            ):
                gradient = fitted(gradient, meta, self.graph, edge)
            buffer.add(edge.input, gradient)
        missing = self._missing[next_task] - 1
        self._missing[next_task] = missing
        if not missing:
            self._queue.push(next_task)


def debug(
    tensors: Outputs, grad_tensors: Tensor | Sequence[Tensor | None] | None = None, *, policy: AnyPolicy = "heap"
) -> Stepper:
    """Starts a backward that runs one task at a time. Arguments as for `Stepper`, which says what the session can do.

    session = th.debug(loss, policy="bfs")
    session.ready           # the ready queue in the order in which it will pop, with keys
    session.step()          # runs the next task; session.step(task) runs any other ready one
    session.run()           # runs the rest; the gradients are where loss.backward() puts them
    """
    return Stepper(tensors, grad_tensors, policy=policy)


def _by_edge(task: Task, node: Any, outputs: tuple[Any, ...]) -> Gradients:
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


def _run_leaf_hooks(node: Node, gradients: Gradients) -> Gradients:
    hooks = leaf_hooks(leaf_of(node))
    if hooks and gradients[0] is not None:
        return run_tensor_hooks(node, gradients)
    for hook in hooks:
        if hook(None) is not None:
            raise RuntimeError("can't replace a None gradient with a non-None value")
    return gradients


def _replaced(hook: Any, result: Any, before: Gradients) -> Gradients:
    """What a node's hook made of the gradients: None leaves them as they are. Checks of python_hook.cpp."""
    if result is None:
        return before
    name = getattr(hook, "__name__", repr(hook))
    if not isinstance(result, tuple):
        raise TypeError(f"expected tuple, but hook '{name}' returned '{type(result).__name__}'")
    if len(result) != len(before):
        raise RuntimeError(
            f"hook '{name}' has returned an incorrect number of values (got {len(result)}, but expected {len(before)})"
        )
    for new, old in zip(result, before, strict=True):
        if new is None:
            continue
        if old is None:
            raise RuntimeError("can't replace a None gradient with a non-None value")
        if not isinstance(new, Tensor):
            raise TypeError(f"expected Variable, but hook '{name}' returned '{type(new).__name__}'")
        if (new.dtype, new.device, new.layout) != (old.dtype, old.device, old.layout):
            raise RuntimeError(f"hook '{name}' has changed the type of value (was {old.type()} got {new.type()})")
        if new.shape != old.shape:
            raise RuntimeError(f"hook '{name}' has changed the size of value")
    return result


def _takes(task: Task, node: Node) -> tuple[TensorMeta, ...]:
    """What a task takes: a leaf's `grad_dtype` is not in its node's metadata."""
    if task.kind is not Kind.ACCUMULATE_GRAD:
        return task.inputs
    dtype = gradient_dtype(leaf_of(node))
    return task.inputs if dtype is None else (replace(task.inputs[0], dtype=dtype),)


def _wait_for_accelerators(graph: Graph) -> None:
    """Lets the forward finish on all its streams: the nodes are going to run on the current one."""
    devices = {meta.device for task in graph.tasks for meta in task.inputs}
    for device in devices:
        if device.type not in ("cpu", "meta"):
            torch.accelerator.synchronize(device)


def _refuse_tasks(graph: Graph) -> None:
    """Says what can't be run before anything is."""
    for task in graph.tasks:
        if any(meta.shape is None for meta in task.inputs):
            raise cannot(f"check the nested gradients of {graph.describe(task)}")
        if task.kind is Kind.COMPILED:
            raise cannot(f"run the compiled region {graph.describe(task)}, which frees its buffers by PyTorch's engine")
        if task.kind in _APPLIED:
            given = {edge.input for edge in graph.in_edges[task.id]}
            given |= {root.input for root in graph.roots if root.task == task.id}
            if len(given) < len(task.inputs):
                raise _cannot_materialize(graph, task)


def _cannot_materialize(graph: Graph, task: Task) -> NotImplementedError:
    # The engine makes zeros unless ctx.set_materialize_grads(False) was called, which nobody can ask for.
    return cannot(f"tell whether {graph.describe(task)} wants zeros or None for the gradients that it does not get")


def _refuse_surroundings() -> None:
    if torch.is_anomaly_enabled():
        raise cannot("look for NaN as anomaly mode does")
    if compiled_autograd_is_on():
        raise cannot("run under compiled autograd")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise cannot("run the C++ hooks of torch.distributed (DistributedDataParallel's all-reduce)")


def cannot(what: str) -> NotImplementedError:
    """The error for what the direct engine would not do as PyTorch does."""
    return NotImplementedError(f'the direct engine cannot {what}; use th.backward(..., engine="native")')
