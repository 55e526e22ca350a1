"""Finds writes to saved tensors that do not increment a version counter, such as writes through `.data`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet, ref

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.optim import Optimizer

from ...inspector.capture.inplace_writes import note_write
from ...inspector.graph.node_metadata import operation_of
from ...inspector.graph.source_lines import Place, users_place
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.optimizer_steps import is_fused, parameters_of
from ...inspector.torch_private.saved_variables import SavedSlot, saved_slots
from ...inspector.torch_private.sequence_numbers import sequence_nr, youngest_first
from ...inspector.torch_private.tensors import (
    FollowedStorage,
    StorageBytes,
    View,
    computes_itself,
    equal_elements,
    local_of,
    on_storage,
    storage_of,
    version_of,
)
from ...inspector.torch_private.thread_state import unobserved
from .findings import Finding
from .follow_loop import BackwardGiven
from .pending_graphs import Forwards, at, roots_of
from .training_result import Training


@dataclass(slots=True)
class WrittenBytes:
    """The target of a write.

    Attributes:
        copy: a copy of the previous content, of the parameter or of its whole storage; None if there is no copy.
        parameter: the parameter that was copied; None if all bytes of the storage were copied in order.
        is_other: whether the parameter was switched to these bytes, without a write to them.
    """

    copy: Tensor | None
    parameter: ref[Tensor] | None = None
    is_other: bool = False

    def is_of(self, saved: Tensor) -> bool:
        """Return whether the write changed bytes of a saved tensor."""
        return not self.is_other or (self.parameter is not None and self.parameter() is saved)

    def is_as_before(self, saved: Tensor) -> bool:
        """Return whether a saved tensor still has its previous values."""
        if self.parameter is not None:
            parameter = self.parameter()
            return parameter is None or (self.copy is not None and torch.equal(self.copy, parameter))
        saved = local_of(saved)
        before = self._before(saved)
        return before is None or bool(equal_elements(before, saved).all())

    def off(self, saved: Tensor) -> float | None:
        """Return the largest difference from the previous values; None if unknown or for booleans."""
        now: Tensor | None = local_of(saved) if self.parameter is None else self.parameter()
        before = self._before(local_of(saved)) if self.parameter is None else self.copy
        if now is None or before is None or now.dtype is torch.bool:
            return None
        return float((now.detach() - before).abs().max())

    def _before(self, saved: Tensor) -> Tensor | None:
        return None if self.copy is None else on_storage(self.copy.untyped_storage(), View.of(saved))


@dataclass(slots=True, kw_only=True)
class SilentWords:
    """The phrases that describe a kind of write in a finding.

    Attributes:
        noun: the noun for the write.
        why: the reason why PyTorch does not detect it.
        instead: the way to make PyTorch detect it.
        unnamed: the noun for a target that is not a parameter.
    """

    noun: str
    why: str
    instead: str
    unnamed: str = "a parameter"


@dataclass(slots=True)
class SilentStep:
    """A write without a version, or several by one line.

    Attributes:
        who: the optimizer's step or the function that wrote.
        step: the step of the loop.
        number: the sequence number of the next node at that time.
        written: the targets, by the address of their bytes.
    """

    who: str
    place: Place | None
    step: int
    number: int
    written: dict[int, WrittenBytes]
    words: SilentWords


_MOST_ARRAYS = 32  # each array is copied at each forward, and a loop may keep every array it ever plotted
_MOST_COPIES = 2  # copies of the same bytes; bounds a loop whose graphs never run

_OF_DATA = SilentWords(
    noun="write",
    why="a write through .data does not increment the version",
    instead="under torch.no_grad(), without .data, PyTorch raises an error instead",
    unnamed="a tensor",
)
_OF_NUMPY = SilentWords(
    noun="write",
    why="writes by NumPy do not increment the version",
    instead="or pass NumPy a copy, .numpy().copy()",
    unnamed="a tensor",
)


class DataWrites:
    """Copies the previous content of each write through `.data` or NumPy while a graph waits for its backward.

    No call reports a write to a NumPy array. While an array is alive, its bytes are copied when a module's forward
    ends; bytes that differ in the backward were written since.

    Attributes:
        through_data: writes through `.data`, in order.
        shared: bytes shared with arrays, which may have been written since, in order.

    Known limitations: no mode intercepts `torch.from_numpy`, so tensors created from an array are not covered. Of more
    than 32 arrays alive, only the newest are checked.
    """

    def __init__(self, forwards: Forwards) -> None:
        self.through_data: list[SilentStep] = []
        self.shared: list[SilentStep] = []
        self.step = 0
        self._forwards = forwards
        self._thread = get_ident()
        self._is_paused = False
        self._followed: dict[
            int, FollowedStorage
        ] = {}  # kept so that no other storage reuses the address of a written one
        self._open_writes: dict[int, _OpenWrite] = {}  # by the tensor's id, until the call is over
        self._arrays: list[ref[Any]] = []

    @property
    def writes(self) -> list[SilentStep]:
        return [*self.through_data, *self.shared]

    def pause(self) -> None:
        """Pause while an optimizer steps; `SilentWrites` checks its writes."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    @property
    def _ignores_writes(self) -> bool:
        if self._is_paused or get_ident() != self._thread:
            return True
        return not self._forwards.unseen and not self._forwards.waiting()

    def begins(self, tensor: Tensor) -> None:
        if not self._ignores_writes and (copy := _bytes_of(tensor)) is not None:
            self._open_writes[id(tensor)] = _OpenWrite(copy, View.of(tensor), storage_of(tensor))

    def ends(self, what: str, place: Place | None, tensor: Tensor) -> None:
        opened = self._open_writes.pop(id(tensor), None)
        if opened is None or self._ignores_writes:
            return
        made = SilentStep(what, place, self.step, sequence_nr(), {}, _OF_DATA)
        if (opened.view, opened.storage) == (View.of(tensor), storage_of(tensor)):
            self._add(self.through_data, made, tensor, WrittenBytes(opened.copy))
        elif not computes_itself(tensor) and (opened.view.shape, opened.view.dtype) == (tensor.shape, tensor.dtype):
            before = on_storage(opened.copy.untyped_storage(), opened.view)
            self._add(self.through_data, made, tensor, WrittenBytes(before, ref(tensor), is_other=True))

    def is_shared(self, array: Any) -> None:
        if get_ident() == self._thread and isinstance(array.base, Tensor):
            self._arrays.append(ref(array))
            if len(self._arrays) > _MOST_ARRAYS:
                self._arrays = [each for each in self._arrays if each() is not None][-_MOST_ARRAYS:]

    def forward_ends(self) -> None:
        """Copy the bytes that arrays share with tensors, as the forward used them."""
        arrays = [each for kept in self._arrays if (each := kept()) is not None]
        self._arrays = [ref(each) for each in arrays]
        for each in arrays:
            copy = _bytes_of(each.base)
            if copy is not None:
                made = SilentStep("A NumPy array", None, self.step, sequence_nr(), {}, _OF_NUMPY)
                self._add(self.shared, made, each.base, WrittenBytes(copy))

    def _add(self, steps: list[SilentStep], made: SilentStep, tensor: Tensor, written: WrittenBytes) -> None:
        """Add a write. Writes by one line count as one, and the first of those without a graph between them is kept."""
        followed = FollowedStorage(local_of(tensor))
        address = followed.address
        if address in self._followed and not self._followed[address].alive:
            self._forget(address)
        same = [each for each in steps if address in each.written]
        if same and same[-1].number == made.number and not same[-1].written[address].is_other:
            return
        if len(same) >= _MOST_COPIES:
            del same[0].written[address]
        key = made.who, made.place, made.number
        into = next((each for each in steps if (each.who, each.place, each.number) == key), made)
        into.written[address] = written
        self._followed[address] = followed
        if into is made:
            steps.append(made)
        steps[:] = [each for each in steps if each.written]

    def _forget(self, address: int) -> None:
        for steps in (self.through_data, self.shared):
            for each in steps:
                each.written.pop(address, None)

    def forget_old(self) -> None:
        """Forget writes that no waiting graph precedes, and freed storages."""
        self._open_writes.clear()  # calls that raised or only read
        self._arrays = [each for each in self._arrays if each() is not None]
        if not self.through_data and not self.shared:
            return
        for address in [each for each, followed in self._followed.items() if not followed.alive]:
            del self._followed[address]
            self._forget(address)
        oldest = None if self._forwards.unseen else min((each.start for each in self._forwards.waiting()), default=None)
        for steps in (self.through_data, self.shared):
            if not self._forwards.unseen:
                steps[:] = [each for each in steps if oldest is not None and each.number > oldest]
            steps[:] = [each for each in steps if each.written]
        if not self.through_data and not self.shared:
            self._followed.clear()


