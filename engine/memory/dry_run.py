"""Prediction of the memory that each task allocates and frees, by calling each node once on fake gradients."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import prod

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.forward_allocations import forward_allocations
from ...inspector.graph.freed_nodes import begun_by_session
from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.kinds import Kind
from ...inspector.hips.tape import tape_of
from ...inspector.text.progress import telling
from ...inspector.torch_private.checkpoints import region_of
from ...inspector.torch_private.distributed import bucketed, passes_gradient_on
from ...inspector.torch_private.hooks import hooks_registered, leaf_hooks, node_hooks, post_accumulate_hooks
from ...inspector.torch_private.nodes import call_node, function_of
from ...inspector.torch_private.saved_variables import (
    first_freed,
    hidden_functions,
    hides_saved,
    packed_by_user,
    saved_facts,
    saved_variables,
    saves_subclass,
)
from ...inspector.torch_private.tensors import lazily, storage_of, stored_values
from ...inspector.torch_private.thread_state import autocast_casts, grad_layout_is_enforced
from ...inspector.validation import expect, expect_truth
from ..execution.find_hooks import HookWatch, TensorHooks
from ..execution.gradient_layouts import TensorLayout, contiguous, copy_for, layout_of, scratch_of_copy, suits, sum_of
from ..execution.input_buffer import fits, fitted
from ..execution.node_runner import APPLIED
from ..execution.torch_nodes import all_taken
from ..schedule.greedy_order import heap_order
from .baseline import baseline_on, census_before
from .device_choice import device_of
from .estimates import (
    CHECKPOINTED,
    COMPILED,
    DTENSORS,
    HIDDEN,
    HOOKED,
    NOT_CALLED,
    OF_A_SUBCLASS,
    OTHER_FORMULAS,
    PACKED,
    PASSING,
    REENTRANT,
    SAME_IN_EVERY_ORDER,
    UNLISTED_HOOKS,
    WORKSPACE,
    Estimate,
    kernel_sentence,
    limit_sentence,
    needs_values,
)
from .task_memory import Footprint, Footprints, LeafState, TaskOutput
from .task_outputs import (
    PARTING,
    Answer,
    Gradient,
    assumed_footprint,
    assumed_gradient,
    assumed_layout,
    of_shapes,
    origins_of,
    parts_of,
    parts_of_gradients,
)


def hooked_tasks(graph: Graph, leaves: Mapping[int, Tensor], of_tensors: TensorHooks) -> list[int]:
    """Return the ids of the tasks with hooks on nodes, on known tensors, or on leaves."""
    if not hooks_registered():
        return []
    found = []
    for task_id, node in enumerate(graph.nodes):
        hooks: list[object] = [hook for kind in node_hooks(node) for hook in kind]
        hooks += [hook for hook in of_tensors.of(task_id) if hook.kind == "tensor"]
        if task_id in leaves:
            hooks += [*leaf_hooks(leaves[task_id]), *post_accumulate_hooks(leaves[task_id])]
        if hooks:
            found.append(task_id)
    return found


@collector_paused()
def dry_run(graph: Graph, device: torch.device | str | None = None, *, names_hooks: bool = True) -> Footprints:
    """Predict the memory that the tasks of a graph allocate and free. No backward runs.

    Each of PyTorch's own C++ nodes is called once, as the engine would call it and in an order that the engine could
    choose, on fake tensors, which have shapes and strides but no data. The graph is not computed or freed; no .grad and
    no random number generator changes. User code does not run: no hooks, no backward of a custom Function in Python or
    C++, no operations of tensor subclasses. Such code might write, count or communicate, which cannot be seen from
    outside. These tasks are assumed to allocate a new block for each gradient, except for the Functions in `PASSING`.

    The storages alive at the start are known from `Graph.saved`. A saved storage counts as allocated by the forward if
    its tensor has a `grad_fn` in this graph, if only nodes hold it (such as a dropout mask), or if a capture saw the
    forward allocate it. Leaves that the forward created (for a gradient penalty or an adversarial example) also count;
    they stay as long as the graph. Parameters and buffers of the model never count, nor do inputs and targets that the
    caller holds. Without a capture, a tensor that the forward created and the caller holds looks like an input: such a
    leaf is among the limits, and such a constant (a mask that a module keeps) counts as an input
    (`Footprints.constant_bytes`). Results of nodes that variables still hold also count; they are found among the
    objects that Python's garbage collector tracks. Results of the same forward that are not in the graph, such as an
    auxiliary output, count together with the tensors that their nodes saved. A root known only as a GradientEdge,
    without its tensor, counts in the same way.

    Tensors without memory count as if they had it: meta tensors and fake tensors (FakeTensorMode) count the bytes of
    their storages.

    The workspace of CPU kernels, such as convolutions, is found by running each distinct operator once per process,
    alone, on tensors of the same shapes (`kernel_run`). If all of it is known and nothing else is uncertain,
    `Footprints.limits` is empty and the prediction is exact.

    Known limitations: custom Functions are among `Footprints.limits`; a measured run knows what they allocate
    (`ts.profile`). The tensors that custom C++ nodes keep are unknown. Of a CopySlices, only the leaves are
    known. A tensor that the forward left, that no node saved and that has no gradient (such as a detached hidden state
    that a model keeps for the next forward) counts only if a capture saw the forward create it. Operators that are not
    run alone (oneDNN's LSTM, large ones, those on an accelerator) are named among the limits, after `WORKSPACE`.

    Args:
        graph: the graph. The caller passes the gradients of roots that are not scalars.
        device: the device whose memory is predicted. None for the accelerator on which the backward runs (if there are
            several, the one on which nodes keep most bytes); else "meta" for tensors there; else the CPU.
        names_hooks: whether the limits name the tasks with hooks, which needs a pass over all objects. No footprint
            depends on it.

    Raises:
        ValueError: If the graph is from a file, or runs on several accelerators of the chosen type.
        TypeError: If `graph` is not a graph.
        RuntimeError: If a backward has freed the graph.
    """
    expect(graph, Graph, "graph", "a graph, such as ts.graph(loss)")
    expect_truth(names_hooks, "names_hooks")
    if graph.is_tape:
        return _of_tape(graph)
    if not graph.nodes:
        raise ValueError(f"{graph.why_no_nodes}; ts.profile(make_loss) measures a run of a fresh graph")
    order = heap_order(graph)
    freed = first_freed(graph.nodes[task_id] for task_id in order)
    if freed is not None:
        task = graph.describe(graph.nodes.index(freed))
        said = f"a backward has freed the saved tensors of {task}, so it cannot be called; run the forward again"
        raise RuntimeError("; ".join([said, *begun_by_session(graph)]))
    with telling(None, "running dry") as tell:
        tell(f"what {len(graph):,} tasks allocate")
        return _DryRun(graph, device_of(graph, device)).run(order, names_hooks)


def _of_tape(graph: Graph) -> Footprints:
    """Return the footprints of a tape; if it was freed or is from a file, only those by its gradients' shapes."""
    if (tape := tape_of(graph)) is not None:
        from .hips_footprints import tape_footprints  # which needs the package autograd

        return tape_footprints(tape)
    return of_shapes(graph)


class _DryRun:
    """One dry run of a graph, for one device."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        from .kernel_workspaces import FakeKernels
        from .start_storages import ForwardStorages

        self._graph = graph
        self._device = device
        self._operations = FakeKernels(device)
        self._takes = all_taken(graph)
        self._answers: dict[object, Answer] = {}
        self._limits: dict[str, dict[int, None]] = {}
        self._saved = graph.saved  # it reads reference counts, so before anything here holds a tensor
        self._hooks = TensorHooks(graph.nodes)
        self._allocations = forward_allocations(graph)
        limit = partial(_note_limit, self._limits)  # not a method, which would make a cycle
        self._left = ForwardStorages(graph, device, self._allocations, self._hooks, limit, autocast_casts())
        self._packed, self._saves_subclass = [], []
        for each in map(saved_variables, graph.nodes):
            self._packed.append(packed_by_user(each))
            self._saves_subclass.append(saves_subclass(each))
        self._any_packed = any(self._packed)
        self._functions_in_slices = hidden_functions(graph.nodes)
        self._more_limits: list[str] = []
        self._unknown: dict[str, tuple[dict[str, None], dict[int, None]]] = {}  # by reason; operators, tasks
        self._facts: list[object | None] = []
        self._sparse_grads: dict[int, TensorLayout] = {}  # by the leaf's task
        self._parts = parts_of_gradients(graph, self._saves_subclass)
        self._found_out: set[int] = set()  # the tasks that hide their saved tensors and keep nothing but leaves

    def run(self, order: Sequence[int], names_hooks: bool) -> Footprints:
        graph = self._graph
        leaves = graph.leaves
        reduced = bucketed(leaves)
        states = {
            task_id: LeafState(
                layout_of(leaf), leaf.grad is not None, task_id in self._allocations.leaves, reduced.get(task_id, "no")
            )
            for task_id, leaf in leaves.items()
        }
        grads = {task_id: leaf.grad for task_id, leaf in leaves.items()}
        self._sparse_grads = {
            task_id: layout_of(grad)
            for task_id, grad in grads.items()
            if grad is not None and grad.layout is torch.sparse_coo
        }
        tasks = self._ask(order, states)
        roots = [graph.tasks[root.task].inputs[root.input] for root in graph.roots]
        start = tuple(self._left)
        census = census_before(graph, self._allocations)
        self._left.add_older(census)
        for task, node in zip(graph.tasks, graph.nodes, strict=True):
            if self._packed[task.id]:
                self._limit(CHECKPOINTED if region_of(node) is not None else PACKED, task.id)
            elif hides_saved(node) and task.id not in self._found_out:
                self._limit(HIDDEN, task.id)
        if names_hooks:
            self._look_for_hooks(leaves)
        if not grad_layout_is_enforced():
            self._more_limits.append(
                Estimate(
                    "torch.autograd.enforce_grad_layout_policy(False) is set: leaves may keep gradients that count as "
                    "copied here"
                )
            )
        return Footprints(
            graph,
            str(self._device),
            "dry run",
            tuple(tasks),
            start,
            states,
            tuple(
                assumed_layout(meta)
                if meta.shape is not None and prod(meta.shape) == 1 and self._counts(meta.device)
                else None
                for meta in roots
            ),
            constant_bytes=self._left.constant_bytes,
            baseline=baseline_on(census, self._device),
            limits=(
                *([WORKSPACE] if self._unknown else []),
                *(
                    kernel_sentence(graph, why, operators, [*tasks])
                    for why, (operators, tasks) in self._unknown.items()
                ),
                *(limit_sentence(graph, what, [*task_ids]) for what, task_ids in self._limits.items()),
                *self._more_limits,
            ),
            unsure=tuple(
                limit_sentence(graph, what, [*task_ids])
                for what, task_ids in self._limits.items()
                if what not in SAME_IN_EVERY_ORDER
            ),
        )

    def _ask(self, order: Sequence[int], leaves: Mapping[int, LeafState]) -> list[Footprint | None]:
        """Return the footprints of all tasks, by id."""
        graph = self._graph
        waiting: list[list[Gradient | None]] = [[None] * len(task.inputs) for task in graph.tasks]
        for root in graph.roots:
            self._add(waiting, root.task, root.input, self._assumed(root.task, root.input))
        footprints: list[Footprint | None] = [None] * len(graph)
        # Before the mode: reading a saved view runs an operation, of which the mode would make a fake tensor.
        self._facts = list(map(self._facts_of, graph.tasks, graph.nodes))
        with self._operations:
            for task_id in order:
                if task_id in leaves:
                    footprints[task_id] = self._accumulated(task_id, waiting[task_id][0], leaves[task_id])
                    continue
                answer = self._answer(graph.tasks[task_id], waiting[task_id])
                footprints[task_id] = self._retaining(task_id, answer.footprint, waiting[task_id])
                for edge in graph.out_edges[task_id]:
                    gradient = answer.gradients[edge.output]
                    if gradient is not None:
                        self._add(waiting, edge.next_task, edge.input, gradient)
        return footprints

    def _accumulated(self, task_id: int, gradient: Gradient | None, leaf: LeafState) -> Footprint | None:
        """Return the footprint of an AccumulateGrad besides the .grad it creates: the scratch memory of a copy, or the
        new bytes of a sparse .grad, to which gradients are never added in place."""
        if gradient is None:
            return None
        before = self._sparse_grads.get(task_id)
        if before is not None and self._counts(gradient.device):
            return Footprint((0,), (sum_of(before, gradient.layout).nbytes,), (), (gradient.layout,), ((0, -1),))
        if leaf.keeps_none or suits(gradient.layout, leaf.layout):
            return None
        scratch = self._scratch(gradient, copy_for(gradient.layout, leaf.layout))
        return Footprint((0, ~0), (scratch,), (), (gradient.layout,)) if scratch else None

    def _scratch(self, gradient: Gradient, copy: TensorLayout) -> int:
        return scratch_of_copy(gradient.layout, copy) if gradient.device == self._device == torch.device("cpu") else 0

    def _retaining(self, task_id: int, footprint: Footprint, inputs: list[Gradient | None]) -> Footprint:
        """Add to a footprint the copy of the gradient that `retain_grad` makes first and the tensor keeps."""
        events: list[int] = []
        blocks, kept = list(footprint.blocks), list(footprint.kept)
        for tensor in self._hooks.retained(task_id):
            gradient = inputs[tensor.output_nr]
            if gradient is None or not self._counts(gradient.device):
                continue
            below = storage_of(tensor)
            if below is not None and below.address in self._held_by_nodes:
                continue  # it is freed, with the gradient that it retains, with the last node that saves it
            if tensor.grad is not None:
                self._limit("tasks whose gradients are added to retained ones", task_id)
            copy = replace(contiguous(gradient.layout.shape, 1), nbytes=gradient.layout.nbytes)
            kept.append((len(blocks), -1))
            events.append(len(blocks))
            blocks.append(copy.nbytes)
            scratch = self._scratch(gradient, copy)
            if scratch:
                events += (len(blocks), ~len(blocks))
                blocks.append(scratch)
        if not events:
            return footprint
        return replace(footprint, trace=(*events, *footprint.trace), blocks=tuple(blocks), kept=tuple(kept))

    @cached_property
    def _held_by_nodes(self) -> set[int]:
        """The addresses of saved storages that only nodes hold."""
        addresses = self._left.addresses
        saved = (each.storage for each in self._saved if each.storage is not None and not each.held)
        return {addresses[number] for number in saved if number in addresses}

    def _add(self, waiting: list[list[Gradient | None]], task_id: int, number: int, gradient: Gradient) -> None:
        other = waiting[task_id][number]
        if other is not None:
            if other.dtype is not gradient.dtype:  # the kernel casts one of them, which allocates
                self._limit("tasks that sum gradients of different dtypes", task_id)
            layout = sum_of(other.layout, gradient.layout)
            gradient = gradient._replace(layout=layout, conjugated=False, negated=False)
        waiting[task_id][number] = gradient

    def _answer(self, task: Task, inputs: list[Gradient | None]) -> Answer:
        """Return what a task does with these inputs; of equal nodes only the first is called."""
        node = self._graph.nodes[task.id]
        if task.kind in APPLIED and (answer := self._passed_on(task, node, inputs)) is not None:
            return answer
        edges = self._graph.out_edges[task.id] if self._parts else ()
        if any(each is not None and each.layout.wrapped for each in inputs) or any(
            (edge.next_task, edge.input) in self._parts for edge in edges
        ):  # it receives or returns a DTensor, whose code is not called
            self._limit(DTENSORS, task.id)
            return self._guessed(task)
        refused = self._refused(task, node)
        for part, what in OTHER_FORMULAS.items():
            if part in task.name and task.kind is Kind.CPP:
                self._limit(what, task.id)
        if refused is None:
            if (answer := self._parted(task, node, inputs)) is not None:
                return answer
            key = self._key(task, node, inputs)
            answer = None if key is None else self._answers.get(key)
            try:
                try:
                    answer = answer or self._call(task, node, inputs)
                except SystemError:  # torch's fake tensors may raise one where several threads use them at once
                    answer = self._call(task, node, inputs)
            except Exception as error:
                refused = needs_values(error)
            else:
                if key is not None:
                    self._answers[key] = answer
                for why, operator in answer.unknown:
                    operators, tasks = self._unknown.setdefault(why, ({}, {}))
                    operators[operator] = tasks[task.id] = None
                return answer
        self._limit(refused, task.id)
        return self._guessed(task)

    def _guessed(self, task: Task) -> Answer:
        """Return what a task that is not called is assumed to do."""
        footprint = assumed_footprint(self._graph, task.id, self._parts)
        gradients: list[Gradient | None] = [None] * len(footprint.outputs)
        for edge in self._graph.out_edges[task.id]:
            given = self._assumed(edge.next_task, edge.input)
            part = self._parts.get((edge.next_task, edge.input))
            gradients[edge.output] = given._replace(
                layout=assumed_gradient(self._graph, edge.next_task, edge.input, part)
            )
        return Answer(footprint, tuple(gradients))

    def _refused(self, task: Task, node: Node) -> str | None:
        """Return why a node must not be called, or None. It might run user code, or a whole compiled region."""
        if self._packed[task.id] or (self._any_packed and hides_saved(node)):
            return CHECKPOINTED if region_of(node) is not None else PACKED
        if task.kind is Kind.CHECKPOINT:
            return REENTRANT
        if task.kind is Kind.COMPILED:
            return COMPILED
        if task.kind in APPLIED:
            return NOT_CALLED
        if self._saves_subclass[task.id]:
            return OF_A_SUBCLASS
        if hides_saved(node):
            if task.kind is not Kind.COPY_SLICES:
                return "C++ nodes that are compiled or not PyTorch's own, which are not called"
            if node in self._functions_in_slices or gc.get_freeze_count():  # gc.freeze hides objects
                return NOT_CALLED
        edges = self._graph.out_edges[task.id]
        metas = [*task.inputs, *(self._takes[edge.next_task][edge.input] for edge in edges)]
        return "nested tensors" if any(meta.shape is None for meta in metas) else None

    def _key(self, task: Task, node: Node, inputs: list[Gradient | None]) -> object | None:
        """Return a key that is equal for nodes with the same footprint; None if that cannot be decided."""
        facts = self._facts[task.id]
        if facts is None:
            return None
        edges = self._graph.out_edges[task.id]
        gives = tuple((edge.output, self._takes[edge.next_task][edge.input]) for edge in edges)
        return type(node), task.name, tuple(inputs), facts, len(node.next_functions), gives

    def _facts_of(self, task: Task, node: Node) -> object | None:
        """Return the memory-relevant facts about the saved tensors of PyTorch's own nodes; None if they are unknown."""
        is_readable = task.kind is Kind.CPP and not self._packed[task.id] and not hides_saved(node)
        return saved_facts(node) if is_readable else None

    def _call(self, task: Task, node: Node, inputs: list[Gradient | None]) -> Answer:
        from .kernel_workspaces import FILLED_IN_PLACE, OUT_OF_PLACE

        operations = self._operations
        operations.start()
        operations.in_place = not task.name.startswith(OUT_OF_PLACE)
        operations.fills_in_place = task.name.startswith(FILLED_IN_PLACE)
        given: list[Tensor | None] = [
            None
            if each is None
            else lazily(
                operations.tensor(each.layout.shape, each.layout.strides, each.dtype, each.device),
                each.conjugated,
                each.negated,
            )
            for each in inputs
        ]
        outputs = list(call_node(node, given))
        if task.kind is Kind.COPY_SLICES:
            # Its formula was just called with all tensors that the node in it keeps. Note if these stay anyway.
            leaves = {below.address for each in self._graph.leaves.values() if (below := storage_of(each)) is not None}
            if leaves.issuperset(operations.given):
                self._found_out.add(task.id)
        for edge in self._graph.out_edges[task.id]:
            gradient = outputs[edge.output]
            takes = self._takes[edge.next_task][edge.input]
            if gradient is not None and gradient.layout is torch.strided and not fits(gradient, takes):
                outputs[edge.output] = fitted(gradient, takes, self._graph, edge)
        gradient = None
        stored = [self._stored(task, output) for output in outputs]  # may be seen here first
        events = tuple(operations.events)  # before the outputs are freed: the next tasks still hold them
        origins = tuple(origins_of(operations, given, outputs, stored))
        return Answer(
            Footprint(
                events,
                tuple(operations.nbytes),
                origins,
                tuple(None if each is None else each.layout for each in inputs),
            ),
            tuple(None if each is None else Gradient.of(each) for each in outputs),
            tuple(operations.unknown),
        )

    def _passed_on(self, task: Task, node: Node, inputs: list[Gradient | None]) -> Answer | None:
        """Return what a Function of `PASSING` does; None for others, or if it would create gradients for undefined
        ones."""
        function = function_of(node)  # type: ignore[arg-type]
        name = f"{function.__module__}.{function.__qualname__}"
        edges = self._graph.out_edges[task.id]
        passes = name in PASSING or passes_gradient_on(node)
        if not passes or any(edge.output >= len(inputs) or inputs[edge.output] is None for edge in edges):
            return None
        if (what := PASSING.get(name, DTENSORS)) is not None:
            self._limit(what, task.id)
        outputs: list[TaskOutput | None] = [None] * len(node.next_functions)
        gradients: list[Gradient | None] = [None] * len(outputs)
        for edge in edges:
            given, takes = inputs[edge.output], self._assumed(edge.next_task, edge.input)
            assert given is not None
            one, other = given.layout, takes.layout  # may be a DTensor, and one rank's part of it
            same = (one.shape, one.wrapped) == (other.shape, other.wrapped)
            gradients[edge.output] = given if same else takes
            layout = (given if same else takes).layout
            outputs[edge.output] = TaskOutput("input" if same else "view", edge.output, layout, keeps_base=False)
        layouts = tuple(None if each is None else each.layout for each in inputs)
        return Answer(Footprint((), (), tuple(outputs), layouts), tuple(gradients))

    def _parted(self, task: Task, node: Node, inputs: list[Gradient | None]) -> Answer | None:
        """Return what a node does that returns parts of its one gradient; None for others."""
        if task.name not in PARTING or (given := inputs[0]) is None:
            return None
        takes = {edge.output: self._takes[edge.next_task][edge.input] for edge in self._graph.out_edges[task.id]}
        parts = parts_of(node, given.layout, given.dtype, takes)
        if parts is None:
            return None
        gradients = (given._replace(layout=each.layout) for each in parts)
        return Answer(Footprint((), (), parts, (given.layout,)), tuple(gradients))

    def _stored(self, task: Task, output: Tensor | None) -> Tensor | None:
        """Return the tensor whose storage an output uses: for a sparse output, its values."""
        if output is None or output.layout is torch.strided:
            return output
        self._limit("tasks that return sparse gradients", task.id)
        return stored_values(output)

    def _look_for_hooks(self, leaves: dict[int, Tensor]) -> None:
        found = hooked_tasks(self._graph, leaves, self._hooks)
        for task_id in found:
            self._limit(HOOKED, task_id)
        if not found and hooks_registered() and HookWatch(self._graph.nodes).registered():
            self._more_limits.append(UNLISTED_HOOKS)

    def _assumed(self, task_id: int, number: int) -> Gradient:
        """Return the gradient that a task is assumed to receive if only its metadata is known."""
        meta = self._takes[task_id][number]
        return Gradient(assumed_layout(meta, self._parts.get((task_id, number))), meta.dtype, meta.device)

    def _limit(self, what: str, task_id: int) -> None:
        _note_limit(self._limits, what, task_id)

    def _counts(self, device: torch.device) -> bool:
        return device == self._device


def _note_limit(limits: dict[str, dict[int, None]], what: str, task_id: int) -> None:
    limits.setdefault(what, {})[task_id] = None
