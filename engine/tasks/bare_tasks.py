"""Tasks of which nothing is wanted but that they run: all in one loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ...inspector.graph.graph import Edge, Graph, TensorMeta
from ...inspector.graph.kinds import Kind
from ...inspector.graph.spent import is_spent
from ...inspector.torch_internals.retained import noting
from ...inspector.torch_internals.saved import free_saved, hides_saved, packed_by_user, saved_variables
from ..queue.device_queues import AnyQueue
from ..queue.ready_queue import KeyedQueue
from .accumulate import accumulate
from .graph_task import GraphTask
from .hook_watch import HookWatch
from .input_buffer import InputBuffer, fitted
from .input_buffers import InputBuffers


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


class BareLoop(Protocol):
    """A backward whose tasks run and of which nothing else is wanted, but maybe a record."""

    queue: AnyQueue
    buffers: InputBuffers
    order: list[int]
    stop_asked: bool

    @property
    def is_plain(self) -> bool: ...

    def bare_record(self) -> BareNotes | None: ...

    def execute(self, task_id: int, hooks: bool, by_hand: bool = False) -> None: ...

    def fail(self, error: BaseException, task_id: int) -> None: ...


class BareTasks:
    """Runs tasks as `TaskRunner.run` does, where there are no hooks.

    Args:
        graph: the graph.
        takes: for each task what it takes, one per input number.
        keep_graph: whether the nodes keep what they saved.
        graph_task: is told of the node that runs.
        free: lets go of what a node saved.
    """

    def __init__(
        self,
        graph: Graph,
        takes: list[tuple[TensorMeta, ...]],
        keep_graph: bool,
        graph_task: GraphTask,
        free: Callable[[Sequence[Any]], None] = free_saved,
    ) -> None:
        self._graph = graph
        self._takes = takes
        self._keep_graph = keep_graph
        self._graph_task = graph_task
        self._free = free
        leaf, plain = Kind.ACCUMULATE_GRAD, Kind.CPP
        self._leaves = [task.kind is leaf for task in graph.tasks]
        special = [task.id for task in graph.tasks if task.kind is not plain and task.kind is not leaf]
        if any(map(hides_saved, {type(node): node for node in graph.nodes}.values())):
            special += [task_id for task_id, node in enumerate(graph.nodes) if hides_saved(node)]
        self._special = frozenset(special)

    def run(self, loop: BareLoop, last: Collection[int], watch: HookWatch) -> None:
        """Up to one of these tasks, to the end, or until there may be hooks."""
        apart = self._special.union(last)
        while (queue := loop.queue) and loop.is_plain and not loop.stop_asked and not watch.registered():
            task_id = queue.choose()
            if task_id in last:
                break
            if task_id in apart or torch.is_anomaly_enabled():
                loop.execute(task_id, hooks=False)
            else:
                self._run_plain(loop, apart, watch)

    def _run_plain(self, loop: BareLoop, apart: Collection[int], watch: HookWatch) -> None:
        """Up to a task that is apart, or which runs code of the user's. Calls between the parts of this would cost as
        much as small tasks themselves."""
        queue, order, buffers, missing = loop.queue, loop.order, loop.buffers.by_task, loop.buffers.missing
        graph, nodes, leaves, takes_of = self._graph, self._graph.nodes, self._leaves, self._takes
        edges, frees, graph_task, record = graph.out_edges, not self._keep_graph, self._graph_task, loop.bare_record()
        free = self._free
        asks = record is not None and not (type(queue) is KeyedQueue and record.knows_labels(queue.arrived))
        handles, told = RemovableHandle.next_id, noting.asked
        while queue:
            task_id = queue.choose()
            if task_id in apart or loop.stop_asked:
                return
            if (handles != RemovableHandle.next_id or told != noting.asked) and watch.registered():
                return
            node, leaf = nodes[task_id], leaves[task_id]
            saved = saved_variables(node) if frees and not leaf else ()
            if (saved and packed_by_user(saved)) or is_spent(node):
                loop.execute(task_id, hooks=False)
                return
            queue.remove(task_id)
            gradients = buffers.pop(task_id).gradients
            graph_task.node = node
            try:
                if record is not None:
                    record.start(task_id, gradients)
                if leaf:
                    accumulate(node, gradients, None)
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
                its = edges[task_id]
                unusual = _unusual(outputs, its, takes_of)
                if unusual or (record is not None and (record.looks_at_all or len(its) != len(outputs))):
                    _settle(unusual, outputs, takes_of, graph, task_id, record)
                gradients.clear()
                free(saved)
                order.append(task_id)
                for edge in its:
                    next_task, gradient = edge.next_task, outputs[edge.output]
                    if (buffer := buffers.get(next_task)) is None:
                        buffer = buffers[next_task] = InputBuffer(len(takes_of[next_task]))
                        buffer.gradients[edge.input] = gradient
                        outputs[edge.output] = None  # the buffer alone holds it
                    elif gradient is not None and buffer.add(edge.input, gradient):
                        outputs[edge.output] = None
                    gradient = None
                    missing[next_task] -= 1
                    if not missing[next_task]:
                        queue.push(next_task)
                        if record is not None:
                            record.arrive(next_task, queue.label(next_task) if asks else None)
                outputs.clear()
            except BaseException as error:
                if record is not None:
                    record.failed(task_id)
                loop.fail(error, task_id)
                raise


def _unusual(outputs: list[Tensor | None], edges: Sequence[Edge], takes_of: list[tuple[TensorMeta, ...]]) -> list[Edge]:
    """The edges on which there is no gradient, or one that is not at once as its receiver takes it (see `fits`)."""
    found = []
    strided = torch.strided
    for edge in edges:
        gradient, takes = outputs[edge.output], takes_of[edge.next_task][edge.input]
        if (
            type(gradient) is not Tensor
            or gradient.shape != takes.shape
            or gradient.dtype is not takes.dtype
            or gradient.layout is not strided
            or gradient.device != takes.device
        ):
            found.append(edge)
    return found


def _settle(
    unusual: list[Edge],
    outputs: list[Tensor | None],
    takes_of: list[tuple[TensorMeta, ...]],
    graph: Graph,
    task_id: int,
    record: BareNotes | None,
) -> None:
    """Notes how the outputs look, and makes of them what the next tasks take."""
    if record is not None:
        record.gave(task_id, outputs, unusual)
    for edge in unusual:
        gradient = outputs[edge.output]
        if gradient is not None:
            outputs[edge.output] = fitted(gradient, takes_of[edge.next_task][edge.input], graph, edge)