class _OpenWrite(NamedTuple):
    """A tensor that a call may write to: a copy of its storage before the call, and the tensor's place in it."""

    copy: Tensor
    view: View
    storage: StorageBytes | None


def _bytes_of(tensor: Tensor) -> Tensor | None:
    """Return a copy of a tensor's whole storage; None if it has no storage."""
    with unobserved():
        try:
            storage = local_of(tensor).untyped_storage()
        except (NotImplementedError, RuntimeError, ValueError):
            return None
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).clone()


_MOST_STEPS = 16
_MOST_COPIED = 2  # steps with copies; bounds a loop whose graphs never run


@dataclass(slots=True)
class _Modified:
    """A saved tensor that was modified since."""

    node: Node
    number: int
    slot: SavedSlot
    by: SilentStep
    written: WrittenBytes


class SilentWrites:
    """Finds optimizer steps that modify saved tensors without a version.

    A step costs a check for waiting graphs. More is done only if a graph waits for its backward: parameters are copied
    if the optimizer's steps do not increment versions. A backward's graph is walked only if it was created before such
    a step.

    Known limitations: writes through `.data` by other calls, or through NumPy, are found only while a function mode is
    open (`data_writes`). Graphs created in another thread are not compared with this thread's steps. Checkpoints and
    `save_on_cpu` save copies, or nothing.
    """

    def __init__(self, training: Training, forwards: Forwards) -> None:
        self._training = training
        self._forwards = forwards
        self._versioned: WeakSet[Optimizer] = WeakSet()  # optimizers whose steps increment versions
        self._steps: list[SilentStep] = []
        self._before: list[tuple[Tensor, int, Tensor | None]] | None = None  # for the current step
        self.by_others = DataWrites(forwards)

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        self._before = None
        self.by_others.pause()
        waiting, unseen = self._forwards.waiting(), self._forwards.unseen
        if not waiting and not unseen:
            return
        given = [each for each in parameters_of(optimizer) if each.grad is not None]
        newest = max((each.number for each in self._steps), default=0)
        copied = optimizer not in self._versioned and any(each.end > newest for each in waiting)
        copies = [each.detach().clone() if copied else None for each in given]
        self._before = [(each, version_of(each), copy) for each, copy in zip(given, copies, strict=True)]

    def optimizer_ends(self, optimizer: Optimizer, step: int) -> None:
        before, self._before = self._before, None
        self.by_others.resume()
        if before is None:
            return
        title, place = f"{type(optimizer).__name__}.step(){' (fused)' if is_fused(optimizer) else ''}", users_place()
        written: dict[int, WrittenBytes] = {}
        for parameter, version, copy in before:
            now = version_of(parameter)
            if now > version:
                note_write(title, place, parameter, version, now)
            elif (storage := storage_of(parameter)) is not None:
                written[storage.address] = WrittenBytes(copy, ref(parameter))
        if len(written) < len(before):
            self._versioned.add(optimizer)
        if written:
            self._steps.append(SilentStep(title, place, step, sequence_nr(), written, _OF_A_STEP))
            self._forget_old()

    def _forget_old(self) -> None:
        """Forget steps that no waiting graph precedes."""
        if not self._steps:
            return
        oldest = min((each.start for each in self._forwards.waiting()), default=None)
        if not self._forwards.unseen:
            self._steps = [each for each in self._steps if oldest is not None and each.number > oldest]
        del self._steps[:-_MOST_STEPS]
        for each in self._steps[:-_MOST_COPIED]:
            for written in each.written.values():
                written.copy = None

    def backward_begins(self, given: BackwardGiven, step: int) -> None:
        self._forget_old()
        self.by_others.forget_old()
        if not self._steps and not self.by_others.writes:
            return
        found = self._modified(roots_of(given[0]), given)
        by_step: dict[int, list[_Modified]] = {}
        for each in found:
            by_step.setdefault(id(each.by), []).append(each)
        for modified in by_step.values():
            self._training.add(self._finding(modified, step))

    def backward_ends(self) -> None:
        self._forget_old()
        self.by_others.forget_old()

    def _modified(self, roots: Sequence[Node], given: BackwardGiven) -> list[_Modified]:
        """Return the modified saved tensors that this backward reads, those of the youngest node first."""
        steps = [
            *sorted([*self._steps, *self.by_others.through_data], key=lambda each: each.number),
            *self.by_others.shared,
        ]
        newest = max(each.number for each in steps)
        runs = needed_edges(roots, given[4] if len(given) > 4 else None)
        found: list[_Modified] = []
        for number, node in youngest_first(roots):
            if number >= newest or not runs(node):
                continue
            for slot in saved_slots(node):
                if slot.modified or not runs(node, _read_for(node, slot)):
                    continue
                storage = storage_of(slot.tensor)
                if storage is None:
                    continue
                since = ((by, by.written.get(storage.address)) for by in steps if by.number > number)
                for by, written in since:
                    if written is not None and written.is_of(slot.tensor) and not written.is_as_before(slot.tensor):
                        found.append(_Modified(node, number, slot, by, written))
                        break
        return found

    def _finding(self, modified: Sequence[_Modified], step: int) -> Finding:
        first = modified[0]
        by = first.by
        name = self._name_of(first)
        others = len({id(each.written) for each in modified}) - 1
        more = f" and {counted(others, 'other parameter')}" if others else ""
        when = "" if by.step == step else f" in step {by.step}"
        forward = self._forwards.forward_of(first.number)
        operation = operation_of(first.node)
        source = None if operation is None else operation.source
        line = f" ({source.short})" if source is not None else ""
        of = f" of {forward}" if forward is not None else ""
        earlier = "" if forward is None or forward.step == step else f" in step {forward.step}"
        return Finding(
            "silent write",
            step,
            f"{by.who}{at(by.place)} wrote {name or by.words.unnamed}{more}{when} after {first.node.name()}{line}{of}"
            f"{earlier} had saved it as {first.slot.name}; the backward{at(users_place())} uses the new values"
            f"{_how_far(modified)}, so its gradients do not match the forward, and PyTorch does not detect this: "
            f"{by.words.why}. What to do: run this backward before that {by.words.noun}, or compute its loss again "
            f"after it; {by.words.instead}.",
            module=None if name is None else name.rpartition(".")[0],
            tensor=name,
            at=at(by.place).removeprefix(" at ") or None,
            certain=all(each.written.copy is not None for each in modified),
        )

    def _name_of(self, modified: _Modified) -> str | None:
        """Return the name of the parameter on the written bytes."""
        watched = self._training.watched
        if modified.written.parameter is not None:
            parameter = modified.written.parameter()
            return None if parameter is None else watched.name_of(parameter)
        here = storage_of(modified.slot.tensor)
        return next((name for name, each in watched.parameters() if storage_of(each) == here), None)


