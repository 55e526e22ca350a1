"""Checks whether a clipping call clips the gradients that an optimizer then uses."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from threading import get_ident
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer

from ....inspector.graph.source_lines import Place, users_place
from ....inspector.text.sizes_and_counts import counted
from ....inspector.torch_private.gradient_calls import watching_clipping
from ....inspector.torch_private.optimizer_steps import optimizers_alive, parameters_of
from ..findings import Finding
from ..follow_loop import BackwardGiven
from ..loop_observers import LoopPart
from ..pending_graphs import at
from ..training_result import Training

_SURE = 3  # consecutive steps after which a call is reported


@dataclass(slots=True)
class _Call:
    """A call that clips gradients.

    Attributes:
        name: the function's name.
        place: the line of the call.
        given: ids of the tensors passed to it.
        with_gradient: ids of those that have a gradient.
        is_late: whether the optimizers that hold the tensors have already stepped with these gradients.
        reaches_step: whether an optimizer then stepped with one of the clipped gradients.
        is_early: whether an optimizer then stepped with gradients that were computed only after the call.
    """

    name: str
    place: Place | None
    given: Collection[int]
    with_gradient: Collection[int]
    is_late: bool
    reaches_step: bool = False
    is_early: bool = False


class Clipping(LoopPart):
    """Compares the tensors passed to each clipping call with those that the next optimizer steps hold."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._thread = get_ident()
        self._calls: list[_Call] = []
        self._in_a_row: dict[Place | None, tuple[int, int]] = {}  # first step and number of steps, by the call's line
        self._used: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()  # True if no backward ran since its step
        self._number = 0

    def begins(self, training: Training) -> None:
        self._training = training
        self._stack.enter_context(watching_clipping(self._clipped))

    def step_begins(self, number: int) -> None:
        self._number = number

    def _clipped(self, name: str, tensors: list[Tensor]) -> None:
        if get_ident() != self._thread:
            return
        given = {id(each) for each in tensors}
        with_gradient = {id(each) for each in tensors if each.is_leaf and each.grad is not None}
        holders = [
            is_used
            for optimizer, is_used in self._used.items()
            if any(id(each) in given for each in parameters_of(optimizer))
        ]
        is_late = bool(holders) and all(holders)
        self._calls.append(_Call(name, users_place(), given, with_gradient, is_late))

    def backward_begins(self, given: BackwardGiven) -> None:
        for optimizer in self._used:
            self._used[optimizer] = False

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        pending = [each for each in self._calls if not each.reaches_step]
        if pending:
            held = parameters_of(optimizer)
            for call in pending:
                if call.with_gradient and not call.is_late:
                    call.reaches_step = any(id(each) in call.with_gradient for each in held)
                elif not call.with_gradient:
                    call.is_early |= any(id(each) in call.given and each.grad is not None for each in held)

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self._used[optimizer] = True

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        self.optimizer_begins(optimizer)
        self._used[optimizer] = True

    def step_ends(self, number: int) -> None:
        calls, self._calls = self._calls, []
        is_reached = any(call.reaches_step for call in calls)
        for call in calls:
            # Without a gradient, the tensors may belong to a part that is frozen or unused in this step.
            is_unused = is_reached and bool(call.given) and not call.with_gradient and not call.is_early
            if call.reaches_step or is_unused:
                self._in_a_row.pop(call.place, None)
                continue
            first, count = self._in_a_row.get(call.place, (number, 0))
            self._in_a_row[call.place] = first, count + 1
            if count + 1 == _SURE:
                self._report(call, first)

    def _report(self, call: _Call, first: int) -> None:
        where = f"{call.name}(){at(call.place)}"
        if not call.given:
            why = (
                f"it receives no parameters, from step {first} on. An iterator is used up after its first use, by the "
                "optimizer for example. What to do: pass model.parameters(), or make a list once: "
                "parameters = list(...)"
            )
        elif call.is_early:
            why = (
                f"from step {first} on, none of the {counted(len(call.given), 'tensor')} has a gradient yet. What to "
                f"do: call {call.name}() between the backward and optimizer.step()"
            )
        elif call.is_late:
            why = (
                f"from step {first} on, the optimizer has already stepped with these gradients. What to do: call "
                f"{call.name}() between the backward and optimizer.step()"
            )
        else:
            held = {id(each) for optimizer in optimizers_alive() for each in parameters_of(optimizer)}
            if not held.isdisjoint(call.with_gradient or call.given):  # an optimizer that is not watched holds them
                return
            why = (
                f"from step {first} on, it receives {counted(len(call.given), 'tensor')} that no optimizer holds. What "
                "to do: pass the parameters that the optimizer steps (model.parameters() of the model that is trained)"
            )
        sentence = f"{where} clips nothing: {why}."
        self._training.add(Finding("clipped nothing", first, sentence, at=at(call.place)[4:] or None))

    def ends(self) -> None:
        self._stack.close()
        self._calls.clear()
