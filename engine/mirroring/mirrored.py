"""`ts.mirrored(budget)`: a plan that is made where a trainer calls the model, at the first call."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from ...inspector.arguments import expect_callable, expect_model
from ..programs.as_found import AsFound
from ..programs.make_loss import MakeLoss
from ..tasks.refusals import refuse_transforms
from ..trace.buckets import nothing_reduced
from .mirror import MirrorReport, mirror
from .plan_mirror import plan_mirror
from .planned_mirror import PlannedMirror
from .wanted import Budget, Wanted, expect_seconds

Made = TypeVar("Made")


class mirrored:
    """Runs forwards mirrored, and plans at the first: for trainers, which call a model in a way of their own.

    class MirroredTrainer(transformers.Trainer):
        mirrored = ts.mirrored(budget=0.5)

        def compute_loss(self, *args, **kwargs):
            return self.mirrored(super().compute_loss, *args, **kwargs)

    class MirroredModule(MyLightningModule):
        mirrored = ts.mirrored(budget=0.5)

        def training_step(self, *args, **kwargs):
            return self.mirrored(super().training_step, *args, **kwargs)

    The first call with gradients on plans (`ts.plan_mirror`, some twenty forwards and backwards, after which all is as
    before, but for what they log); that one and the later ones run under `ts.mirror(plan)`. Where gradients are off, as
    in an evaluation, the function is called as it is.

    Args:
        budget, overhead, seconds, model: as in `ts.plan_mirror`.

    Attributes:
        plan: what was planned; None before the first call.

    Raises:
        TypeError, ValueError: an argument is none that `ts.plan_mirror` takes.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        overhead: float | None = None,
        seconds: float = 5.0,
        model: nn.Module | None = None,
    ) -> None:
        Wanted.of(budget, overhead)
        expect_seconds(seconds)
        expect_model(model)
        self._plans = partial(plan_mirror, budget=budget, overhead=overhead, seconds=seconds, model=model)
        self._newest: mirror | None = None
        self.plan: PlannedMirror | None = None

    def __repr__(self) -> str:
        return f"<mirrored: {'nothing is planned yet' if self.plan is None else repr(self.plan)}>"

    @property
    def report(self) -> MirrorReport | None:
        """What came of the newest call, its backward included, once that has run; None before."""
        return None if self._newest is None else self._newest.report

    def __call__(self, function: Callable[..., Made], *args: Any, **kwargs: Any) -> Made:
        """Calls the function, mirrored, and gives what it gives: the loss, alone or with others.

        Args:
            function: runs the forward: `super().compute_loss`. Of a tuple the first is the loss, of a dict or an output
                of transformers' that which is called so.
            args, kwargs: what it is called with.

        Raises:
            TypeError, ValueError: there is no loss in what it gives; and what `ts.plan_mirror` raises.
        """
        if not callable(function):
            expect_callable(function, len(args), "function", "what runs the forward, such as super().compute_loss")
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        if self.plan is None:
            refuse_transforms("ts.mirrored")
            _make_once(lambda: _loss_in(_called(function, args, kwargs)))
            self.plan = self._plans(lambda: _loss_in(_called(function, args, kwargs)))
        self._newest = mirror(self.plan)
        with self._newest:
            return function(*args, **kwargs)


def _make_once(make_loss: MakeLoss) -> None:
    """Make the tensors that the first forward makes and keeps (a mask) before it runs: all forwards run alike then, as
    the plan expects."""
    world = AsFound(make_loss, "ts.mirrored", refuses=True)
    with world, nothing_reduced():
        world.watch(backward=False)
        with world.run():
            made = world.carried.made_once()
    for each in made:
        each.redo()


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A call on batches of its own: some trainers take the labels out of theirs."""
    return function(*map(_own, args), **{name: _own(each) for name, each in kwargs.items()})


def _own(given: Any) -> Any:
    return copy(given) if isinstance(given, Mapping | UserDict) else given


def _loss_in(made: Any) -> Any:
    """The loss among what a trainer's function gives."""
    if isinstance(made, Mapping | UserDict):
        return made.get("loss")
    if isinstance(made, tuple | list) and made:
        return made[0]
    return getattr(made, "loss", made)
