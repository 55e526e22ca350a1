"""The undo history: for each task that ran, its inputs, `.grad`, and buffers that recomputation modifies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol
from weakref import ref

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from ...inspector.graph.graph import Edge, Graph
from ...inspector.text.sizes_and_counts import bytes_of
from ...inspector.torch_private.checkpoints import is_recomputed, region_code
from ...inspector.torch_private.random_states import RandomStates
from ...inspector.torch_private.tensors import SPARSE, equal_elements, set_version, storage_of, stored_bytes, version_of
from ...inspector.torch_private.thread_state import unobserved
from ...inspector.validation import expect_number
from .input_buffer import InputBuffer, Waiting
from .undo_python_state import HookState, tensors_below


class RecomputedBuffers:
    """Buffers, and tensors to which code refers, before and after a task that recomputes checkpointed regions.

    PyTorch recomputes a region once per backward. After an undo, a region is recomputed again if the task that first
    triggered it was not undone. It then reads the values of the first time, and its writes are undone immediately.

    Known limitations: a task may recompute an outer region again and a nested region for the first time; then the
    nested region's writes are also undone. Counters in Python keep the values of the forward.

    Args:
        regions: the regions that the task may recompute.
        first: by region, the values at its first recomputation, unless that was undone.
        number: the id of the backward for checkpoints.
    """

    def __init__(
        self, regions: Sequence[Hashable], first: MutableMapping[Hashable, RecomputedBuffers], number: int
    ) -> None:
        self._regions = list(regions)
        self._first = first
        self._number = number
        with unobserved():
            self._noted = [
                _Noted(names, name, tensor, tensor.detach().clone(), version_of(tensor))
                for names, name, tensor in tensors_below(chain.from_iterable(map(region_code, regions)))
            ]
            self._again = [first[region] for region in regions if region in first]
            for each in self._again:
                each._put_back()

    def end(self) -> None:
        """Record the values after the task has run."""
        computed = [region for region in self._regions if is_recomputed(region, self._number)]
        self._regions.clear()
        with unobserved():
            if self._again:
                self._put_back()
                self._again.clear()
                self._noted.clear()
                return
            self._noted = [each for each in self._noted if not each.is_there()]
            for each in self._noted:
                each.leave()
        for region in computed:
            self._first[region] = self

    def undo(self) -> None:
        """Restore the values from before the task, except where something else has written since."""
        for region in [region for region, each in self._first.items() if each is self]:
            del self._first[region]
        with unobserved():
            for each in self._noted:
                if each.left is None or each.left.is_there():
                    each.put_back()

    def _put_back(self) -> None:
        for each in self._noted:
            each.put_back()


@dataclass(slots=True)
class _Noted:
    """A named tensor, with its values before and after the task."""

    names: MutableMapping[str, Tensor | None] | None
    name: str
    tensor: Tensor
    copy: Tensor
    version: int
    left: _Noted | None = None

    def is_there(self) -> bool:
        now = self._now()
        return now is self.tensor and now.shape == self.copy.shape and _same(now, self.copy)

    def leave(self) -> None:
        now = self._now()
        if now is not None:
            self.left = _Noted(self.names, self.name, now, now.detach().clone(), version_of(now))

    def put_back(self) -> None:
        if self.names is not None and self._now() is not self.tensor:
            self.names[self.name] = self.tensor
        if not _same(self.tensor, self.copy):
            self.tensor.detach().copy_(self.copy)
            set_version(self.tensor, self.version)  # nodes that saved it before must not see a modification

    def _now(self) -> Tensor | None:
        return self.tensor if self.names is None else self.names.get(self.name)


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, with NaN equal to NaN, so that statistics that became NaN are restored."""
    return torch.equal(one, other) or bool(equal_elements(one, other).all())


