"""On which of an accelerator's streams tasks run: each on that of its forward, as in PyTorch's engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.graph.capture_records import Operation
from ...inspector.graph.graph import Edge, Graph, Task
from ...inspector.torch_private.saved_variables import free_saved, kept_tensors
from ...inspector.torch_private.thread_state import unobserved

Stream = torch.Stream


class TaskStreams:
    """Puts a backward's tasks on streams so that kernels wait for those whose results they use, and no block of memory
    goes back to the allocator while a stream that it does not know of may still use it.

    A node has the stream that was current as its forward operation ended (node.h, `Node::stream`), and PyTorch's engine
    runs it there. Python does not show it, but a capture notes it. Where one saw all of the forward, each task runs on
    its own stream: events lead from the stream of a task to those of the next ones, and gradients are noted for the
    streams that take them (`record_stream`), as engine.cpp and input_buffer.cpp do.

    Elsewhere the streams are not known. All tasks of a device then run on one stream; the host waits for the device
    before the first of them, and after each run of tasks. What they let go may belong to another stream: it is noted
    for this one, which is nothing to the allocator if it is its own.

    On the way into each run of tasks these streams wait for the caller's, and on the way out the caller's for them. A
    caller may so look at gradients, and edit them, between two steps.

    Args:
        graph: the graph.
        by_task: of each task that runs on an accelerator the stream; None: they are not known.

    Attributes:
        several: whether tasks of one device run on several.
        known: whether they are those of the forward.
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
        self._notes = {device: _can_note(stream) for device, stream in self._main.items()}
        self._used = {device: list(dict.fromkeys([self._main[device], *streams])) for device, streams in used.items()}
        if not self.known:
            self.wait_for_all()

    @staticmethod
    def of(graph: Graph) -> TaskStreams | None:
        """The streams of these tasks; None where no device has any."""
        if not any(map(_has_streams, graph.devices)):
            return None
        found = {task.id: _noted(task) for task in graph.tasks if _has_streams(task.device)}
        known = {task_id: stream for task_id, stream in found.items() if stream is not None}
        return TaskStreams(graph, known if len(known) == len(found) else None)

    def of_task(self, task_id: int) -> Stream | None:
        """The stream of a task of its own; None where it runs on whichever is current."""
        return self._by_task.get(task_id) if self.several else None

    def give_up(self, waiting: Iterable[Tensor | None] = ()) -> None:
        """From here on each device's tasks run on one stream: something is done with gradients beside them.

        Args:
            waiting: the gradients that wait for tasks.
        """
        if not self.several:
            return
        self.several = self.known = False
        self.wait_for_all()
        self._note(waiting)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Meanwhile each device's stream is the current one, and its streams stand between what the caller asked for
        before and asks for after."""
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
            if not self.known:  # what nodes hide goes when they do
                self.wait_for_all()

    def _others(self, device: torch.device, caller: Stream) -> list[Stream]:
        return [stream for stream in self._used[device] if stream != caller]

    def hand_over(self, edge: Edge, gradient: Tensor | None, waits: bool) -> Stream | None:
        """Lets the stream of the task that gets a gradient wait for that which gives it. Gives that stream, on which it
        has to be summed with others; None: both are one.

        Args:
            edge: from one task to the other.
            gradient: what goes there.
            waits: whether another one waits there, to which this one may be added in place. It may have gone to further
                tasks, which hold it no more, but whose kernels may still read it: then all streams are waited for.
                PyTorch's engine asks only who holds it (input_buffer.cpp, can_accumulate_inplace), and may race.
        """
        if gradient is None or edge.task == edge.next_task or (device := gradient.device) not in self._main:
            return None  # a root has it of the caller
        stream, consumer = self._on(device, edge.task), self._on(device, edge.next_task)
        for other in self._others(device, consumer):
            if waits or other == stream:
                consumer.wait_stream(other)
        if stream == consumer:
            return None
        gradient.record_stream(consumer)
        return consumer

    def given(self, task_id: int, gradients: Iterable[Tensor | None]) -> None:
        """A task is going to get these, which the caller made."""
        stream = self.of_task(task_id)
        for gradient in gradients:
            if stream is not None and gradient is not None and gradient.device == stream.device:
                gradient.record_stream(stream)

    def _on(self, device: torch.device, task_id: int) -> Stream:
        """The stream of this device on which what a task does there goes."""
        stream = self._by_task.get(task_id)
        return self._main[device] if stream is None or stream.device != device else stream

    def after_engine(self, outputs: Iterable[Tensor | None]) -> None:
        """In a hook that ends a run of the engine's own, whose node has a stream: what follows may run on another."""
        if self.known:
            return
        for device, main in self._main.items():
            if (stream := torch.accelerator.current_stream(device)) != main:
                main.wait_stream(stream)
        self._note(outputs)

    def before_release(self, node: Node, gradients: Sequence[Tensor | None], saved: Sequence[object]) -> None:
        """A task has run, and lets go of what it took and saved."""
        if not self.known:
            self._note(gradients)
            self._note(kept_tensors(node, saved))

    def free_saved(self, saved: Sequence[object]) -> None:
        """`free_saved`, where nothing else is let go."""
        if not self.known:
            self._note(kept_tensors(None, saved))
        free_saved(saved)

    def wait_for_all(self) -> None:
        """Waits until the devices have done all that they were asked for."""
        for device in self._devices:
            torch.accelerator.synchronize(device)

    def _note(self, tensors: Iterable[Tensor | None]) -> None:
        for tensor in tensors:
            if tensor is not None and self._notes.get(tensor.device, False):
                tensor.record_stream(self._main[tensor.device])


@contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """`with stream`, which one stream can't do twice, one in the other. None: nothing."""
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


def _can_note(stream: Stream) -> bool:
    """Whether the device's allocator keeps blocks by stream, as CUDA's; that of MPS has one stream."""
    with unobserved():
        try:
            torch.empty(0, device=stream.device).record_stream(stream)
        except (NotImplementedError, RuntimeError):
            return False
    return True


def _noted(task: Task) -> Stream | None:
    """The stream on which a capture saw the task's node made."""
    operation = task.operation
    stream = operation.stream if isinstance(operation, Operation) else None
    return stream if stream is not None and stream.device == task.device else None
