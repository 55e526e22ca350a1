"""What each task would do with memory, without a backward: each node is called once on gradients without bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ..inspector.graph import Graph, Task, TensorMeta
from ..inspector.kinds import Kind
from ..inspector.saved import SavedTensor
from ..inspector.torch_internals import (
    FakeOperations,
    call_node,
    first_freed,
    hides_saved,
    hooks_registered,
    is_view,
    leaf_hooks,
    leaf_of,
    node_hooks,
    packed_by_user,
    post_accumulate_hooks,
    saved_facts,
    saved_slots,
    saved_variables,
    storage_of,
    stored_values,
)
from .footprint import Footprint, Footprints, Layout, LeafState, Output, StartStorage
from .input_buffer import fits, fitted
from .layouts import contiguous, layout_of, sum_of
from .measured_device import device_of
from .schedule import schedule
from .task_runner import APPLIED, by_edge, takes_of
from .timeline import Maker


def dry_run(graph: Graph, device: torch.device | str | None = None) -> Footprints:
    """Finds out what the tasks of a graph would do with memory. No backward runs.

    Each node is called once, as the engine calls it and in an order of the engine's, on fake tensors: they have shapes
    and strides, and no bytes. Nothing is allocated, computed or freed, no .grad and no random number generator changes,
    and no hook runs. A custom Function's own Python code does run, on fake tensors.

    What is alive before is known from `Graph.saved`. Of what a node saves, a storage counts as made since just before
    the forward if the tensor has a `grad_fn` in this graph, or if nothing but nodes holds it: a dropout mask, say. So
    a leaf doesn't count, nor what the caller holds of the inputs and targets. Each root is taken to be held by the
    caller, on a storage of its own.

    Known limitations: the forward's results which the caller keeps and no node saves are not known of, nor what
    CopySlices and custom C++ nodes keep, nor how large a storage a root is on. What a kernel allocates for itself while
    it runs, as convolutions do, can't be seen: a measured run has it. A few formulas (of index and
    binary_cross_entropy_with_logits) take a step out of place which on real tensors is in place. `Footprints.limits`
    names the tasks that can't be asked at all. The first dry run of a process takes two seconds more, in which torch
    loads what fake tensors need.

    Args:
        graph: the graph. The caller gives the gradients of roots that are no scalars.
        device: whose memory. None: of the accelerator on which the backward runs, else of the CPU.

    Raises:
        ValueError: the graph is from a file; or it is on several accelerators, and none is chosen.
        RuntimeError: a backward has freed it.
    """
    if not graph.nodes:
        raise ValueError("a graph from a file has no nodes to ask; th.profile measures a run with the graph at hand")
    order = schedule(graph, "heap")
    freed = first_freed(graph.nodes[task_id] for task_id in order)
    if freed is not None:
        task = graph.describe(graph.nodes.index(freed))
        raise RuntimeError(f"a backward has freed what {task} saved, so it can't be asked; make the graph again")
    return _DryRun(graph, device_of(graph, device)).run(order)


class _Gradient(NamedTuple):
    """A gradient on its way, as far as it matters to memory."""

    layout: Layout
    dtype: torch.dtype
    device: torch.device


class _Answer(NamedTuple):
    """What a task does: its footprint, and the gradients that it gives."""

    footprint: Footprint
    gradients: tuple[_Gradient | None, ...]


def assumed_layout(meta: TensorMeta) -> Layout:
    """What a gradient is taken for where nothing but its metadata is known."""
    return contiguous(meta.shape or (), meta.dtype.itemsize)


def assumed_footprint(graph: Graph, task_id: int) -> Footprint:
    """What a task is taken to do where it can't be asked: each gradient that it gives is a new block."""
    outputs: list[Output | None] = []
    blocks: list[int] = []
    for edge in graph.out_edges[task_id]:
        layout = assumed_layout(graph.tasks[edge.next_task].inputs[edge.input])
        outputs.extend([None] * (edge.output - len(outputs)))
        outputs.append(Output("block", len(blocks), layout, keeps_base=False))
        blocks.append(layout.nbytes)
    return Footprint(tuple(range(len(blocks))), tuple(blocks), tuple(outputs), inputs=())