BUDGET_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    """Gradients in the buffer of a waiting task that were replaced by hand.

    Attributes:
        position: the number of tasks that had run.
        task: the id of the task.
        before, after: its gradients, one per input number, of the shapes in `Task.inputs`.
        waited: all gradients that waited before, of which `before` are the sums.
    """

    position: int
    task: int
    before: tuple[Tensor | None, ...]
    after: tuple[Tensor | None, ...]
    waited: Waiting


class Referenced:
    """Tensors held by reference, which shows in-place modifications. The reference makes later sums out of place."""

    __slots__ = ("_versions", "tensors")

    def __init__(self, tensors: Iterable[Tensor | None]) -> None:
        self.tensors = tuple(tensors)
        self._versions = tuple(map(_version, self.tensors))

    @property
    def intact(self) -> bool:
        return self._versions == tuple(map(_version, self.tensors))


class Waited(Referenced):
    """The gradients that waited in an input buffer."""

    __slots__ = ("_counts",)

    def __init__(self, waiting: Waiting) -> None:
        super().__init__(chain.from_iterable(waiting))
        self._counts = tuple(map(len, waiting))

    @property
    def waiting(self) -> Waiting:
        tensors = iter(self.tensors)
        return tuple(tuple(tensor for tensor in islice(tensors, count) if tensor is not None) for count in self._counts)


def _version(tensor: Tensor | None) -> int:
    return -1 if tensor is None else version_of(tensor)


class HasGrad(Protocol):
    """A leaf, or another tensor that retains its gradient."""

    grad: Tensor | None


@dataclass(slots=True)
class _Grad:
    """The .grad of a tensor before a task. `copy` has its values if the task adds to it in place."""

    tensor: HasGrad
    grad: Tensor | None
    copy: Tensor | None
    _left: TensorWeakRef | None = None
    _left_version: int = -1

    @classmethod
    def of(cls, tensor: HasGrad) -> _Grad:
        grad = tensor.grad
        in_place = grad is not None and not torch.is_grad_enabled()
        return cls(tensor, grad, grad.detach().clone() if in_place and grad is not None else None)

    def leave(self) -> None:
        """Record the .grad that the task left, to notice later changes by others."""
        grad = self.tensor.grad
        self._left = None if grad is None else TensorWeakRef(grad)
        self._left_version = _version(grad)

    @property
    def changed_since(self) -> bool:
        """True if something else has changed the .grad since; an undo would lose that."""
        grad = self.tensor.grad
        if grad is None:
            return False
        return self._left is None or self._left() is not grad or self._left_version != _version(grad)

    def after(self) -> Tensor | None:
        """Return the current .grad. After `put_back` nothing changes it."""
        grad = self.tensor.grad
        return grad.detach().clone() if grad is not None and grad is self.grad else grad

    def put_back(self) -> None:
        grad, copy = self.grad, self.copy
        if grad is not None and copy is not None:
            with torch.no_grad():
                if grad.layout is torch.strided:
                    grad.copy_(copy)
                else:
                    grad = copy.clone()
        if self.tensor.grad is not grad:  # PyTorch refuses to assign the strided gradient of a CSR leaf even to it
            self.tensor.grad = grad


@dataclass(slots=True)
class Ran:
    """The undo record of one task that ran.

    Attributes:
        task: its id.
        by_hand: whether it was chosen by hand.
        callbacks: the number of callbacks queued for the end of the backward.
        gradients: its input buffer before hooks; None if it was dropped.
        edges, sums, counts: the buffers to which it added, with the first gradient and the number of gradients before.
        grads: the .grad of its leaf, and of tensors with `retain_grad`.
        random: the states of the random generators, if it drew from them.
        packed: whether `saved_tensors_hooks` packed its saved tensors: checkpoints recompute once per backward.
        kept: the Python state that its hooks or its Function changed.
        recomputed: the buffers that its recomputed regions modified.
        version, values: those of its leaf; values only if hooks might change them unnoticed.
    """

    task: int
    by_hand: bool
    callbacks: int
    gradients: Waited | None
    edges: list[Edge] = field(default_factory=list)
    found: list[Tensor | None] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sums: Referenced | None = None
    grads: list[_Grad] = field(default_factory=list)
    random: RandomStates | None = None
    packed: bool = False
    kept: HookState | None = None
    recomputed: RecomputedBuffers | None = None
    version: int = -1
    values: Tensor | None = None

    def undo_state(self) -> None:
        """Restore the state besides gradients that its code and checkpointed regions changed."""
        if self.recomputed is not None:
            self.recomputed.undo()
        if self.kept is not None:
            self.kept.undo()

    def note(self, edge: Edge, buffer: InputBuffer) -> None:
        """Record a buffer before the task adds to it."""
        self.edges.append(edge)
        self.found.append(buffer.gradients[edge.input])
        self.counts.append(buffer.count(edge.input))


