"""Measuring the memory of one backward on PyTorch's engine, and of the forward before it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from torch import Tensor

from ..inspector.collector import collector_paused
from ..inspector.facts import CallRecord, Operation
from ..inspector.graph import Graph
from ..inspector.marks import tensors_of
from ..inspector.torch_internals import FollowedStorage, hooks_registered, leaf_hooks, leaf_of, saved_slots
from .allocator import AllocatorRecorder, CpuAllocator, Recording, Row
from .attribution import Kinds, Measured, lives_of, timeline_of
from .calibration import footprints_of
from .footprint import Footprints, LeafState
from .kept import kept_by
from .memory_watch import Followed, MemoryWatch, look, unseen
from .timeline import Maker, Timeline


class Measurement:
    """Measures one backward; and its forward, too, if `begin_forward` was called before that.

    A context, which leaves no profiler running. Without the forward, the storages that nodes keep are found by looking
    at the nodes, and followed through weak references: what only the user keeps, and what torch hides in its nodes, is
    not seen then.
    """

    def __init__(self) -> None:
        self._recorder: AllocatorRecorder | None = None
        self._forward: Recording | None = None
        self._made: list[Operation | CallRecord | None] = []
        self._returned: dict[int, list[int]] = {}
        self._hooked = False
        self._written: dict[Operation, set[int]] = {}  # by operation in place the addresses of its arguments

    def __enter__(self) -> Measurement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._recorder is not None:
            self._stop()

    def _start(self, recorder: AllocatorRecorder) -> None:
        recorder.start()
        self._recorder = recorder

    def _stop(self) -> Recording:
        assert self._recorder is not None
        recorder, self._recorder = self._recorder, None
        return recorder.stop()

    def begin_forward(self) -> None:
        """From now on all blocks are followed."""
        self._hooks_before = hooks_registered()
        self._start(CpuAllocator())

    def observe(self, made: Operation | CallRecord | None, result: object, arguments: Sequence[object] = ()) -> None:
        """An operation or a module's call has ended with this result. None: the whole forward has."""
        assert self._recorder is not None
        with unseen():
            for tensor in tensors_of(result):
                if (seen := look(tensor)) is not None:
                    self._returned.setdefault(seen.address, []).append(len(self._made))
            if result is None and isinstance(made, Operation) and made.name == "torch.Tensor.retain_grad":
                self._hooked = True
            if isinstance(made, Operation) and made.writes_in_place:
                self._written[made] = {seen.address for each in tensors_of(arguments) if (seen := look(each))}
            if made is None:
                self._hooked |= hooks_registered() != self._hooks_before
        self._made.append(made)
        self._recorder.mark()

    def begin(self, graph: Graph, outputs: Sequence[object], given: Sequence[bool], keep_graph: bool) -> MemoryWatch:
        """The backward is about to start.

        Args:
            graph: the graph.
            outputs: what the backward starts from.
            given: per root, whether the caller gave its gradient.
            keep_graph: whether the backward is to free nothing.
        """
        self._graph, self._given, self._keep_graph = graph, given, keep_graph
        self._leaves = {
            task.id: LeafState(seen.layout, leaf.grad is not None)
            for task in graph.tasks
            if task.is_leaf and (seen := look(leaf := leaf_of(graph.nodes[task.id]))) is not None
        }
        self._kept = kept_by(graph, self._written)
        if self._recorder is None:
            self._found = _find(graph, [output for output in outputs if isinstance(output, Tensor)])
            kept: dict[int, list[Followed]] = {}
            for followed, _ in self._found:
                for task, _ in self._kept.saved.get(followed.address, ()):
                    kept.setdefault(task, []).append(followed)
            watch = MemoryWatch(graph, recorder := CpuAllocator(tasks=True), kept)
        else:  # nothing may be freed between the two recordings
            recorder = CpuAllocator(tasks=self._hooked or _may_be_hooked(graph))
            watch = MemoryWatch(graph, recorder)
            self._forward = self._stop()
        self._start(recorder)
        self.watch = watch
        return watch

    def end(self) -> None:
        """backward() has returned."""
        self.watch.look_for_freed()
        self._backward = self._stop()

    def results(self) -> tuple[Timeline, Footprints]:
        """The timeline, and what it teaches about other orders."""
        with collector_paused():
            return self._results()

    def _results(self) -> tuple[Timeline, Footprints]:
        forward, backward = self._forward, self._backward
        makers = [_maker(made) for made in self._made]
        if forward is None:
            forward = Recording([Row(0, followed.address, followed.nbytes) for followed, _ in self._found], [], [])
            makers = [maker for _, maker in self._found]
            ns = [ns for _, ns in backward.marks]
            backward = backward.with_rows(
                {
                    mark: [Row(ns[mark], followed.address, -followed.nbytes) for followed in freed]
                    for mark, freed in self.watch.freed.items()
                }
            )
        measured = Measured(
            self._graph,
            "cpu",
            forward,
            self._forward is not None,
            makers,
            self._returned,
            self._kept,
            backward,
            self.watch.marks,
            self.watch.visits,
            self._keep_graph,
        )
        lives = lives_of(measured)
        kinds = Kinds(measured, lives)
        timeline = timeline_of(measured, lives, kinds)
        return timeline, footprints_of(measured, lives, kinds, timeline, self._leaves, self._given)


def _may_be_hooked(graph: Graph) -> bool:
    """Whether tensors may have hooks, though no hook was registered in the forward."""
    if any(task.operation is None and not task.is_leaf for task in graph.tasks):
        return True  # a part of the graph is older
    return any(leaf_hooks(leaf_of(graph.nodes[task.id])) for task in graph.tasks if task.is_leaf)


def _find(graph: Graph, outputs: Sequence[Tensor]) -> list[tuple[Followed, Maker]]:
    """The storages which the forward left in the nodes and in its outputs, each with what made it.

    Those of leaves were there before, and what has no graph and is held by more than the nodes: an input.
    """
    found: dict[int, tuple[Followed, Maker]] = {}
    leaves = (look(leaf_of(graph.nodes[task.id])) for task in graph.tasks if task.is_leaf)
    before = {seen.address for seen in leaves if seen is not None}
    slots = (slot.tensor for node in graph.nodes for slot in saved_slots(node))
    for tensor, saved in zip(slots, graph.saved, strict=True):
        seen = look(tensor)
        if seen is None or not saved.storage_bytes or tensor.device.type != "cpu":
            continue
        if saved.made_by is None and saved.held:
            before.add(seen.address)
        elif seen.address not in found or saved.made_by is not None:
            followed = Followed(seen.address, saved.storage_bytes, FollowedStorage(tensor))
            found[seen.address] = followed, _maker_of(graph, saved.made_by)
    for root, output in zip(graph.roots, outputs, strict=False):
        seen = look(output)
        if seen is not None and output.device.type == "cpu" and seen.address not in found:
            followed = Followed(seen.address, output.untyped_storage().nbytes(), FollowedStorage(output))
            found[seen.address] = followed, _maker_of(graph, root.task)
    return [each for address, each in found.items() if address not in before]


def _maker_of(graph: Graph, task_id: int | None) -> Maker:
    if task_id is None:
        return Maker(None, None, None)
    return Maker(None, graph.tasks[task_id].operation, graph.module(task_id))


def _maker(made: Operation | CallRecord | None) -> Maker:
    if made is None:
        return Maker(None, None, None)
    if isinstance(made, CallRecord):
        return Maker(None, None, made.full_path)
    return Maker(None, made, None if made.call is None else made.call.full_path)
