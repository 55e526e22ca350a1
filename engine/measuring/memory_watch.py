"""What is looked at while a backward's memory is measured: the tensors that go into each task and come out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from threading import RLock, get_ident
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from ...inspector.graph.graph import Graph
from ...inspector.torch_internals.modes import unobserved
from ...inspector.torch_internals.nodes import leaf_of
from ...inspector.torch_internals.tensors import (
    FollowedStorage,
    address_below,
    identity_of,
    is_fake,
    is_view,
    local_of,
    stored_bytes,
    stored_values,
)
from ..memory.layouts import TensorLayout, is_dense, sparse
from .allocator import Marks


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
