"""Measurement of the memory of one backward, and of the forward before it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from weakref import ref

import torch
from torch import Tensor
from torch.nn import Parameter

from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.forward_allocations import forward_allocations
from ...inspector.graph.graph import Graph
from ...inspector.graph.node_metadata import tensors_of
from ...inspector.graph.operations_and_calls import CallRecord, Operation
from ...inspector.graph.saved_tensors import SavedTensor
from ...inspector.torch_private.allocators import begin_recording, leaving_out
from ...inspector.torch_private.distributed import bucketed
from ...inspector.torch_private.hooks import hooks_registered, leaf_hooks
from ...inspector.torch_private.saved_variables import hides_saved, saved_slots
from ...inspector.torch_private.tensors import FollowedStorage, local_of, without_bytes
from ...inspector.torch_private.thread_state import autocast_casts, unobserved
from ..execution.accumulation_rule import PYTORCHS, Accumulation
from ..execution.find_hooks import TensorHooks
from .allocator_events import CPU, AllocatorEvent, AllocatorRecording
from .allocator_recording import CudaAllocator, RecordedAllocators
from .baseline import baseline_on, census_before
from .build_timeline import Kinds, Measured, between_tasks, lives_of, maker_of, timeline_of, variables_of
from .categories import BATCH, PARAMETERS
from .device_choice import devices_of, measurable
from .estimates import HIDDEN, PACKED, UNSAVED_CASTS, Estimate, limit_sentence
from .footprints_from_run import footprints_of
from .start_storages import ForwardStorages
from .task_boundaries import Followed, MemoryWatch, kept_by, look
from .task_memory import Footprints, LeafState
from .timeline import Maker, Timeline


class Measurement:
    """Context manager that measures one backward, and its forward if `begin_forward` was called before it.

    On exit no profiler is left running. Without a recorded forward, the storages that it left are found through the
    nodes and through its results, including results that the graph does not lead to. Hidden saved tensors, tensors
    packed by hooks, and casts that autocast has cached but no node saved are not found; `Timeline.estimates` names
    them. A saved tensor without a `grad_fn` that the user holds counts as an input. The storages are followed through
    weak references, because the CPU's allocator does not report the free of older blocks; other allocators do.

    With CUDA's history, one recording covers forward and backward, and a mark separates them. The history does not show
    when the engine begins a task, so tensor hooks count to the task before the one they precede.

    If devices have separate queues, a task consists of its own thread's events, and the measurement is of this one run:
    it depends on which of two gradients arrives second, and says nothing about other orders.

    Args:
        device: the device to measure; None for all devices on which the backward runs.
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        self._device = None if device is None else measurable(torch.device(device))
        self._autocast = autocast_casts()
        self._recorder: RecordedAllocators | None = None
        self._recorded = False  # whether the forward was recorded
        self._forward: dict[torch.device, AllocatorRecording] = {}
        self._made: list[Operation | CallRecord | None] = []
        self._returned: dict[int, list[int]] = {}
        self._tensors: dict[int, list[ref[Tensor]]] = {}  # the same tensors
        self._arguments: dict[int, ref[Tensor]] = {}  # by address: the first argument of an operation there
        self._hooked = False
        self._written: dict[Operation, set[int]] = {}  # by in-place operation: the addresses of its arguments
        self._threads = False
        self._leaving_out = ExitStack()
        self._constants: dict[torch.device, int] = {}  # by device: `Timeline.constant_bytes`
        self._limits: dict[str, list[int]] = {}  # by unknown part of the forward: the tasks

    def __enter__(self) -> Measurement:
        self._caller = begin_recording("a measured backward (ts.profile, memory=True)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._close()
        except BaseException:  # Ctrl-C; closing twice is harmless
            self._close()
            raise

    def _close(self) -> None:
        try:
            if self._recorder is not None:
                self._recorder.close()
            self._recorder = None
            self._leaving_out.close()
        finally:
            self._caller.ended = True

    def begin_forward(self) -> None:
        """Record all blocks from now on, on all devices that the backward may turn out to use."""
        self._hooks_before = hooks_registered()
        if self._device is None:
            self._recorder = RecordedAllocators.of_all()
        else:
            history = _history_of([self._device])
            self._recorder = RecordedAllocators(history, profiled=history is None)
        self._recorder.start()
        self._recorded = True

    def observe(self, made: Operation | CallRecord | None, result: object, arguments: Sequence[object] = ()) -> None:
        """Record the result of an operation or of a module's call; with None, that of the whole forward."""
        with unobserved():
            for tensor in tensors_of(arguments):
                if (seen := look(tensor)) is not None and seen.address not in self._returned:
                    self._arguments.setdefault(seen.address, ref(tensor))
            for tensor in tensors_of(result):
                if (seen := look(tensor)) is not None:
                    self._returned.setdefault(seen.address, []).append(len(self._made))
                    self._tensors.setdefault(seen.address, []).append(ref(tensor))
            if result is None and isinstance(made, Operation) and made.name == "torch.Tensor.retain_grad":
                self._hooked = True
            if isinstance(made, Operation) and made.writes_in_place:
                self._written[made] = {seen.address for each in tensors_of(arguments) if (seen := look(each))}
            if made is None:
                self._hooked |= hooks_registered() != self._hooks_before
        self._made.append(made)
        if self._recorder is not None:
            self._recorder.mark()

    def settle(self, graph: Graph, threads: bool = False) -> None:
        """Choose the devices to measure, now that the graph is known, and stop recording the others.

        Args:
            graph: the graph.
            threads: whether each device runs its tasks in its own thread. CUDA's history does not record threads.

        Raises:
            ValueError: If memory cannot be measured on one of them, or the graph's tensors have no memory.
        """
        _refuse_without_bytes(graph)
        self._threads = threads
        self._devices = [self._device] if self._device else list(map(measurable, devices_of(graph)))
        if self._recorder is None:
            history = None if threads else _history_of(self._devices)
            self._recorder = RecordedAllocators(history, profiled=history is None or len(self._devices) > 1)
        else:
            self._recorder.keep(self._devices, threads)

    def begin(
        self,
        graph: Graph,
        outputs: Sequence[object],
        given: Sequence[bool],
        keep_graph: bool,
        create_graph: bool = False,
        accumulation: Accumulation | None = None,
    ) -> MemoryWatch:
        """Begin to measure the backward, just before it starts and after `settle`.

        Args:
            graph: the graph.
            outputs: the tensors from which the backward starts.
            given: per root, whether the caller passed its gradient.
            keep_graph: whether the backward frees nothing (`retain_graph=True`).
            create_graph: whether it builds a graph.
            accumulation: the summing rule of the direct engine, which reports the start of each task; None for
                PyTorch's own engine.
        """
        assert self._recorder is not None, "settle() comes before"
        self._accumulation = accumulation or PYTORCHS
        tells = accumulation is not None
        self._graph, self._given = graph, given
        self._keep_graph, self._create_graph = keep_graph, create_graph
        self._allocations = forward_allocations(graph)
        self._census = census_before(graph, self._allocations)
        reduced = bucketed(graph.leaves)
        self._leaves = {
            task_id: LeafState(
                seen.layout, leaf.grad is not None, task_id in self._allocations.leaves, reduced.get(task_id, "no")
            )
            for task_id, leaf in graph.leaves.items()
            if (seen := look(leaf)) is not None
        }
        self._kept = kept_by(graph, self._written, self._allocations.alone)
        tensors = [each for each in outputs if isinstance(each, Tensor)]
        self._found = {each: [] if self._recorded else self._find(tensors, each) for each in self._devices}
        for task in () if self._recorded else sorted(self._kept.hiding):
            if task not in self._kept.regions:
                self._limit(HIDDEN if hides_saved(graph.nodes[task]) else PACKED, task)
        kept: dict[int, list[Followed]] = {}
        for device, found in self._found.items():
            for followed, _ in () if self._recorder.tells_of_older(device) else found:
                for task, _ in self._kept.saved.get(followed.address, ()):
                    kept.setdefault(task, []).append(followed)
        self.watch = MemoryWatch(graph, self._recorder, kept)
        self._begin_backward(tells)
        self._leaving_out.enter_context(leaving_out(self.watch.apart))
        return self.watch

    def _find(self, outputs: Sequence[Tensor], device: torch.device) -> list[tuple[Followed, Maker]]:
        """Return the storages that the forward left, as `ForwardStorages` finds them, each with its maker.

        Args:
            outputs: the tensors from which the backward starts.
            device: the device of the storages.
        """
        graph, allocations = self._graph, self._allocations
        found: dict[int, tuple[Followed, Maker]] = {}
        _ = graph.saved  # it reads reference counts, so before anything here holds a tensor
        left = ForwardStorages(graph, device, allocations, TensorHooks(graph.nodes), self._limit, self._autocast)
        for storage, tensor in left.found():
            if isinstance(tensor, SavedTensor):
                slots = saved_slots(graph.nodes[tensor.task])
                tensor = next(slot.tensor for slot in slots if slot.name == tensor.slot)
            if tensor is not None and (seen := look(tensor)) is not None:
                followed = Followed(seen.address, storage.nbytes, FollowedStorage(local_of(tensor)))
                found[seen.address] = followed, storage.made_by
        self._constants[device] = left.constant_bytes
        left.add_older(self._census)
        if left.unsaved_casts():
            self._limit(UNSAVED_CASTS, graph.roots[0].task)
        for root, output in zip(graph.roots, outputs, strict=False):
            seen = look(output)
            if seen is not None and output.device == device and seen.address not in {*found, *allocations.of_model}:
                storage_below = local_of(output).untyped_storage()
                followed = Followed(seen.address, storage_below.nbytes(), FollowedStorage(local_of(output)))
                made_by = Maker(None, graph.tasks[root.task].operation, graph.module(root.task))
                found[seen.address] = followed, made_by
        return [*found.values()]

    def _limit(self, what: str, task: int) -> None:
        self._limits.setdefault(what, []).append(task)

    def _begin_backward(self, tells: bool) -> None:
        recorder = self._recorder
        assert recorder is not None
        if not self._recorded:
            recorder.start(tasks=not tells)
        if recorder.history is not None:
            recorder.history.note_levels()
        recorder.mark()  # the end of the forward's part
        if self._recorded and not tells and (self._threads or self._hooked or _may_be_hooked(self._graph)):
            ended = recorder.begin_tasks(self._devices)  # nothing may be freed between the two recordings
            self._forward = {device: each.split(len(self._made))[0] for device, each in ended.items()}

    def begin_stepped(
        self,
        accumulation: Accumulation,
        graph: Graph,
        outputs: Sequence[object],
        given: Sequence[bool],
        keep_graph: bool,
        create_graph: bool,
    ) -> MemoryWatch:
        """Call `settle` and `begin` for the direct engine."""
        self.settle(graph)
        return self.begin(graph, outputs, given, keep_graph, create_graph, accumulation)

    def end(self) -> None:
        """End the measurement, after backward() has returned.

        Raises:
            ValueError: If the allocator of a device on which tasks ran reported nothing.
        """
        assert self._recorder is not None
        self._leaving_out.close()
        self.watch.look_for_freed()
        with collector_paused():
            recordings = self._recorder.stop(self._devices)
        self._backward: dict[torch.device, AllocatorRecording] = {}
        for device, recording in recordings.items():
            if (more := len(recording.marks) - len(self.watch.marks)) > 0:  # of the forward, too
                forward, recording = recording.split(more - 1)
                if self._recorded:
                    self._forward[device] = forward
            self._backward[device] = recording
            is_used = any(task.device == device for task in self._graph.tasks)
            if is_used and not recording.rows and not self._forward.get(device, recording).rows:
                raise ValueError(
                    f"the allocator of {device} does not report to torch's profiler, so its memory cannot be measured; "
                    "ts.simulate(ts.graph(loss)) predicts it"
                )

    def results(self, trees: Sequence[Sequence[int]] = ()) -> list[tuple[Timeline, Footprints | None]]:
        """Return the timeline of each device, and the footprints from which other orders can be predicted.

        The accelerator comes first; of several, the one with the highest peak. If tasks ran side by side, there are no
        footprints.

        Args:
            trees: as in `Measured`.
        """
        born = {row.address for forward in self._forward.values() for row in forward.rows if row.nbytes > 0}
        with collector_paused(), unobserved():
            given = [each() for address, each in self._arguments.items() if address not in born]
            self._census.add(PARAMETERS, (each for each in given if isinstance(each, Parameter)))
            self._census.add(BATCH, given)
            given.clear()
        with collector_paused():
            found = [self._result(device, trees) for device in self._devices]
        return sorted(found, key=lambda each: (each[0].device == str(CPU), -each[0].peak_bytes))

    def _result(self, device: torch.device, trees: Sequence[Sequence[int]]) -> tuple[Timeline, Footprints | None]:
        forward, backward, found = self._forward.get(device), self._backward[device], self._found[device]
        makers = list(map(maker_of, self._made))
        if forward is None:
            forward = AllocatorRecording(
                [AllocatorEvent(0, followed.address, followed.nbytes) for followed, _ in found], [], []
            )
            makers = [maker for _, maker in found]
        if self.watch.freed and device == CPU:  # other allocators report these frees
            marks = backward.marks
            backward = backward.with_rows(
                {
                    mark: [
                        AllocatorEvent(marks[mark].ns, each.address, -each.nbytes, marks[ended].thread)
                        for each, ended in freed
                    ]
                    for mark, freed in self.watch.freed.items()
                }
            )
        backward = backward.without(self.watch.spans_apart)
        measured = Measured(
            self._graph,
            str(device),
            forward,
            device in self._forward,
            makers,
            self._returned,
            self._kept,
            backward,
            self.watch.marks,
            self.watch.visits,
            self._keep_graph,
            self._create_graph,
            self._accumulation,
            trees,
            self._allocations.of_model,
            variables_of(self._made) if device in self._forward else {},
            self._tensors,
        )
        lives = lives_of(measured)
        kinds = Kinds(measured, lives)
        unknown = "not known without a recorded forward"
        sentences = [limit_sentence(self._graph, what, tasks, unknown) for what, tasks in self._limits.items()]
        limits = tuple(Estimate(each, "at most" if each.direction == "at most" else "at least") for each in sentences)
        constants, before = self._constants.get(device, 0), baseline_on(self._census, device)
        timeline = timeline_of(measured, lives, kinds)
        timeline = replace(timeline, estimates=limits, constant_bytes=constants, baseline=before)
        if lives.places is not None:
            return timeline, None
        footprints = footprints_of(measured, lives, kinds, timeline, self._leaves, self._given)
        footprints = replace(footprints, limits=(*footprints.limits, *limits), constant_bytes=constants)
        footprints = replace(footprints, baseline=before)
        if blocks := between_tasks(measured, lives):
            what = "memory is allocated between tasks, for example by tensor hooks"
            limit = Estimate(f"{what} (blocks: {blocks:,}): predictions leave it out", "at least")
            footprints = replace(footprints, limits=(*footprints.limits, limit))
        return timeline, footprints


def _refuse_without_bytes(graph: Graph) -> None:
    for task_id, leaf in graph.leaves.items():
        if what := without_bytes(leaf):
            name = graph.tasks[task_id].parameter or f"the leaf of {graph.describe(task_id)}"
            raise ValueError(
                f"{name} is {what}, which has no memory to measure; ts.simulate(ts.graph(loss)) and "
                "ts.plan_order(loss) predict the memory of this backward"
            )


def _history_of(devices: Sequence[torch.device]) -> CudaAllocator | None:
    """Return a recorder of the one CUDA device among these; None if there is none or there are several."""
    cuda = [device for device in devices if device.type == "cuda"]
    return CudaAllocator(cuda[0]) if len(cuda) == 1 else None


def _may_be_hooked(graph: Graph) -> bool:
    """Return whether tensors may have hooks although none was registered in the forward."""
    if any(task.operation is None and not task.is_leaf for task in graph.tasks):
        return True  # part of the graph is from before the forward
    return any(map(leaf_hooks, graph.leaves.values()))
