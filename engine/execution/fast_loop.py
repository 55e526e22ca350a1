"""Runs tasks without hooks in one loop, from tables that are read once per graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from ...inspector.graph.freed_nodes import is_spent
from ...inspector.graph.graph import Edge, Graph, TensorMeta
from ...inspector.graph.kinds import Kind
from ...inspector.torch_private.hooks import noting
from ...inspector.torch_private.saved_variables import (
    SavedReader,
    all_saved,
    free_saved,
    hides_saved,
    packed_by_user,
    saved_reader,
)
from ...inspector.torch_private.thread_state import without_torch_function
from ..schedule.device_queues import AnyQueue
from ..schedule.ready_queue import KeyedQueue
from .accumulate_grad import accumulate, accumulate_fitting
from .find_hooks import HookWatch
from .graph_task import GraphTask
from .input_buffer import InputBuffer, fitted
from .pending_inputs import InputBuffers


class Way(NamedTuple):
    """An edge from a task: to this input of the next one, which has so many."""

    output: int
    next_task: int
    input: int
    inputs: int


class Received(NamedTuple):
    """What the gradient on an edge has to be to need no fitting."""

    output: int
    shape: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device
    edge: Edge


@dataclass(frozen=True, slots=True)
class TaskLayout:
    """The tasks of a graph.

    Attributes:
        ways: by task where its outputs go.
        takes: by task, for each of its ways, what the next task takes there.
        leaves: by task whether it is an AccumulateGrad.
        readers: by task what reads the tensors that its node keeps; None where it keeps none.
        special: those which the loop can't run.
    """

    ways: list[tuple[Way, ...]]
    takes: list[tuple[Received, ...]]
    leaves: list[bool]
    readers: list[SavedReader | None]
    special: frozenset[int]

    @staticmethod
    def of(graph: Graph, takes: list[tuple[TensorMeta, ...]], as_in_graph: bool) -> TaskLayout:
        """That of the graph.

        Args:
            takes: by task what it takes.
            as_in_graph: whether that is what the graph says.
        """
        like = graph.like
        if like.nodes or not as_in_graph:  # it was compared with none
            return _read(graph, takes)
        found = _known.get(like)
        if found is None:
            found = _known[like] = _read(graph, takes)
        return found


_known: WeakKeyDictionary[Graph, TaskLayout] = WeakKeyDictionary()


def _read(graph: Graph, takes: list[tuple[TensorMeta, ...]]) -> TaskLayout:
    leaf, plain = Kind.ACCUMULATE_GRAD, Kind.CPP
    leaves = [task.kind is leaf for task in graph.tasks]
    special = {task.id for task in graph.tasks if task.kind is not plain and task.kind is not leaf}
    readers: dict[type[Node], SavedReader | None] = {}
    found: list[SavedReader | None] = [None] * len(graph)
    for task_id, node in enumerate(graph.nodes):
        if leaves[task_id] or task_id in special:
            continue
        kind = type(node)
        if kind not in readers:
            readers[kind] = saved_reader(node)
        found[task_id] = readers[kind]
        if hides_saved(node):
            special.add(task_id)
    ways = [
        tuple([Way(edge.output, edge.next_task, edge.input, len(takes[edge.next_task])) for edge in edges])
        for edges in graph.out_edges
    ]
    taken = [tuple([_taken(edge, takes[edge.next_task][edge.input]) for edge in edges]) for edges in graph.out_edges]
    return TaskLayout(ways, taken, leaves, found, frozenset(special))


def _taken(edge: Edge, meta: TensorMeta) -> Received:
    return Received(edge.output, meta.shape, meta.dtype, meta.device, edge)


class BareNotes(Protocol):
    """Takes down the times of tasks and their order, and looks at gradients where they may be unusual, or at all.

    Attributes:
        looks_at_all: whether it is to be told of usual outputs, too.
    """

    looks_at_all: bool

    def start(self, task_id: int, gradients: Sequence[Tensor | None]) -> None: ...

    def end(self, task_id: int) -> None: ...

    def gave(self, task_id: int, outputs: Sequence[Tensor | None], unusual: Collection[Edge]) -> None: ...

    def arrive(self, task_id: int, label: str | None) -> None: ...

    def knows_labels(self, arrived: int) -> bool: ...

    def failed(self, task_id: int) -> None: ...


class BareStops(Protocol):
    """The breakpoints, of which other threads and code that runs inside a task may make some."""

    stop_asked: bool

    @property
    def asks(self) -> bool: ...


class BareLoop(Protocol):
    """A backward whose tasks run and of which nothing else is wanted, but maybe a record."""

    queue: AnyQueue
    buffers: InputBuffers
    order: list[int]

    @property
    def stops(self) -> BareStops: ...

    @property
    def is_plain(self) -> bool: ...

    def bare_record(self) -> BareNotes | None: ...

    def go_ahead(self) -> Sequence[int] | None: ...

    def fall_in(self) -> None: ...

    def execute(self, task_id: int, hooks: bool, by_hand: bool = False) -> None: ...

    def fail(self, error: BaseException, task_id: int) -> None: ...


class BareTasks:
    """Runs tasks as `TaskRunner.run` does, where there are no hooks.

    Args:
        graph: the graph.
        takes: for each task what it takes, one per input number.
        as_in_graph: whether that is what the graph says.
        keep_graph: whether the nodes keep what they saved.
        graph_task: is told of the node that runs.
        free: lets go of what a node saved.
    """

    def __init__(
        self,
        graph: Graph,
        takes: list[tuple[TensorMeta, ...]],
        as_in_graph: bool,
        keep_graph: bool,
        graph_task: GraphTask,
        free: Callable[[Sequence[Any]], None] = free_saved,
    ) -> None:
        self._graph = graph
        self._takes = takes
        self._keep_graph = keep_graph
        self._graph_task = graph_task
        self._free = free
        self._layout = TaskLayout.of(graph, takes, as_in_graph)
        self._fitting = as_in_graph

    def run(self, loop: BareLoop, last: Collection[int], watch: HookWatch) -> None:
        """Up to one of these tasks, to the end, or until there may be hooks."""
        apart = self._layout.special.union(last)
        while (queue := loop.queue) and loop.is_plain and not loop.stops.stop_asked and not watch.registered():
            task_id = queue.choose()
            if task_id in last:
                break
            if task_id in apart or torch.is_anomaly_enabled():
                loop.execute(task_id, hooks=False)
                continue
            turns = loop.go_ahead()
            try:
                if turns is None:
                    self._run_plain(loop, _chosen(queue), queue, apart, watch)
                else:
                    self._run_plain(loop, iter(turns), None, apart, watch)
            finally:
                loop.fall_in()

    def _run_plain(
        self, loop: BareLoop, turns: Iterator[int], queue: AnyQueue | None, apart: Collection[int], watch: HookWatch
    ) -> None:
        """Up to a task that is apart, or which runs code of the user's. Calls between the parts of this would cost as
        much as small tasks themselves.

        Args:
            turns: the tasks, in their order.
            queue: is told of what runs, and what is ready then; None: nobody is.
        """
        order, buffers, missing = loop.order, loop.buffers.by_task, loop.buffers.missing
        layout, nodes, graph_task, record = self._layout, self._graph.nodes, self._graph_task, loop.bare_record()
        all_ways, takes, leaves, frees = layout.ways, layout.takes, layout.leaves, not self._keep_graph
        free, stops = self._free, loop.stops
        take = accumulate_fitting if self._fitting and not torch.is_grad_enabled() else accumulate
        asks = queue is not None and record is not None and not _knows_labels(record, queue)
        handles, told = RemovableHandle.next_id, noting.asked
        for task_id in turns:
            if task_id in apart or stops.stop_asked or stops.asks:
                return
            if (handles != RemovableHandle.next_id or told != noting.asked) and watch.registered():
                return
            node, read = nodes[task_id], layout.readers[task_id]
            saved = () if read is None or not frees else all_saved(node, read)
            if (saved and packed_by_user(saved)) or is_spent(node):
                loop.fall_in()
                loop.execute(task_id, hooks=False)
                return
            if queue is not None:
                queue.remove(task_id)
            gradients = buffers.pop(task_id).gradients
            graph_task.node = node
            try:
                if record is not None:
                    record.start(task_id, gradients)
                if leaves[task_id]:
                    take(node, gradients)
                    if record is not None:
                        record.end(task_id)
                    gradients.clear()
                    order.append(task_id)
                    continue
                result = node(*gradients)  # type: ignore[operator]
                if record is not None:
                    record.end(task_id)
                outputs = list(result) if type(result) is tuple else [result]
                del result
                unusual = _unusual(outputs, takes[task_id])
                if unusual or (record is not None and (record.looks_at_all or len(takes[task_id]) != len(outputs))):
                    self._settle(unusual, outputs, task_id, record)
                gradients.clear()
                free(saved)
                order.append(task_id)
                for output, next_task, number, inputs in all_ways[task_id]:
                    gradient = outputs[output]
                    if (buffer := buffers.get(next_task)) is None:
                        buffer = buffers[next_task] = InputBuffer(inputs)
                        buffer.gradients[number] = gradient
                        outputs[output] = None  # the buffer alone holds it
                    elif gradient is not None and buffer.add(number, gradient):
                        outputs[output] = None
                    gradient = None
                    missing[next_task] -= 1
                    if not missing[next_task]:
                        if queue is not None:
                            queue.push(next_task)
                        if record is not None:
                            record.arrive(next_task, queue.label(next_task) if asks and queue is not None else None)
                outputs.clear()
            except BaseException as error:
                if record is not None:
                    record.failed(task_id)
                loop.fail(error, task_id)
                raise

    def _settle(
        self, unusual: list[Edge], outputs: list[Tensor | None], task_id: int, record: BareNotes | None
    ) -> None:
        """Notes how the outputs look, and makes of them what the next tasks take."""
        if record is not None:
            record.gave(task_id, outputs, unusual)
        with without_torch_function():
            for edge in unusual:
                gradient = outputs[edge.output]
                if gradient is not None:
                    outputs[edge.output] = fitted(gradient, self._takes[edge.next_task][edge.input], self._graph, edge)


def _unusual(outputs: list[Tensor | None], takes: Sequence[Received]) -> list[Edge]:
    """The edges on which there is no gradient, or one that is not at once as its receiver takes it (see `fits`)."""
    found = []
    strided = torch.strided
    with without_torch_function():
        for output, shape, dtype, device, edge in takes:
            gradient = outputs[output]
            if (
                type(gradient) is not Tensor
                or gradient.shape != shape
                or gradient.dtype is not dtype
                or gradient.layout is not strided
                or gradient.device != device
            ):
                found.append(edge)
    return found


def _chosen(queue: AnyQueue) -> Iterator[int]:
    """What the queue gives, until it is empty."""
    while queue:
        yield queue.choose()


def _knows_labels(record: BareNotes, queue: AnyQueue) -> bool:
    return type(queue) is KeyedQueue and record.knows_labels(queue.arrived)
