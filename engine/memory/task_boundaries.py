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

from ...inspector.graph.capture_records import Operation
from ...inspector.graph.graph import Graph
from ...inspector.graph.node_metadata import tensors_of
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
    """What nodes keep.

    Attributes:
        saved: by address the (task, slot) pairs that keep it.
        hidden: by address the tasks whose nodes hide what they keep (CopySlices), and that had this to work on.
        hiding: the tasks whose nodes hide what they keep, or had it packed by `saved_tensors_hooks`.
        regions: by task the tasks of its checkpointed region, itself included.
        openers: of each such region the tasks of which any has it computed again: its own, and those of regions inside.
    """

    saved: Mapping[int, Slots]
    hidden: Mapping[int, Collection[int]]
    hiding: Collection[int]
    regions: Mapping[int, Collection[int]]
    openers: Collection[Collection[int]]


def kept_by(graph: Graph, written: Mapping[Operation, Collection[int]], leaves: Collection[int] = ()) -> SavedBlocks:
    """Looks at all nodes.

    Args:
        graph: the graph.
        written: by operation in place the addresses of its arguments.
        leaves: the tasks of leaves that nothing but the graph holds.
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
    """A tensor at a moment, as numbers alone: looking keeps nothing alive.

    `identity` is the tensor's (its TensorImpl), `address` that of its storage's bytes; both may be another's later. Of
    a COO tensor the address is that of its values, and `stored` what it stores in bytes. Of a DTensor (`wraps`) all but
    the identity is that of its own rank's part.
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
    """The tensor as numbers; None for one without bytes of its own (compressed sparse, nested, fake, or a wrapper).

    Its storage is not asked for: the Python object of one that is made so holds it from then on, and the engine, which
    adds in place only to what nobody else holds, would make copies.
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
    """A storage that is followed until it is gone."""

    address: int
    nbytes: int
    reference: FollowedStorage
    gone: bool = False


class TaskMoment(IntEnum):
    """A moment in a task's turn: it is picked; the gradients in its lists are summed; its hooks have run; it has.

    And the one after the last turn; and those around what is not the backward's: what is allocated from APART to BACK
    does not count.
    """

    STARTED = 0
    ENDED = 1
    BEGUN = 2
    SUMMED = 3
    OVER = 4
    APART = 5
    BACK = 6


class Visit(NamedTuple):
    """One task's turn: what it was given, what it gave, and of a leaf the .grad afterwards.

    `opaque` says that one of these was a tensor which has no bytes of its own to look at.
    """

    task: int
    inputs: tuple[Seen | None, ...]
    outputs: tuple[Seen | None, ...]
    grad: Seen | None
    opaque: bool


class MemoryWatch:
    """Notes what each task gets and gives, and marks these moments among the allocator's events.

    PyTorch's engine tells of two of them, `start` and `end`, perhaps in several threads; the direct one of all.

    Args:
        graph: the graph.
        allocator: takes the marks.
        kept: by task the storages to follow that its node keeps, for an allocator which does not tell of their end.

    Attributes:
        visits: in the order in which the tasks ended.
        marks: for each mark of the allocator, in order, the task and what moment this was in its turn.
        spans_apart: the marks, by number, around what is not the backward's.
        freed: by mark the followed storages that were gone before the next one, each with the mark of the end of a task
            that kept it.
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
        self._ended: list[tuple[int, int, int]] = []  # tasks that may not have let go, their marks and threads
        self.freed: dict[int, list[tuple[Followed, int]]] = {}
        self.visits: list[Visit] = []
        self.marks: list[tuple[int, TaskMoment]] = []
        self.spans_apart: list[tuple[int, int]] = []

    def begin(self, task_id: int) -> None:
        """The task was picked; from here on all is its own."""
        self._mark(task_id, TaskMoment.BEGUN)
        self._has_let_go()

    def summed(self, task_id: int) -> None:
        """What was in its lists is summed; its hooks are next."""
        self._mark(task_id, TaskMoment.SUMMED)

    def start(self, task_id: int, gradients: Sequence[Tensor | None]) -> None:
        """The task is about to run on these, after the user's hooks."""
        self._inputs[task_id] = self._look(gradients)
        self._mark(task_id, TaskMoment.STARTED)
        self._has_let_go()

    def end(self, task_id: int, outputs: Sequence[Tensor | None]) -> None:
        """The task gave these, after the user's hooks and PyTorch's checks; it has not yet let go of what it saved."""
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
        """What is allocated meanwhile is not the backward's."""
        first = self._mark(-1, TaskMoment.APART)
        try:
            yield
        finally:
            self.spans_apart.append((first, self._mark(-1, TaskMoment.BACK)))

    def over(self) -> None:
        """The last task's turn is over."""
        self._mark(-1, TaskMoment.OVER)

    def look_for_freed(self) -> None:
        """Notes which of the followed storages are gone since the last mark."""
        for task_id, mark, _ in self._ended:
            for followed in self._kept.get(task_id, ()):
                if not followed.gone and not followed.reference.alive:
                    followed.gone = True
                    self.freed.setdefault(len(self.marks) - 1, []).append((followed, mark))

    def _has_let_go(self) -> None:
        """A task lets go after its end, and has when its thread begins another one."""
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