class _DryRun:
    def __init__(self, graph: Graph, device: torch.device) -> None:
        self._graph = graph
        self._device = device
        self._operations = FakeOperations(device)
        self._takes = [takes_of(task, node) for task, node in zip(graph.tasks, graph.nodes, strict=True)]
        self._answers: dict[object, _Answer] = {}
        self._limits: dict[str, list[int]] = {}
        saved = map(saved_variables, graph.nodes)
        self._packed = [packed_by_user(each) for each in saved]
        self._any_packed = any(self._packed)

    def run(self, order: Sequence[int]) -> Footprints:
        graph = self._graph
        leaves = {task.id: leaf_of(graph.nodes[task.id]) for task in graph.tasks if task.is_leaf}
        grads = {task_id: leaf.grad for task_id, leaf in leaves.items()}
        try:
            tasks = self._ask(order)
        finally:
            for task_id, leaf in leaves.items():  # a custom Function may have set one
                if leaf.grad is not grads[task_id]:
                    leaf.grad = grads[task_id]
        roots = [graph.tasks[root.task].inputs[root.input] for root in graph.roots]
        start = tuple(self._start())
        self._look_for_hooks(leaves)
        return Footprints(
            graph,
            str(self._device),
            "dry run",
            tuple(tasks),
            start,
            {task_id: LeafState(_layout_of(leaf), grads[task_id] is not None) for task_id, leaf in leaves.items()},
            tuple(assumed_layout(meta) if _is_scalar(meta) and self._counts(meta.device) else None for meta in roots),
            limits=tuple(_sentence(graph, what, task_ids) for what, task_ids in self._limits.items()),
        )

    def _ask(self, order: Sequence[int]) -> list[Footprint | None]:
        """The footprints of all tasks, by id."""
        graph = self._graph
        waiting: list[list[_Gradient | None]] = [[None] * len(task.inputs) for task in graph.tasks]
        for root in graph.roots:
            self._add(waiting, root.task, root.input, _assumed(graph.tasks[root.task].inputs[root.input]))
        footprints: list[Footprint | None] = [None] * len(graph)
        with self._operations:
            for task_id in order:
                if graph.tasks[task_id].is_leaf:
                    continue
                answer = self._answer(graph.tasks[task_id], waiting[task_id])
                footprints[task_id] = answer.footprint
                for edge in graph.out_edges[task_id]:
                    gradient = answer.gradients[edge.output]
                    if gradient is not None:
                        self._add(waiting, edge.next_task, edge.input, gradient)
        return footprints

    def _add(self, waiting: list[list[_Gradient | None]], task_id: int, number: int, gradient: _Gradient) -> None:
        other = waiting[task_id][number]
        if other is not None:
            gradient = gradient._replace(layout=sum_of(other.layout, gradient.layout))
        waiting[task_id][number] = gradient

    def _answer(self, task: Task, inputs: list[_Gradient | None]) -> _Answer:
        """What a task does with these inputs; of equal nodes only the first is asked."""
        node = self._graph.nodes[task.id]
        refused = self._refused(task, node)
        if refused is None:
            key = self._key(task, node, inputs)
            answer = None if key is None else self._answers.get(key)
            try:
                answer = answer or self._call(task, node, inputs)
            except Exception as error:  # of a user's code, or of an operation that can't do without values
                what = "custom Functions" if task.kind in APPLIED else "nodes"
                refused = f"{what} that can't run without values ({type(error).__name__})"
            else:
                if key is not None:
                    self._answers[key] = answer
                return answer
        self._limit(refused, task.id)
        footprint = assumed_footprint(self._graph, task.id)
        gradients: list[_Gradient | None] = [None] * len(footprint.outputs)
        for edge in self._graph.out_edges[task.id]:
            gradients[edge.output] = _assumed(self._takes[edge.next_task][edge.input])
        return _Answer(footprint, tuple(gradients))

    def _refused(self, task: Task, node: Node) -> str | None:
        """Why a node must not be called, if so: it would run hooks, a forward, or the whole of a compiled region."""
        if self._packed[task.id] or (self._any_packed and hides_saved(node)):
            return "nodes whose saved tensors were packed by saved_tensors_hooks (a checkpoint, save_on_cpu)"
        if task.kind is Kind.CHECKPOINT:
            return "reentrant checkpoints"
        if task.kind is Kind.COMPILED:
            return "compiled regions"
        edges = self._graph.out_edges[task.id]
        metas = [*task.inputs, *(self._takes[edge.next_task][edge.input] for edge in edges)]
        return "nested tensors" if any(meta.shape is None for meta in metas) else None

    def _key(self, task: Task, node: Node, inputs: list[_Gradient | None]) -> object | None:
        """Equal for nodes that do the same with memory; None if this can't be told."""
        if task.kind is not Kind.CPP or hides_saved(node):
            return None
        facts = saved_facts(node)
        if facts is None:
            return None
        edges = self._graph.out_edges[task.id]
        gives = tuple((edge.output, self._takes[edge.next_task][edge.input]) for edge in edges)
        return type(node), task.name, tuple(inputs), facts, len(node.next_functions), gives

    def _call(self, task: Task, node: Node, inputs: list[_Gradient | None]) -> _Answer:
        operations = self._operations
        operations.start()
        given: list[Tensor | None] = [
            None if each is None else operations.tensor(each.layout.shape, each.layout.strides, each.dtype, each.device)
            for each in inputs
        ]
        if task.kind in APPLIED:  # as its set_materialize_grads is by default (python_function.cpp)
            for number, meta in enumerate(task.inputs):
                if given[number] is None:
                    given[number] = torch.zeros(meta.shape or (), dtype=meta.dtype, device=meta.device)
            outputs = list(by_edge(task, node, call_node(node, given)))
        else:
            outputs = list(call_node(node, given))
        for edge in self._graph.out_edges[task.id]:
            gradient = outputs[edge.output]
            takes = self._takes[edge.next_task][edge.input]
            if gradient is not None and gradient.layout is torch.strided and not fits(gradient, takes):
                outputs[edge.output] = fitted(gradient, takes, self._graph, edge)
        gradient = None
        events = tuple(operations.events)  # what dies later is what the next tasks get
        return _Answer(
            Footprint(
                events,
                tuple(operations.nbytes),
                tuple(self._origins(task, given, outputs)),
                tuple(None if each is None else each.layout for each in inputs),
            ),
            tuple(None if each is None else _Gradient(_layout_of(each), each.dtype, each.device) for each in outputs),
        )

    def _origins(self, task: Task, given: list[Tensor | None], outputs: list[Tensor | None]) -> Iterator[Output | None]:
        storages = [None if each is None else storage_of(each) for each in given]
        numbers: dict[int, int] = {}  # of a task's own blocks, the first output on each
        for position, output in enumerate(outputs):
            if output is None:
                yield None
                continue
            if output.layout is not torch.strided:
                self._limit("tasks that give sparse gradients", task.id)
                output = stored_values(output)
            layout, keeps_base = _layout_of(output), is_view(output)
            same = next((number for number, each in enumerate(given) if each is output), -1)
            before = next((number for number, each in enumerate(outputs[:position]) if each is output), -1)
            block = self._operations.number(output)
            if same >= 0:
                yield Output("input", same, layout, keeps_base)
            elif before >= 0:
                yield Output("output", before, layout, keeps_base)
            elif block in numbers:
                yield Output("output view", numbers[block], layout, keeps_base)
            elif block >= 0:
                numbers[block] = position
                yield Output("block", block, layout, keeps_base)
            else:
                storage = storage_of(output)
                shared = storages.index(storage) if storage is not None and storage in storages else -1
                yield Output("view" if shared >= 0 else "outside", shared, layout, keeps_base)

    def _start(self) -> Iterator[StartStorage]:
        """What is alive before the backward; see `dry_run` for the rule."""
        graph = self._graph
        of_leaves = self._storages_of_leaves()
        storages: dict[int, list[SavedTensor]] = {}
        for saved in graph.saved:
            if saved.storage is None:
                self._limit("nodes that keep sparse or nested tensors", saved.task)
            elif saved.storage not in of_leaves and self._counts(saved.device) and saved.storage_bytes:
                storages.setdefault(saved.storage, []).append(saved)
        shown = set()  # roots
        for found in storages.values():
            held = any(saved.held for saved in found)
            makers = {saved.made_by for saved in found if saved.made_by is not None}
            if held and not makers:
                continue
            for root in graph.roots:
                if root.task in makers and held:
                    shown.add(root.task)
            yield StartStorage(
                found[0].storage_bytes or 0,
                tuple((saved.task, saved.slot) for saved in found),
                held,
                self._maker(min(makers) if makers else None, {saved.task for saved in found}),
            )
        for root in dict.fromkeys(graph.roots):
            meta = graph.tasks[root.task].inputs[root.input]
            if root.task not in shown and not graph.tasks[root.task].is_leaf and self._counts(meta.device):
                yield StartStorage(meta.nbytes or 0, (), True, self._maker(root.task, set()))
        for task, node in zip(graph.tasks, graph.nodes, strict=True):
            if self._packed[task.id] or hides_saved(node):
                self._limit("nodes that hide what they keep from the forward", task.id)

    def _maker(self, made_by: int | None, savers: set[int]) -> Maker:
        """What made a saved storage: the task whose node did, or the operation whose nodes alone save it."""
        graph = self._graph
        if made_by is None and len({id(graph.tasks[task_id].operation) for task_id in savers}) == 1:
            made_by = min(savers)
        if made_by is None:
            return Maker(None, None, None)
        return Maker(None, graph.tasks[made_by].operation, graph.module(made_by))

    def _storages_of_leaves(self) -> set[int]:
        """The storages of leaves among those that are saved, by their numbers in `Graph.saved`."""
        graph = self._graph
        leaves = [storage_of(leaf_of(graph.nodes[task.id])) for task in graph.tasks if task.is_leaf]
        addresses = {storage.address for storage in leaves if storage is not None}
        numbers = iter(graph.saved)
        found = set()
        for node in graph.nodes:
            for slot in saved_slots(node):
                storage, saved = storage_of(slot.tensor), next(numbers)
                if storage is not None and storage.address in addresses and saved.storage is not None:
                    found.add(saved.storage)
        return found

    def _look_for_hooks(self, leaves: dict[int, Tensor]) -> None:
        if not hooks_registered():
            return
        for task_id, node in enumerate(self._graph.nodes):
            hooks = [*node_hooks(node)[0], *node_hooks(node)[1]]
            if task_id in leaves:
                hooks += [*leaf_hooks(leaves[task_id]), *post_accumulate_hooks(leaves[task_id])]
            if hooks:
                self._limit("tasks with hooks, which were not run", task_id)

    def _limit(self, what: str, task_id: int) -> None:
        tasks = self._limits.setdefault(what, [])
        if task_id not in tasks:
            tasks.append(task_id)

    def _counts(self, device: torch.device) -> bool:
        return device == self._device


def _sentence(graph: Graph, what: str, task_ids: list[int]) -> str:
    return f"not known from a dry run: {what}: {len(task_ids):,}, the first is {graph.describe(task_ids[0])}"


def _assumed(meta: TensorMeta) -> _Gradient:
    return _Gradient(assumed_layout(meta), meta.dtype, meta.device)


def _is_scalar(meta: TensorMeta) -> bool:
    return meta.shape is not None and prod(meta.shape) == 1


def _layout_of(tensor: Tensor) -> Layout:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return contiguous(() if tensor.is_nested else tensor.shape, tensor.element_size())
    return layout_of(tensor)
