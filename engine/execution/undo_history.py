"""What undo keeps for each task that ran: its inputs, `.grad`, and buffers that checkpoints recompute."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
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
from ...inspector.torch_private.random_states import RandomStates, random_states
from ...inspector.torch_private.tensors import SPARSE, equal_elements, set_version, storage_of, stored_bytes, version_of
from ...inspector.torch_private.thread_state import unobserved
from ...inspector.validation import expect_number
from .input_buffer import InputBuffer, Waiting
from .undo_python_state import HookState, tensors_below


class RecomputedBuffers:
    """Buffers, and tensors that the code refers to, before a task that has regions computed again, and after it.

    PyTorch computes a region once in a backward. After going back it is computed once more if the task that had it
    computed was not taken back; then it finds what it found the first time, and what it writes is taken back at once.

    Known limitations. A task may have an outer region computed once more, and one inside of it for the first time: then
    what the inner one writes is taken back, too. Counters in Python stay as the forward left them.

    Args:
        regions: those that the task may have computed again.
        first: by region what it found when it was computed first, as far as that was not taken back.
        number: that of the backward, in a checkpoint's eyes.
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
        """The task has run."""
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
        """Puts back what there was before the task, but where somebody else has written since."""
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
    """A tensor under its name, and what it held then; and the same after the task."""

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
            set_version(self.tensor, self.version)  # who saved it before is to find it as it was

    def _now(self) -> Tensor | None:
        return self.tensor if self.names is None else self.names.get(self.name)


def _same(one: Tensor, other: Tensor) -> bool:
    """NaN is the same as NaN: statistics that have become so are put back, too."""
    return torch.equal(one, other) or bool(equal_elements(one, other).all())


BUDGET_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Edited:
    """Gradients in the buffer of a waiting task that were replaced by hand.

    Attributes:
        position: how many tasks had run.
        task: the id of the task.
        before, after: its gradients, one per input number, of the shapes in `Task.inputs`.
        waited: all that waited before, of which `before` are the sums.
    """

    position: int
    task: int
    before: tuple[Tensor | None, ...]
    after: tuple[Tensor | None, ...]
    waited: Waiting


class Referenced:
    """Tensors by reference, and whether somebody has modified one in place since."""

    __slots__ = ("_versions", "tensors")

    def __init__(self, tensors: Iterable[Tensor | None]) -> None:
        self.tensors = tuple(tensors)
        self._versions = tuple(map(_version, self.tensors))

    @property
    def intact(self) -> bool:
        return self._versions == tuple(map(_version, self.tensors))


class Waited(Referenced):
    """What waited in an input buffer."""

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
    """A leaf, or another tensor whose gradient is kept."""

    grad: Tensor | None


@dataclass(slots=True)
class _Grad:
    """The .grad of a tensor as it was before a task. `copy` has its values where they were going to be added to."""

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
        """The task has run: what it left is its own as long as nobody changes it."""
        grad = self.tensor.grad
        self._left = None if grad is None else TensorWeakRef(grad)
        self._left_version = _version(grad)

    @property
    def is_anothers(self) -> bool:
        """Whether something else has changed the .grad since: taken back, that would be lost."""
        grad = self.tensor.grad
        if grad is None:
            return False
        return self._left is None or self._left() is not grad or self._left_version != _version(grad)

    def after(self) -> Tensor | None:
        """What it is now. Nobody changes it any more, once this has been put back."""
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
        self.tensor.grad = grad


