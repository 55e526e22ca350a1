"""Tensors that are written unnoticed while a graph that saved them waits for its backward: it goes wrong.

A fused step of an optimizer, or whoever writes through `.data`, counts no version, so PyTorch raises no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet, ref

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.optim import Optimizer

from ...inspector.graph.marks import operation_of
from ...inspector.graph.source import users_place
from ...inspector.graph.words import counted
from ...inspector.graph.written import note_write
from ...inspector.torch_internals.optimizer_steps import is_fused, parameters_of
from ...inspector.torch_internals.saved import SavedSlot, saved_slots
from ...inspector.torch_internals.sequence_numbers import sequence_nr, youngest_first
from ...inspector.torch_internals.tensors import storage_of, version_of
from ..steps.loop_watch import BackwardGiven
from .data_writes import DataWrites
from .finding import Finding
from .forwards import Forwards, at, roots_of
from .record import Training
from .silent_step import SilentStep, SilentWords, WrittenBytes

_MOST_STEPS = 16
_MOST_COPIED = 2  # steps of which copies are kept: of a loop whose graphs never run


@dataclass(slots=True)
class _Spoiled:
    """A saved tensor that was written since."""

    node: Node
    number: int
    slot: SavedSlot
    by: SilentStep
    written: WrittenBytes


class SilentWrites:
    """Follows the optimizers' steps.

    Only where a graph waits for its backward as an optimizer steps is more done than to look at which graphs wait; and
    parameters are copied only if that optimizer's steps count no versions. A backward is walked through only if a graph
    from before such a step is alive.

    Known limitations. What other calls write through `.data`, or somebody through NumPy, is seen where a function mode
    is open (`data_writes`). A graph that was made in another thread is not compared with steps of this one. Checkpoints
    and `save_on_cpu` save copies, or nothing.
    """

    def __init__(self, training: Training, forwards: Forwards) -> None:
        self._training = training
        self._forwards = forwards
        self._loud: WeakSet[Optimizer] = WeakSet()  # whose steps count versions
        self._steps: list[SilentStep] = []
        self._before: list[tuple[Tensor, int, Tensor | None]] | None = None  # of the step that is under way
        self.by_others = DataWrites(forwards)

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        self._before = None
        self.by_others.pause()
        waiting, unseen = self._forwards.waiting(), self._forwards.unseen
        if not waiting and not unseen:
            return
        given = [each for each in parameters_of(optimizer) if each.grad is not None]
        newest = max((each.number for each in self._steps), default=0)
        copied = optimizer not in self._loud and any(each.end > newest for each in waiting)
        copies = [each.detach().clone() if copied else None for each in given]
        self._before = [(each, version_of(each), copy) for each, copy in zip(given, copies, strict=True)]

    def optimizer_ends(self, optimizer: Optimizer, step: int) -> None:
        before, self._before = self._before, None
        self.by_others.go_on()
        if before is None:
            return
        title, place = step_title(optimizer), users_place()
        written: dict[int, WrittenBytes] = {}
        for parameter, version, copy in before:
            now = version_of(parameter)
            if now > version:
                note_write(title, place, parameter, version, now)
            elif (storage := storage_of(parameter)) is not None:
                written[storage.address] = WrittenBytes(copy, ref(parameter))
        if len(written) < len(before):
            self._loud.add(optimizer)
        if written:
            self._steps.append(SilentStep(title, place, step, sequence_nr(), written, _OF_A_STEP))
            self._forget_old()

    def _forget_old(self) -> None:
        """Lets go of steps that no graph waits behind."""
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
        found = self._spoiled(roots_of(given[0]), given)
        by_step: dict[int, list[_Spoiled]] = {}
        for each in found:
            by_step.setdefault(id(each.by), []).append(each)
        for spoiled in by_step.values():
            self._training.add(self._finding(spoiled, step))

    def backward_ends(self) -> None:
        self._forget_old()
        self.by_others.forget_old()

    def _spoiled(self, roots: Sequence[Node], given: BackwardGiven) -> list[_Spoiled]:
        """What this backward takes from saved tensors that are no more what they were; the youngest first."""
        steps = [*sorted([*self._steps, *self.by_others.told], key=lambda each: each.number), *self.by_others.shared]
        newest = max(each.number for each in steps)
        runs = needed_edges(roots, given[4] if len(given) > 4 else None)
        found: list[_Spoiled] = []
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
                        found.append(_Spoiled(node, number, slot, by, written))
                        break
        return found

    def _finding(self, spoiled: Sequence[_Spoiled], step: int) -> Finding:
        first = spoiled[0]
        by = first.by
        name = self._name_of(first)
        others = len({id(each.written) for each in spoiled}) - 1
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
            f"{earlier} had saved it as {first.slot.name}; the backward{at(users_place())} takes the new values"
            f"{_how_far(spoiled)}, so its gradients are not those of the forward, and PyTorch doesn't notice: "
            f"{by.words.why}. What to do: run this backward before that {by.words.noun}, or compute its loss again "
            f"after it; {by.words.instead}.",
            module=None if name is None else name.rpartition(".")[0],
            tensor=name,
            at=at(by.place).removeprefix(" at ") or None,
            certain=all(each.written.copy is not None for each in spoiled),
        )

    def _name_of(self, spoiled: _Spoiled) -> str | None:
        """Of the parameter on the bytes that were written."""
        watched = self._training.watched
        if spoiled.written.parameter is not None:
            parameter = spoiled.written.parameter()
            return None if parameter is None else watched.name_of(parameter)
        here = storage_of(spoiled.slot.tensor)
        return next((name for name, each in watched.parameters() if storage_of(each) == here), None)


_OF_A_STEP = SilentWords(
    noun="step",
    why="that step counts no versions",
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
    """The edge for whose gradient alone the node reads this; None: for any. A convolution saves its weight, which the
    gradient of its input takes, also where its input is data."""
    return _READ_FOR.get((node.name(), slot.name), 0 if slot.name == "weight" else None)


def step_title(optimizer: Optimizer) -> str:
    """`Adam.step() (fused)`."""
    return f"{type(optimizer).__name__}.step(){' (fused)' if is_fused(optimizer) else ''}"


def _how_far(spoiled: Sequence[_Spoiled]) -> str:
    """By how much what is read has changed, where what was there before is known."""
    found = [each.written.off(each.slot.tensor) for each in spoiled]
    known = [each for each in found if each is not None]
    return f" (up to {max(known):.2g} off)" if len(known) == len(found) else ""


class NeededEdges(Protocol):
    def __call__(self, node: Node, edge: int | None = None) -> bool:
        """Whether the backward runs this node; with `edge`, whether its gradient for that one is needed."""


def needed_edges(roots: Sequence[Node], inputs: Sequence[Tensor | GradientEdge] | None) -> NeededEdges:
    """Return what tells whether a backward from `roots` runs a node; without inputs it runs all of them."""
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
    leading = set(wanted)  # to an input
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
