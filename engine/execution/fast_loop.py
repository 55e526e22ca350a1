"""The fast loop: runs tasks without hooks, from tables that are read once per graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from ...inspector.garbage_collector import collector_paused
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

# Plain tuples: Python unpacks one in half the time of a NamedTuple.
Way = tuple[int, int, int, int]
"""An edge from a task: the output, the next task and its input, and the number of the next task's inputs."""

Received = tuple[int, tuple[int, ...] | None, torch.dtype, torch.device, Edge]
"""The metadata of a gradient that needs no conversion on an edge: the output, shape, dtype and device, and the edge."""

_Take = Callable[[Node, list[Tensor | None]], None]
_Free = Callable[[Sequence[Any]], None]
_FindUnusual = Callable[[list[Tensor | None], Sequence[Received]], list[Edge]]


@dataclass(frozen=True, slots=True)
class TaskLayout:
    """The tables of a graph's tasks.

    Attributes:
        ways: by task, the edges of its outputs.
        takes: by task, the expected metadata on each of its edges.
        leaves: by task, whether it is an AccumulateGrad.
        readers: by task, the function that reads its node's saved tensors; None if it has none.
        special: the tasks that the loop cannot run.
        unfed: the tasks with an input that no edge leads to.
    """

    ways: list[tuple[Way, ...]]
    takes: list[tuple[Received, ...]]
    leaves: list[bool]
    readers: list[SavedReader | None]
    special: frozenset[int]
    unfed: frozenset[int]

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
            tuple([(edge.output, edge.next_task, edge.input, len(takes[edge.next_task])) for edge in edges])
            for edges in graph.out_edges
        ]
        received = [
            tuple(
                (edge.output, meta.shape, meta.dtype, meta.device, edge)
                for edge in edges
                for meta in (takes[edge.next_task][edge.input],)
            )
            for edges in graph.out_edges
        ]
        fed = Counter(task_id for task_id, _ in {(edge.next_task, edge.input) for edge in graph.edges})
        unfed = frozenset(task_id for task_id, inputs in enumerate(takes) if fed[task_id] < len(inputs))
        layout = TaskLayout(ways, received, leaves, found, frozenset(special), unfed)
        if is_shared:
            _known[like] = layout
        return layout


_known: WeakKeyDictionary[Graph, TaskLayout] = WeakKeyDictionary()


_MOST_ROWS = 4096  # of a recorder's lists


class LoopRecorder(Protocol):
    """A recorder of tasks' times and order, and of gradients that may be unusual, or of all.

    The loop adds the times, the arrivals and the labels to its lists.

    Attributes:
        looks_at_all: whether it also needs usual gradients.
        unusual_tasks: waiting tasks whose gradients may differ from the graph's metadata.
        starts: for each started task its id, the number of tasks that had become ready, and the time in nanoseconds.
        ends: the times at which tasks ended.
        arrivals: the tasks in the order in which they became ready.
        labels: by arrival, the labels that the recorder does not know.
    """

    looks_at_all: bool
    unusual_tasks: set[int]
    starts: list[int]
    ends: list[int]
    arrivals: MutableSequence[int]
    labels: dict[int, str]

    def record_inputs(self, task_id: int, gradients: Sequence[Tensor | None]) -> None: ...

    def record_outputs(self, task_id: int, outputs: Sequence[Tensor | None], unusual: Collection[Edge]) -> None: ...

    def knows_labels(self, arrived: int) -> bool: ...

    def write(self) -> None: ...

    def failed(self, task_id: int) -> None: ...


