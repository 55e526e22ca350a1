"""Tensors at the boundaries of tasks, by address: gradients in and out, and saved tensors."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from threading import RLock, get_ident
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from ...inspector.graph.graph import Graph
from ...inspector.graph.node_metadata import tensors_of
from ...inspector.graph.operations_and_calls import Operation
from ...inspector.torch_private.checkpoints import (
    cached_results,
    random_states,
    region_inputs,
    region_of,
    regions_around,
)
from ...inspector.torch_private.nodes import leaf_of
from ...inspector.torch_private.saved_variables import (
    attributes_of,
    hides_saved,
    packed_by_user,
    saved_slots,
    saved_variables,
)
from ...inspector.torch_private.tensors import (
    FollowedStorage,
    address_below,
    identity_of,
    is_fake,
    is_view,
    local_of,
    stored_bytes,
    stored_values,
)
from ...inspector.torch_private.thread_state import unobserved
from ..execution.gradient_layouts import TensorLayout, is_dense, sparse
from .allocator_events import Marks
from .timeline import LEAF, ON_CTX, RANDOM_STATE, REGION

Slots = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class SavedBlocks:
    """The storages that nodes keep.

    Attributes:
        saved: by address, the (task, slot) pairs that keep the storage.
        hidden: by address, the tasks whose nodes hide their saved tensors (CopySlices) and that worked on this storage.
        hiding: the tasks whose nodes hide their saved tensors, or had them packed by `saved_tensors_hooks`.
        regions: by task, the tasks of its checkpointed region, including itself.
        openers: for each such region, the tasks that trigger its recomputation: its own, and those of nested regions.
    """

    saved: Mapping[int, Slots]
    hidden: Mapping[int, Collection[int]]
    hiding: Collection[int]
    regions: Mapping[int, Collection[int]]
    openers: Collection[Collection[int]]


def kept_by(graph: Graph, written: Mapping[Operation, Collection[int]], leaves: Collection[int] = ()) -> SavedBlocks:
    """Return the storages that the graph's nodes keep.

    Args:
        graph: the graph.
        written: by in-place operation, the addresses of its arguments.
        leaves: the tasks of leaves that only the graph holds.
    """
    saved: dict[int, Slots] = {}
    hidden: dict[int, list[int]] = {}
    hiding = set()
    regions: dict[Hashable, list[int]] = {}
    openers: dict[Hashable, list[int]] = {}
    for task, node in enumerate(graph.nodes):
        kept = [(slot.tensor, slot.name) for slot in saved_slots(node)]
        region = region_of(node)
        if region is not None:
            regions.setdefault(region, []).append(task)
            for each in regions_around(node):
                openers.setdefault(each, []).append(task)
            kept += [(tensor, REGION) for tensor in (*region_inputs(region), *cached_results(region))]
            kept += [(tensor, RANDOM_STATE) for tensor in random_states(region)]
        for attribute, value in attributes_of(node).items():
            kept += [(tensor, ON_CTX + attribute) for tensor in tensors_of(value)]
        if task in leaves:
            kept.append((leaf_of(node), LEAF))
        for tensor, name in kept:
            if (seen := look(tensor)) is not None:
                saved[seen.address] = (*saved.get(seen.address, ()), (task, name))
        if hides_saved(node) or packed_by_user(saved_variables(node)):
            hiding.add(task)
        operation = graph.tasks[task].operation
        if hides_saved(node) and isinstance(operation, Operation):
            for address in written.get(operation, ()):
                hidden.setdefault(address, []).append(task)
    by_task = {task: tasks for tasks in regions.values() for task in tasks}
    return SavedBlocks(saved, hidden, hiding, by_task, list(openers.values()))


class Seen(NamedTuple):
    """A tensor at a moment, as numbers only, which do not keep it alive.

    `identity` is the address of its TensorImpl, `address` that of its storage's data; both may be reused later. For a
    COO tensor the address is that of its values, and `stored` is its size in bytes. For a DTensor (`wraps`) everything
    except the identity describes this rank's part.
    """

    identity: int
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    is_view: bool
    stored: int = -1
    wraps: bool = False

    @property
    def layout(self) -> TensorLayout:
        if self.stored >= 0:
            return sparse(self.shape, self.stored)
        nbytes = self.itemsize
        for size in self.shape:
            nbytes *= size
        shape, strides = tuple(self.shape), tuple(self.strides)
        return TensorLayout(shape, strides, is_dense(shape, strides), nbytes, wrapped=self.wraps)


def look(tensor: Tensor | None) -> Seen | None:
    """Return the tensor as numbers; None for one without a storage (compressed sparse, nested, fake, or a wrapper).

    This does not call `untyped_storage()`: it creates a Python object that holds the storage from then on. The engine
    adds in place only to storages with one reference (input_buffer.cpp, can_accumulate_inplace), so it would copy.
    """
    if tensor is None or tensor.is_nested or tensor.layout not in (torch.strided, torch.sparse_coo) or is_fake(tensor):
        return None
    if tensor.layout is torch.sparse_coo:
        values = look(stored_values(tensor))
        return values and values._replace(
            identity=identity_of(tensor), shape=tensor.shape, strides=(), stored=stored_bytes(tensor)
        )
    itemsize = tensor.element_size()
    local = local_of(tensor)
    address = address_below(local)
    if address is None:
        return None
    wraps = local is not tensor
    return Seen(identity_of(tensor), address, local.shape, local.stride(), itemsize, is_view(tensor), wraps=wraps)


@dataclass(slots=True)
class Followed:
    """A storage that is followed until it is freed."""

    address: int
    nbytes: int
    reference: FollowedStorage
    gone: bool = False


class TaskMoment(IntEnum):
    """A moment in a task's turn: it is chosen; the gradients in its lists are summed; its hooks have run; it has run.

    One more is the end of the last turn. Allocations between APART and BACK do not belong to the backward and do not
    count.
    """

    STARTED = 0
    ENDED = 1
    BEGUN = 2
    SUMMED = 3
    OVER = 4
    APART = 5
    BACK = 6


class Visit(NamedTuple):
    """One task's turn: its inputs, its outputs, and for a leaf the .grad afterwards.

    `opaque` is set if one of these is a tensor without a storage.
    """

    task: int
    inputs: tuple[Seen | None, ...]
    outputs: tuple[Seen | None, ...]
    grad: Seen | None
    opaque: bool


class MemoryWatch:
    """Observer of a backward that records each task's inputs and outputs, and marks the moments of its turn.

    PyTorch's engine reports two of these moments, `start` and `end`, possibly in several threads; the direct engine
    reports all.

    Args:
        graph: the graph.
        allocator: the recorder in which marks are placed.
        kept: by task, the storages to follow that its node keeps, if the allocator does not report their free.

    Attributes:
        visits: the tasks' turns, in the order in which they ended.
        marks: for each mark of the allocator in order, the task and the moment in its turn.
        spans_apart: the pairs of marks, by number, around memory that is not the backward's.
        freed: by mark, the followed storages freed before the next mark, each with the mark at the end of a task that
            kept it.
    """

    def __init__(
        self,
        graph: Graph,
        allocator: Marks,
        kept: Mapping[int, Sequence[Followed]] = MappingProxyType({}),
    ) -> None:
        self._graph = graph
        self._allocator = allocator
        self._inputs: dict[int, tuple[tuple[Seen | None, ...], bool]] = {}
        self._lock = RLock()
        self._kept = kept
        self._ended: list[tuple[int, int, int]] = []  # tasks that may still hold saved tensors, with marks and threads
        self.freed: dict[int, list[tuple[Followed, int]]] = {}
        self.visits: list[Visit] = []
        self.marks: list[tuple[int, TaskMoment]] = []
        self.spans_apart: list[tuple[int, int]] = []

    def begin(self, task_id: int) -> None:
        """Begin a task's turn: it was chosen, and all memory from here on is its own."""
        self._mark(task_id, TaskMoment.BEGUN)
        self._has_let_go()

    def summed(self, task_id: int) -> None:
        """Record that the gradients in its lists are summed; its hooks are next."""
        self._mark(task_id, TaskMoment.SUMMED)

    def start(self, task_id: int, gradients: Sequence[Tensor | None]) -> None:
        """Record that the task is about to run on these gradients, after the user's hooks."""
        self._inputs[task_id] = self._look(gradients)
        self._mark(task_id, TaskMoment.STARTED)
        self._has_let_go()

    def end(self, task_id: int, outputs: Sequence[Tensor | None]) -> None:
        """Record the outputs of a task after hooks and PyTorch's checks; its saved tensors are not yet released."""
        inputs, opaque = self._inputs.pop(task_id)
        seen, also_opaque = self._look(outputs)
        grad = None
        if self._graph.tasks[task_id].is_leaf:
            (grad,), _ = self._look([leaf_of(self._graph.nodes[task_id]).grad])
        with self._lock:
            self._ended.append((task_id, self._mark(task_id, TaskMoment.ENDED), get_ident()))
            self.visits.append(Visit(task_id, inputs, seen, grad, opaque or also_opaque))

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Exclude the memory allocated inside this context: it is not the backward's."""
        first = self._mark(-1, TaskMoment.APART)
        try:
            yield
        finally:
            self.spans_apart.append((first, self._mark(-1, TaskMoment.BACK)))

    def over(self) -> None:
        """End the last task's turn."""
        self._mark(-1, TaskMoment.OVER)

    def look_for_freed(self) -> None:
        """Record which of the followed storages were freed since the last mark."""
        for task_id, mark, _ in self._ended:
            for followed in self._kept.get(task_id, ()):
                if not followed.gone and not followed.reference.alive:
                    followed.gone = True
                    self.freed.setdefault(len(self.marks) - 1, []).append((followed, mark))

    def _has_let_go(self) -> None:
        """Record that tasks have released their saved tensors: certain once their thread begins another task."""
        thread = get_ident()
        with self._lock:
            self._ended = [each for each in self._ended if each[2] != thread]

    def _look(self, tensors: Sequence[Tensor | None]) -> tuple[tuple[Seen | None, ...], bool]:
        with unobserved():
            seen = tuple([look(tensor) for tensor in tensors])
        opaque = any(each is None and tensor is not None for each, tensor in zip(seen, tensors, strict=True))
        return seen, opaque

    def _mark(self, task_id: int, moment: TaskMoment) -> int:
        with self._lock:
            self.look_for_freed()
            self.marks.append((task_id, moment))
            self._allocator.mark()
            return len(self.marks) - 1