@dataclass(slots=True)
class Ran:
    """One task that ran, and what it found.

    Attributes:
        task: its id.
        by_hand: whether it was chosen by hand.
        callbacks: how many callbacks for the end of the backward were waiting.
        gradients: its input buffer before hooks; None where it was let go.
        edges, sums, counts: the buffers that it added to, the first gradient that had been there, and how many had.
        grads: the .grad of its leaf, and of what it had to `retain_grad`.
        random: the states of the random generators, where it drew from them.
        packed: whether `saved_tensors_hooks` give what it saved: checkpoints recompute once in each backward.
        kept: what its hooks, or its Function, changed of what they keep in Python.
        recomputed: the buffers that checkpointed regions wrote, which it had computed again.
        version, values: of its leaf; the values where hooks might change them unseen.
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
        """Puts back what its code and that of checkpointed regions changed, besides gradients."""
        if self.recomputed is not None:
            self.recomputed.undo()
        if self.kept is not None:
            self.kept.undo()

    def note(self, edge: Edge, buffer: InputBuffer) -> None:
        """It is going to add to this buffer."""
        self.edges.append(edge)
        self.found.append(buffer.gradients[edge.input])
        self.counts.append(buffer.count(edge.input))


class KeepsGradients(Protocol):
    """What keeps gradients besides."""

    @property
    def gradient_bytes(self) -> int: ...


class History:
    """How a session can go back: tasks taken back one by one, from the last on.

    Gradients are kept by reference, up to a budget; beyond it the oldest are let go, and going back there computes them
    again from where the history begins. What nodes saved is kept by not freeing it: it never is more than the forward
    left. A .grad that was there before is copied, since PyTorch adds to it in place.

    Args:
        graph: the graph that is run.
        reach: how many tasks had run when it began.
        waiting, missing: the input buffers at that time, and how many gradients each task waits for.
        edits: those in force, which were made before.
        branches: what else is kept.
        budget_bytes: for gradients.
        keeps_graph: whether nodes keep what they saved in any case (`retain_graph`).

    Attributes:
        reach: the first position to which one can go back.
        ran: what ran since, in order.
        edits: the edits that are in force, in order.
        retaining: by task the tensors which its node made, and which may have been told to `retain_grad`.
    """

    def __init__(
        self,
        graph: Graph,
        reach: int,
        waiting: Mapping[int, Waiting],
        missing: Sequence[int],
        edits: Sequence[Edited],
        branches: KeepsGradients,
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
        self._branches = branches
        self._keeps_graph = keeps_graph
        self._storages: dict[int, list[int]] = {}  # by address: bytes, and how many times it is kept
        self._held_bytes = 0
        self._copied_bytes = 0
        self._saved: _SavedBytes | None = None
        self._let_go = 0  # so many of `ran` have no gradients any more
        self.retaining: dict[int, list[ref[Tensor]]] = {}

    def __repr__(self) -> str:
        return f"<History of {len(self.ran)} tasks, {self.gradient_bytes:,} bytes of gradients>"

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients that it keeps alive, those of other branches included; some live anyway."""
        return self._held_bytes + self._copied_bytes + self._branches.gradient_bytes

    @property
    def saved_bytes(self) -> int:
        """Bytes of what nodes saved and a backward would have freed by now."""
        if self._keeps_graph:
            return 0
        if self._saved is None:  # many graphs are never asked
            self._saved = _SavedBytes(self._graph)
            for entry in self.ran:
                self._saved.run(entry.task)
        return self._saved.held_bytes

    @property
    def nbytes(self) -> int:
        """All bytes that going back takes."""
        return self.gradient_bytes + self.saved_bytes

    def begin(self, entry: Ran, leaf: HasGrad | None) -> None:
        """A task is about to run. What it may change is copied."""
        if leaf is not None:
            entry.grads.append(_Grad.of(leaf))
        for each in self.retaining.get(entry.task, ()):
            tensor = each()
            if tensor is not None and tensor.retains_grad:
                entry.grads.append(_Grad.of(tensor))

    def end(self, entry: Ran) -> None:
        """It has run, and its gradients are in the next tasks' buffers."""
        entry.sums = Referenced(entry.found)
        entry.found = []
        self.ran.append(entry)
        if self._saved is not None:
            self._saved.run(entry.task)
        self._copied_bytes += _copied(entry)
        assert entry.gradients is not None
        for tensor in (*entry.gradients.tensors, *entry.sums.tensors):
            self._count(tensor, 1)
        while self._held_bytes > self.budget_bytes and self._let_go < len(self.ran):
            self._release(self.ran[self._let_go])
            self._let_go += 1

    def take_last(self) -> Ran:
        """The last task that ran, which is to be taken back."""
        entry = self.ran.pop()
        if self._saved is not None:
            self._saved.take_back(entry.task)
        self._copied_bytes -= _copied(entry)
        if self._let_go > len(self.ran):
            self._let_go = len(self.ran)
        else:
            self._uncount(entry)
        return entry

    def take_edits(self, position: int) -> list[Edited]:
        """The edits that were made after this position, last first: they are not in force any more."""
        taken = []
        while self.edits and self.edits[-1].position > position:
            taken.append(self.edits.pop())
        return taken

    def edits_at(self, position: int) -> list[Edited]:
        """The edits in force that were made when so many tasks had run."""
        return [edit for edit in self.edits if edit.position == position]

    def clear(self) -> None:
        """Forgets what ran, but not the edits."""
        self.ran.clear()
        self._saved = None
        self._storages.clear()
        self._held_bytes = self._copied_bytes = self._let_go = 0

    def _release(self, entry: Ran) -> None:
        self._uncount(entry)
        entry.gradients = entry.sums = None

    def _uncount(self, entry: Ran) -> None:
        assert entry.gradients is not None and entry.sums is not None
        for tensor in (*entry.gradients.tensors, *entry.sums.tensors):
            self._count(tensor, -1)

    def _count(self, tensor: Tensor | None, by: int) -> None:
        storage = None if tensor is None else storage_of(tensor)
        if storage is None:
            return
        counted = self._storages.setdefault(storage.address, [storage.nbytes, 0])
        if not counted[1]:
            self._held_bytes += counted[0]
        counted[1] += by
        if not counted[1]:
            self._held_bytes -= counted[0]
            del self._storages[storage.address]


def expect_budget(budget_bytes: int | str, name: str) -> int:
    """How many bytes may be kept: a number, or a size such as "2GiB"."""
    wanted = "how many bytes may be kept, a number from 0 on"
    if isinstance(budget_bytes, str):
        return bytes_of(budget_bytes, name, wanted)
    expect_number(budget_bytes, int | float, name, wanted)
    if not budget_bytes >= 0:
        raise ValueError(f"{name} is {budget_bytes}; expected {wanted}")
    return budget_bytes


def _copied(entry: Ran) -> int:
    return sum(nbytes_of(each.copy) for each in entry.grads if each.copy is not None)


def nbytes_of(tensor: Tensor) -> int:
    """Bytes of its elements; of a sparse tensor those that are stored, and of their indices."""
    return stored_bytes(tensor) if tensor.layout in SPARSE else tensor.nbytes


class _SavedBytes:
    """How many bytes of saved storages the nodes of tasks that ran alone keep alive."""

    def __init__(self, graph: Graph) -> None:
        self.held_bytes = 0
        self._nbytes: dict[int, int] = {}
        self._left: dict[int, int] = {}  # by storage: how many of its keepers have not run
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


def drawn_since(before: RandomStates) -> bool:
    """Whether random numbers were drawn."""
    return not all(torch.equal(state, before[device]) for device, state in random_states(before).items())
