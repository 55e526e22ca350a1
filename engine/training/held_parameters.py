"""Parameters that get gradients and that no optimizer holds; and those that an optimizer holds and that get none."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...inspector.graph.words import counted
from ...inspector.torch_internals.optimizer_steps import optimizers_alive, parameters_of
from ...inspector.torch_internals.tensors import local_of
from ..words.phrases import joined
from .finding import Finding
from .part import LoopPart
from .record import Training

_ELEMENTS = 2**16  # of a parameter that are compared; at least one row
_FIRST, _SURE = 1, 2  # the steps at which parameters are suspected, and at which it is said


def _first_of(parameter: Tensor) -> Tensor:
    """Its first elements: they tell whether it was updated, and take next to nothing to be kept."""
    values = local_of(parameter.detach())
    return values if values.dim() == 0 else values[: max(1, _ELEMENTS * len(values) // max(values.numel(), 1))]


class HeldParameters(LoopPart):
    """Compares what has gradients with what the optimizers hold, in the first three steps; later nothing is done.

    A parameter that somebody else updates is none: its values are compared between two steps. Where no optimizer holds
    any parameter of the models (it updates copies of them) nothing is said.
    """

    def __init__(self) -> None:
        self._training: Training | None = None
        self._step = 0
        self._got: set[int] = set()  # a gradient, by id
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._suspects: list[tuple[str, Tensor]] = []  # names and values

    def begins(self, training: Training) -> None:
        self._training = training

    def step_begins(self, number: int) -> None:
        self._step = number

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        if self._step > _SURE or self._training is None:
            return
        self._optimizers.add(optimizer)
        self._got.update(id(each) for each in parameters_of(optimizer) if each.grad is not None)
        if self._step == _FIRST:
            self._suspects = [(name, _first_of(each).clone()) for name, each in self._unheld(self._optimizers)]
        elif self._step == _SURE:
            self._tell_of_idle(optimizer)
            if self._suspects:
                self._tell_of_unheld()

    def _unheld(self, optimizers: Iterable[Optimizer]) -> list[tuple[str, Tensor]]:
        assert self._training is not None
        held = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
        named = list(self._training.watched.parameters())
        if held.isdisjoint(id(each) for _, each in named):
            return []
        return [(name, each) for name, each in named if each.grad is not None and id(each) not in held]

    def _tell_of_unheld(self) -> None:
        before, self._suspects = dict(self._suspects), []
        found = [
            name
            for name, each in self._unheld(optimizers_alive())
            if name in before and torch.equal(before[name], _first_of(each))
        ]
        if found and self._training is not None:
            plural = len(found) > 1
            self._training.add(
                Finding(
                    "never stepped",
                    self._step,
                    f"{joined(found)} {'get gradients' if plural else 'gets gradients'}, and no optimizer holds "
                    f"{'them' if plural else 'it'}: {'they stay' if plural else 'it stays'} as made, and an "
                    "optimizer's zero_grad() does not clear what adds up there. What to do: hand over all of the "
                    "model's parameters once the model is whole (a part that was replaced afterwards is new), or "
                    "freeze with requires_grad_(False).",
                    tensor=found[0],
                )
            )

    def _tell_of_idle(self, optimizer: Optimizer) -> None:
        assert self._training is not None
        held = parameters_of(optimizer)
        idle = [each for each in held if each.requires_grad and id(each) not in self._got]
        if not idle:
            return
        if len(idle) == len(held):
            self._tell_of_steps_without_gradients(optimizer)
            return
        names = [name for each in idle if (name := self._training.watched.name_of(each)) is not None]
        nameless = len(idle) - len(names)
        more = [f"{counted(nameless, 'parameter')} of no module that was called"] if nameless else []
        self._training.add(
            Finding(
                "without gradient",
                self._step,
                f"{type(optimizer).__name__} holds {joined([*names, *more])}, and none of the first "
                f"{counted(self._step + 1, 'step')} gave a gradient there; a later one may. What to do: "
                "ts.find_unused(make_loss, model) says why; or freeze with requires_grad_(False).",
                tensor=names[0] if names else None,
                certain=False,
            )
        )

    def _tell_of_steps_without_gradients(self, optimizer: Optimizer) -> None:
        assert self._training is not None
        self._training.add(
            Finding(
                "without gradient",
                self._step,
                f"No parameter that {type(optimizer).__name__} holds had a gradient when it stepped, in none of the "
                f"first {counted(self._step + 1, 'step')}: these changed nothing. What to do: look for a backward() "
                "that isn't called, or stands before zero_grad(), and for a .detach() or no_grad() before the loss. "
                "ts.find_unused(make_loss, model) says where the path to each parameter is cut.",
                certain=False,
            )
        )

    def ends(self) -> None:
        self._suspects.clear()
        self._training = None