_OF_A_STEP = SilentWords(
    noun="step",
    why="that step does not increment versions",
    instead="with foreach=True PyTorch raises an error instead",
)

_READ_FOR = {
    ("AddmmBackward0", "mat1"): 2,
    ("AddmmBackward0", "mat2"): 1,
    **{(f"{kind}Backward0", slot): edge for kind in ("Mm", "Bmm") for slot, edge in (("self", 1), ("mat2", 0))},
    ("MulBackward0", "self"): 1,
    ("MulBackward0", "other"): 0,
}


def _read_for(node: Node, slot: SavedSlot) -> int | None:
    """Return the edge whose gradient needs a saved tensor; None if any does.

    For example, a convolution saves its weight, which only the gradient of its input needs, even if the input is data.
    """
    return _READ_FOR.get((node.name(), slot.name), 0 if slot.name == "weight" else None)


def _how_far(modified: Sequence[_Modified]) -> str:
    """Return by how much the saved tensors changed, as text, if the previous values are known."""
    found = [each.written.off(each.slot.tensor) for each in modified]
    known = [each for each in found if each is not None]
    return f" (up to {max(known):.2g} off)" if len(known) == len(found) else ""


class NeededEdges(Protocol):
    def __call__(self, node: Node, edge: int | None = None) -> bool:
        """Return True if the backward runs this node; with `edge`, whether its gradient for that one is needed."""