class History:
    """The undo history of a session: tasks are undone one by one, last first.

    Gradients are kept by reference, up to a budget. Beyond it the oldest are dropped, and an undo to that point
    recomputes them from the start of the history. Saved tensors are kept by not freeing them, so they never exceed the
    forward's. An existing .grad is copied, because PyTorch adds to it in place.

    Args:
        graph: the graph that is run.
        reach: the number of tasks that had run when it began.
        waiting, missing: the input buffers at that time, and the number of gradients that each task waits for.
        edits: the active edits made before.
        branch_bytes: returns the bytes of gradients kept with other branches.
        budget_bytes: the budget for gradients.
        keeps_graph: whether nodes keep their saved tensors in any case (`retain_graph`).

    Attributes:
        reach: the first position to which an undo is possible.
        ran: the records of tasks that ran since, in order.
        edits: the active edits, in order.
        retaining: by task, the tensors that its node created, on which `retain_grad` may have been called.
    """

    def __init__(
        self,
        graph: Graph,
        reach: int,
        waiting: Mapping[int, Waiting],
        missing: Sequence[int],
        edits: Sequence[Edited],
        branch_bytes: Callable[[], int],
        budget_bytes: int,
        keeps_graph: bool,
    ) -> None:
        self.reach = reach
        self.budget_bytes = budget_bytes
        self.ran: list[Ran] = []
        self.edits = list(edits)
        self.first_waiting = {task: Waited(each) for task, each in waiting.items()}
        self.first_missing = tuple(missing)
        self._graph = graph
        self._branch_bytes = branch_bytes
        self._keeps_graph = keeps_graph
        self._storages: dict[int, list[int]] = {}  # by address: bytes, and the number of references here
        self._held_bytes = 0
        self._copied_bytes = 0
        self._saved: _SavedBytes | None = None
        self._dropped = 0  # the number of records whose gradients were dropped
        self.retaining: dict[int, list[ref[Tensor]]] = {}

    def __repr__(self) -> str:
        return f"<History of {len(self.ran)} tasks, {self.gradient_bytes:,} bytes of gradients>"

    @property
    def gradient_bytes(self) -> int:
        """The bytes of gradients that it holds, including other branches; some would be alive anyway."""
        return self._held_bytes + self._copied_bytes + self._branch_bytes()

    @property
    def saved_bytes(self) -> int:
        """The bytes of saved tensors that a backward would have freed by now."""
        if self._keeps_graph:
            return 0
        if self._saved is None:  # created on first access, because it is rarely needed
            self._saved = _SavedBytes(self._graph)
            for entry in self.ran:
                self._saved.run(entry.task)
        return self._saved.held_bytes

    @property
    def nbytes(self) -> int:
        """All bytes that undo needs."""
        return self.gradient_bytes + self.saved_bytes

    def begin(self, entry: Ran, leaf: HasGrad | None) -> None:
        """Copy the state that a task may change, before it runs."""
        if leaf is not None:
            entry.grads.append(_Grad.of(leaf))
        for each in self.retaining.get(entry.task, ()):
            tensor = each()
            if tensor is not None and tensor.retains_grad:
                entry.grads.append(_Grad.of(tensor))

    def end(self, entry: Ran) -> None:
        """Add the record of a task that has run, with its gradients in the next tasks' buffers."""
        entry.sums = Referenced(entry.found)
        entry.found = []
        self.ran.append(entry)
        if self._saved is not None:
            self._saved.run(entry.task)
        self._copied_bytes += _copied(entry)
        self._count(entry, 1)
        # The oldest gradients are dropped first, because an undo needs the newest ones first.
        while self._held_bytes > self.budget_bytes and self._dropped < len(self.ran):
            oldest = self.ran[self._dropped]
            self._count(oldest, -1)
            oldest.gradients = oldest.sums = None
            self._dropped += 1

    def take_last(self) -> Ran:
        """Remove and return the record of the last task, to undo it."""
        entry = self.ran.pop()
        if self._saved is not None:
            self._saved.take_back(entry.task)
        self._copied_bytes -= _copied(entry)
        if self._dropped > len(self.ran):
            self._dropped = len(self.ran)
        else:
            self._count(entry, -1)
        return entry

    def _count(self, entry: Ran, by: int) -> None:
        """Count the storages of a record's gradients once more (1) or once less (-1)."""
        # Records share storages: the output of one task is an input of the next, so each storage counts once.
        assert entry.gradients is not None and entry.sums is not None
        for tensor in (*entry.gradients.tensors, *entry.sums.tensors):
            storage = None if tensor is None else storage_of(tensor)
            if storage is None:
                continue
            counted = self._storages.setdefault(storage.address, [storage.nbytes, 0])
            if not counted[1]:
                self._held_bytes += counted[0]
            counted[1] += by
            if not counted[1]:
                self._held_bytes -= counted[0]
                del self._storages[storage.address]

    def clear(self) -> None:
        """Clear the records, but not the edits."""
        self.ran.clear()
        self._saved = None
        self._storages.clear()
        self._held_bytes = self._copied_bytes = self._dropped = 0


