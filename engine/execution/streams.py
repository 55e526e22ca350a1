"""Streams of accelerators: each task runs on the stream of its forward operation, as in PyTorch's engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.graph.graph import Edge, Graph
from ...inspector.graph.operations_and_calls import Operation
from ...inspector.torch_private.saved_variables import free_saved, kept_tensors
from ...inspector.torch_private.thread_state import unobserved

Stream = torch.Stream


class TaskStreams:
    """The streams of a backward's tasks. Kernels wait for the kernels whose results they use, and no block of memory
    returns to the allocator while another stream may still use it.

    A node's stream is the one that was current when its forward operation ended (node.h, `Node::stream`), and PyTorch's
    engine runs the node there. Python does not show it, but a capture records it. If a capture saw all of the forward,
    each task runs on its own stream: events connect the stream of a task with those of the next ones, and gradients are
    recorded for the streams that use them (`record_stream`), as in engine.cpp and input_buffer.cpp.

    Otherwise the streams are unknown. All tasks of a device then run on one stream, and the host waits for the device
    before the first task and after each run of tasks. Freed tensors may belong to another stream, so they are recorded
    for this one; that has no effect if it is their own.

    At the start of each run of tasks these streams wait for the caller's, and at the end the caller's waits for them,
    so a caller may read and edit gradients between two steps.

    Args:
        graph: the graph.
        by_task: the stream of each task that runs on an accelerator; None if unknown.

    Attributes:
        several: whether tasks of one device run on several streams.
        known: whether these are the streams of the forward.
    """

    def __init__(self, graph: Graph, by_task: dict[int, Stream] | None) -> None:
        self._devices = [device for device in graph.devices if _has_streams(device)]
        self._by_task = by_task or {}
        self.known = by_task is not None
        used: dict[torch.device, list[Stream]] = {device: [] for device in self._devices}
        for stream in dict.fromkeys(self._by_task.values()):
            used[stream.device].append(stream)
        self.several = any(len(streams) > 1 for streams in used.values())
        self._main = {
            device: streams[0] if len(streams) == 1 else torch.accelerator.current_stream(device)
            for device, streams in used.items()
        }
        self._records = {device: _has_record_stream(stream) for device, stream in self._main.items()}
        self._used = {device: list(dict.fromkeys([self._main[device], *streams])) for device, streams in used.items()}
        if not self.known:
            self.wait_for_all()

    @staticmethod
    def of(graph: Graph) -> TaskStreams | None:
        """Return the streams of a graph's tasks; None if no device has streams."""
        if not any(map(_has_streams, graph.devices)):
            return None
        tasks = [task for task in graph.tasks if _has_streams(task.device)]
        known: dict[int, Stream] = {}
        for task in tasks:  # a capture records the stream on which the node was created
            stream = task.operation.stream if isinstance(task.operation, Operation) else None
            if stream is not None and stream.device == task.device:
                known[task.id] = stream
        return TaskStreams(graph, known if len(known) == len(tasks) else None)

    def of_task(self, task_id: int) -> Stream | None:
        """Return a task's own stream; None if it runs on the current one."""
        return self._by_task.get(task_id) if self.several else None

    def use_one_stream(self, waiting: Iterable[Tensor | None] = ()) -> None:
        """Run each device's tasks on one stream from now on, because gradients are also used outside tasks.

        Args:
            waiting: the gradients that wait for tasks.
        """
        if not self.several:
            return
        self.several = self.known = False
        self.wait_for_all()
        self._record(waiting)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make each device's stream current inside this context. Its streams first wait for the caller's stream, and
        the caller's waits for them at the end."""
        callers = {device: torch.accelerator.current_stream(device) for device in self._devices}
        for device, caller in callers.items():
            for stream in self._others(device, caller):
                stream.wait_stream(caller)
        try:
            with ExitStack() as stack:
                for device, main in self._main.items():
                    if main != callers[device]:
                        stack.enter_context(on_stream(main))
                yield
        finally:
            for device, caller in callers.items():
                for stream in self._others(device, caller):
                    caller.wait_stream(stream)
            if not self.known:  # hidden saved tensors are freed with their nodes, without record_stream
                self.wait_for_all()

    def _others(self, device: torch.device, caller: Stream) -> list[Stream]:
        return [stream for stream in self._used[device] if stream != caller]

    def hand_over(self, edge: Edge, gradient: Tensor | None, waits: bool) -> Stream | None:
        """Make the receiving task's stream wait for the stream that produced a gradient. Return the receiving stream,
        on which the gradient must be summed with others; None if both are the same.

        Args:
            edge: the edge between the tasks.
            gradient: the gradient.
            waits: whether another gradient waits there, to which this one may be added in place. Kernels of other tasks
                may still read that gradient although they no longer hold it, so then the stream waits for all streams.
                PyTorch's engine only tests the references (input_buffer.cpp, can_accumulate_inplace), and may race.
        """
        if gradient is None or edge.task == edge.next_task or (device := gradient.device) not in self._main:
            return None  # a root's gradient comes from the caller
        stream, consumer = self._stream_of(device, edge.task), self._stream_of(device, edge.next_task)
        for other in self._others(device, consumer):
            if waits or other == stream:
                consumer.wait_stream(other)
        if stream == consumer:
            return None
        gradient.record_stream(consumer)
        return consumer

    def given(self, task_id: int, gradients: Iterable[Tensor | None]) -> None:
        """Prepare gradients that the caller created for the stream of their task."""
        stream = self.of_task(task_id)
        for gradient in gradients:
            if stream is not None and gradient is not None and gradient.device == stream.device:
                gradient.record_stream(stream)

    def _stream_of(self, device: torch.device, task_id: int) -> Stream:
        """Return the stream of this device on which a task's kernels run."""
        stream = self._by_task.get(task_id)
        return self._main[device] if stream is None or stream.device != device else stream

    def after_engine(self, outputs: Iterable[Tensor | None]) -> None:
        """Synchronize after a nested engine run, called in the hook that ends it: later kernels may run on another
        stream."""
        if self.known:
            return
        for device, main in self._main.items():
            if (stream := torch.accelerator.current_stream(device)) != main:
                main.wait_stream(stream)
        self._record(outputs)

    def before_release(self, node: Node, gradients: Sequence[Tensor | None], saved: Sequence[object]) -> None:
        """Record a task's inputs and saved tensors for its stream before they are freed."""
        if not self.known:
            self._record(gradients)
            self._record(kept_tensors(node, saved))

    def free_saved(self, saved: Sequence[object]) -> None:
        """Call `free_saved` if nothing else is freed."""
        if not self.known:
            self._record(kept_tensors(None, saved))
        free_saved(saved)

    def wait_for_all(self) -> None:
        """Wait until the devices have finished all work."""
        for device in self._devices:
            torch.accelerator.synchronize(device)

    def _record(self, tensors: Iterable[Tensor | None]) -> None:
        for tensor in tensors:
            if tensor is not None and self._records.get(tensor.device, False):
                tensor.record_stream(self._main[tensor.device])


@contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """Enter a stream. Unlike `with stream`, this can be nested for one stream. None does nothing."""
    if stream is None:
        yield
        return
    device, before = torch.accelerator.current_device_index(), torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
        torch.accelerator.set_device_index(device)


def _has_streams(device: torch.device) -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and device.type == accelerator.type


def _has_record_stream(stream: Stream) -> bool:
    """Return whether the device's allocator keeps blocks by stream, as CUDA's does. MPS has one stream."""
    with unobserved():
        try:
            torch.empty(0, device=stream.device).record_stream(stream)
        except (NotImplementedError, RuntimeError):
            return False
    return True