_Recording = tuple[
    LoopRecorder | None, bool, list[int], list[int], MutableSequence[int], set[int], dict[int, str] | None
]
"""A recorder, and its `looks_at_all`, `starts`, `ends`, `arrivals`, `unusual_tasks` and `labels`."""


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

    def fail(self, error: BaseException, task_id: int, record: LoopRecorder | None = None) -> None: ...


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
        free: _Free | None = None,
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
            with collector_paused():  # as in PyTorch's backward, which creates no Python objects
                try:
                    if turns is None:
                        special = self._run_plain(loop, _chosen(queue), queue, stop_before, watch)
                    else:
                        special = self._run_plain(loop, iter(turns), None, stop_before, watch)
                finally:
                    loop.end_fast_loop()
            if special is not None:
                loop.execute(special, hooks=False)

    def _run_plain(
        self,
        loop: LoopSession,
        turns: Iterator[int],
        queue: AnyQueue | None,
        stop_before: Collection[int],
        watch: HookWatch,
    ) -> int | None:
        """Run up to a task in `stop_before`, or one that runs user code or raises, and return that one. The loop is
        inline because calls would cost as much as small tasks themselves.

        Args:
            loop: the session.
            turns: the tasks in their order.
            queue: the ready queue to update; None for none.
            stop_before: the tasks before which to stop.
            watch: the watch for hooks.
        """
        order, buffers, missing = loop.order, loop.buffers.by_task, loop.buffers.missing
        layout, nodes, graph_task, may_be_spent = self._layout, self._graph.nodes, self._graph_task, any_spent()
        all_ways, takes, leaves, readers = layout.ways, layout.takes, layout.leaves, self._readers
        take, unusual_edges, free = self._functions_now()
        record, records_all, starts, ends, arrivals, unusual_tasks, labels = self._recording(loop, queue)
        handles, retained, clock, stops = RemovableHandle.next_id, noting.accesses, perf_counter_ns, loop.stops
        for task_id in turns:
            if task_id in stop_before or stops.stop_asked or stops.breakpoints:
                return None
            if (handles != RemovableHandle.next_id or retained != noting.accesses) and watch.registered():
                return None
            node, read = nodes[task_id], readers[task_id]
            saved = () if read is None else all_saved(node, read)
            if (saved and packed_by_user(saved)) or (may_be_spent and is_spent(node)):  # runs user code, or raises
                return task_id
            if queue is not None:
                queue.remove(task_id)
            gradients = buffers.pop(task_id).gradients
            graph_task.node = node
            try:
                if record is not None:
                    if records_all or task_id in unusual_tasks:
                        record.record_inputs(task_id, gradients)
                    starts += (task_id, len(arrivals), clock())
                if leaves[task_id]:
                    take(node, gradients)
                    if record is not None:
                        ends.append(clock())
                    gradients.clear()
                    order.append(task_id)
                    continue
                outputs = node(*gradients)  # type: ignore[operator]
                if record is not None:
                    ends.append(clock())
                outputs = list(outputs) if type(outputs) is tuple else [outputs]
                unusual = unusual_edges(outputs, takes[task_id])
                if unusual or records_all or (record is not None and len(takes[task_id]) != len(outputs)):
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
                            if labels is not None:
                                labels[len(arrivals)] = queue.label(next_task)
                        if record is not None:
                            arrivals.append(next_task)
                outputs.clear()
                if record is not None and len(ends) >= _MOST_ROWS:
                    record.write()
            except BaseException as error:
                loop.fail(error, task_id, record)
                raise
        return None

    def _recording(self, loop: LoopSession, queue: AnyQueue | None) -> _Recording:
        """Return the recorder and the lists to which the loop adds, without labels if the recorder knows them."""
        record = loop.loop_recorder()
        if record is None:
            return None, False, [], [], [], set(), None
        record.unusual_tasks.update(self._layout.unfed)
        known = queue is None or (type(queue) is KeyedQueue and record.knows_labels(queue.arrived))
        rows = record.starts, record.ends, record.arrivals
        return record, record.looks_at_all, *rows, record.unusual_tasks, None if known else record.labels

    def _functions_now(self) -> tuple[_Take, _FindUnusual, _Free]:
        """Return the functions that store a leaf's gradient, find unusual outputs, and free saved tensors, under this
        thread's modes.

        The modes do not change during the loop, because no user code runs in this thread.
        """
        is_quiet = not function_mode_is_on()
        is_usual = self._fitting and is_quiet and not torch.is_grad_enabled()
        take, find = accumulate_fitting if is_usual else accumulate, _unusual if is_quiet else _unusual_under_modes
        return take, find, self._free or free_saved_now()

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