def expect_budget(budget_bytes: int | str, name: str) -> int:
    """Return the budget in bytes, from a number or a size such as "2GiB"."""
    wanted = "a number of bytes, 0 or more"
    if isinstance(budget_bytes, str):
        return bytes_of(budget_bytes, name, wanted)
    expect_number(budget_bytes, int | float, name, wanted)
    if not budget_bytes >= 0:
        raise ValueError(f"{name} must be {wanted}, got {budget_bytes}")
    return budget_bytes


def _copied(entry: Ran) -> int:
    return sum(nbytes_of(each.copy) for each in entry.grads if each.copy is not None)


def nbytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements; for a sparse tensor, of its values and indices."""
    return stored_bytes(tensor) if tensor.layout in SPARSE else tensor.nbytes


class _SavedBytes:
    """The bytes of saved storages that only nodes of tasks that have run keep alive."""

    def __init__(self, graph: Graph) -> None:
        self.held_bytes = 0
        self._nbytes: dict[int, int] = {}
        self._left: dict[int, int] = {}  # by storage: the number of keepers that have not run
        self._storages: dict[int, set[int]] = {}
        for saved in graph.saved:
            if saved.storage is None or saved.held or saved.storage_bytes is None:
                continue
            self._nbytes[saved.storage] = saved.storage_bytes
            kept = self._storages.setdefault(saved.task, set())
            if saved.storage not in kept:
                kept.add(saved.storage)
                self._left[saved.storage] = self._left.get(saved.storage, 0) + 1

    def run(self, task: int) -> None:
        for storage in self._storages.get(task, ()):
            self._left[storage] -= 1
            if not self._left[storage]:
                self.held_bytes += self._nbytes[storage]

    def take_back(self, task: int) -> None:
        for storage in self._storages.get(task, ()):
            if not self._left[storage]:
                self.held_bytes -= self._nbytes[storage]
            self._left[storage] += 1
