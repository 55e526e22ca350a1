"""The fast loop: runs tasks without hooks, from tables that are read once per graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from ...inspector.graph.freed_nodes import any_spent, is_spent
from ...inspector.graph.graph import Edge, Graph, TensorMeta
from ...inspector.graph.kinds import Kind
from ...inspector.torch_private.hooks import noting
from ...inspector.torch_private.saved_variables import (
    SavedReader,
    all_saved,
    free_saved_now,
    hides_saved,
    packed_by_user,
    saved_reader,
)
from ...inspector.torch_private.thread_state import function_mode_is_on, without_torch_function
from ..schedule.device_queues import AnyQueue
from ..schedule.ready_queue import KeyedQueue
from .accumulate_grad import accumulate, accumulate_fitting
from .find_hooks import HookWatch
from .graph_task import GraphTask
from .input_buffer import InputBuffer, fitted
from .pending_inputs import InputBuffers

_Take = Callable[[Node, list[Tensor | None]], None]
_FindUnusual = Callable[[list[Tensor | None], "Sequence[Received]"], list[Edge]]


class Way(NamedTuple):
    """An edge from a task: the output, the next task and its input, and the number of the next task's inputs."""

    output: int
    next_task: int
    input: int
    inputs: int


class Received(NamedTuple):
    """The metadata of a gradient that needs no conversion on an edge."""

    output: int
    shape: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device
    edge: Edge


@dataclass(frozen=True, slots=True)
class TaskLayout:
    """The tables of a graph's tasks.

    Attributes:
        ways: by task, the edges of its outputs.
        takes: by task, the expected metadata on each of its edges.
        leaves: by task, whether it is an AccumulateGrad.
        readers: by task, the function that reads its node's saved tensors; None if it has none.
        special: the tasks that the loop cannot run.
    """

    ways: list[tuple[Way, ...]]
    takes: list[tuple[Received, ...]]
    leaves: list[bool]
    readers: list[SavedReader | None]
    special: frozenset[int]

    @staticmethod
    def of(graph: Graph, takes: list[tuple[TensorMeta, ...]], as_in_graph: bool) -> TaskLayout:
        """Return the tables of a graph.

        Args:
            graph: the graph.
            takes: by task, the metadata of its inputs.
            as_in_graph: whether these are the graph's own.
        """
        like = graph.like
        is_shared = as_in_graph and not like.nodes  # with equal graphs
        if is_shared and (known := _known.get(like)) is not None:
            return known
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
        received = [
            tuple(
                Received(edge.output, meta.shape, meta.dtype, meta.device, edge)
                for edge in edges
                for meta in (takes[edge.next_task][edge.input],)
            )
            for edges in graph.out_edges
        ]
        layout = TaskLayout(ways, received, leaves, found, frozenset(special))
        if is_shared:
            _known[like] = layout
        return layout


_known: WeakKeyDictionary[Graph, TaskLayout] = WeakKeyDictionary()


class LoopRecorder(Protocol):
    """A recorder of tasks' times and order, and of gradients that may be unusual, or of all.

    Attributes:
        looks_at_all: whether it also needs usual outputs.
    """

    looks_at_all: bool

    def start(self, task_id: int, gradients: Sequence[Tensor | None]) -> None: ...

    def end(self, task_id: int) -> None: ...

    def record_outputs(self, task_id: int, outputs: Sequence[Tensor | None], unusual: Collection[Edge]) -> None: ...

    def arrive(self, task_id: int, label: str | None) -> None: ...

    def knows_labels(self, arrived: int) -> bool: ...

    def failed(self, task_id: int) -> None: ...


class LoopStops(Protocol):
    """The breakpoints of the session. Other threads and code inside a task may add some."""

    stop_asked: bool
    breakpoints: tuple[Any, ...]


class LoopSession(Protocol):
    """The session whose tasks the fast loop runs."""

    queue: AnyQueue
    buffers: InputBuffers
    order: list[int]

    @property
    def stops(self) -> LoopStops: ...

    @property
    def is_plain(self) -> bool: ...

    def loop_recorder(self) -> LoopRecorder | None: ...

    def begin_fast_loop(self) -> Sequence[int] | None: ...

    def end_fast_loop(self) -> None: ...

    def execute(self, task_id: int, hooks: bool, by_hand: bool = False) -> None: ...

    def fail(self, error: BaseException, task_id: int) -> None: ...