def needed_edges(roots: Sequence[Node], inputs: Sequence[Tensor | GradientEdge] | None) -> NeededEdges:
    """Return a function that says whether a backward from `roots` runs a node. Without `inputs` it runs all nodes."""
    if not inputs:
        return _has_edge
    wanted = {(each if isinstance(each, GradientEdge) else get_gradient_edge(each)).node for each in inputs}
    above: dict[Node, list[Node]] = {}
    waiting, seen = list(roots), set(roots)
    while waiting:
        node = waiting.pop()
        for child, _ in node.next_functions:
            if child is not None:
                above.setdefault(child, []).append(node)
                if child not in seen:
                    seen.add(child)
                    waiting.append(child)
    leading = set(wanted)  # nodes that lead to an input
    waiting = list(wanted)
    while waiting:
        for node in above.get(waiting.pop(), ()):
            if node not in leading:
                leading.add(node)
                waiting.append(node)

    def runs(node: Node, edge: int | None = None) -> bool:
        if edge is None:
            return any(child in leading for child, _ in node.next_functions)
        return _has_edge(node, edge) and node.next_functions[edge][0] in leading

    return runs


def _has_edge(node: Node, edge: int | None = None) -> bool:
    return edge is None or (edge < len(node.next_functions) and node.next_functions[edge][0] is not None)