class FastLoop:
    """Runs tasks as `TaskRunner.run` does, but without hooks.

    Args:
        graph: the graph.
        takes: by task, the metadata of its inputs.
        as_in_graph: whether these are the graph's own.
        keep_graph: whether the nodes keep their saved tensors.
        graph_task: holds the running node.
        free: frees a node's saved tensors; None for the default.
    """

    def __init__(
        self,
        graph: Graph,
        takes: list[tuple[TensorMeta, ...]],
        as_in_graph: bool,
        keep_graph: bool,
        graph_task: GraphTask,
        free: Callable[[Sequence[Any]], None] | None = None,
    ) -> None:
        self._graph = graph
        self._takes = takes
        self._graph_task = graph_task
        self._free = free
        self._layout = TaskLayout.of(graph, takes, as_in_graph)
        self._readers = [None] * len(graph) if keep_graph else self._layout.readers
        self._fitting = as_in_graph

    def run(self, loop: LoopSession, last: Collection[int], watch: HookWatch) -> None:
        """Run up to one of these tasks, to the end, or until there may be hooks."""
        stop_before = self._layout.special.union(last)
        while (queue := loop.queue) and loop.is_plain and not loop.stops.stop_asked and not watch.registered():
            task_id = queue.choose()
            if task_id in last:
                break
            if task_id in stop_before or torch.is_anomaly_enabled():
                loop.execute(task_id, hooks=False)
                continue
            turns = loop.begin_fast_loop()
            try:
                if turns is None:
                    self._run_plain(loop, _chosen(queue), queue, stop_before, watch)
                else:
                    self._run_plain(loop, iter(turns), None, stop_before, watch)
            finally:
                loop.end_fast_loop()

    def _run_plain(
        self,
        loop: LoopSession,
        turns: Iterator[int],
        queue: AnyQueue | None,
        stop_before: Collection[int],
        watch: HookWatch,
    ) -> None:
        """Run up to a task in `stop_before`, or one that runs user code. The loop is inline because calls would cost as
        much as small tasks themselves.

        Args:
            loop: the session.
            turns: the tasks in their order.
            queue: the ready queue to update; None for none.
            stop_before: the tasks before which to stop.
            watch: the watch for hooks.
        """
        order, buffers, missing = loop.order, loop.buffers.by_task, loop.buffers.missing
        layout, nodes, graph_task, record = self._layout, self._graph.nodes, self._graph_task, loop.loop_recorder()
        all_ways, takes, leaves, readers = layout.ways, layout.takes, layout.leaves, self._readers
        stops, may_be_spent, free = loop.stops, any_spent(), self._free or free_saved_now()
        take, unusual_edges = self._functions_now()
        known = type(queue) is KeyedQueue and record is not None and record.knows_labels(queue.arrived)
        asks = queue is not None and record is not None and not known
        handles, retained = RemovableHandle.next_id, noting.accesses
        for task_id in turns:
            if task_id in stop_before or stops.stop_asked or stops.breakpoints:
                return
            if (handles != RemovableHandle.next_id or retained != noting.accesses) and watch.registered():
                return
            node, read = nodes[task_id], readers[task_id]
            saved = () if read is None else all_saved(node, read)
            if (saved and packed_by_user(saved)) or (may_be_spent and is_spent(node)):  # runs user code, or raises
                loop.end_fast_loop()
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
                unusual = unusual_edges(outputs, takes[task_id])
                if unusual or (record is not None and (record.looks_at_all or len(takes[task_id]) != len(outputs))):
                    self._settle(unusual, outputs, task_id, record)
                gradients.clear()
                free(saved)  # before the outputs are queued, as evaluate_function does (engine.cpp, release_variables)
                order.append(task_id)
                for output, next_task, number, inputs in all_ways[task_id]:
                    gradient = outputs[output]
                    if (buffer := buffers.get(next_task)) is None:
                        buffer = buffers[next_task] = InputBuffer(inputs)
                        buffer.gradients[number] = gradient
                        outputs[output] = None  # now only the buffer holds it, so the next sum can be in place
                    elif gradient is not None and buffer.add(number, gradient):
                        outputs[output] = None
                    gradient = None  # one more reference, with which the next sum would be out of place
                    missing[next_task] -= 1  # also for an undefined gradient: the node runs even if all are undefined
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

    def _functions_now(self) -> tuple[_Take, _FindUnusual]:
        """Return the functions that store a leaf's gradient and find unusual outputs under this thread's modes.

        The modes do not change during the loop, because no user code runs in this thread.
        """
        is_quiet = not function_mode_is_on()
        is_usual = self._fitting and is_quiet and not torch.is_grad_enabled()
        return accumulate_fitting if is_usual else accumulate, _unusual if is_quiet else _unusual_under_modes

    def _settle(
        self, unusual: list[Edge], outputs: list[Tensor | None], task_id: int, record: LoopRecorder | None
    ) -> None:
        """Record unusual outputs, and convert them to the next tasks' metadata."""
        if record is not None:
            record.record_outputs(task_id, outputs, unusual)
        with without_torch_function():
            for edge in unusual:
                gradient = outputs[edge.output]
                if gradient is not None:
                    outputs[edge.output] = fitted(gradient, self._takes[edge.next_task][edge.input], self._graph, edge)


def _unusual(outputs: list[Tensor | None], takes: Sequence[Received]) -> list[Edge]:
    """Return the edges without a gradient, or with one that does not match the receiver's metadata (see `fits`)."""
    found = []
    strided = torch.strided
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


def _unusual_under_modes(outputs: list[Tensor | None], takes: Sequence[Received]) -> list[Edge]:
    with without_torch_function():
        return _unusual(outputs, takes)


def _chosen(queue: AnyQueue) -> Iterator[int]:
    """Yield the queue's choices until it is empty."""
    while queue:
        yield queue.choose()
