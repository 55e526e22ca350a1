"""`ts.recompute`: forwards whose saved tensors are dropped and recomputed, by a plan or within a budget."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import nn

from ...inspector.validation import a_kind, expect_callable, expect_model
from ..api.make_loss import MakeLoss
from ..api.restore_state import AsFound
from ..execution.unsupported import refuse_transforms
from ..schedule.ddp_buckets import nothing_reduced
from .apply_plan import apply_plan
from .budget import Budget, Wanted, expect_seconds
from .plan import RecomputePlan
from .plan_recompute import plan_recompute
from .recompute_report import RecomputeReport

Made = TypeVar("Made")


class recompute:
    """Drops saved tensors after the forward, by a plan, and recomputes them when the backward needs them.

    With a plan it is a context manager around a forward: `with ts.recompute(plan): loss = model(x)`. With a budget it
    is for trainers, which call the model in their own way: calling it with the trainer's function plans at the first
    call with gradients on, and runs that call and all later ones by the plan.

        class RecomputingTrainer(transformers.Trainer):
            recompute = ts.recompute(budget=0.5)

            def compute_loss(self, *args, **kwargs):
                return self.recompute(super().compute_loss, *args, **kwargs)

        class RecomputingModule(MyLightningModule):
            recompute = ts.recompute(budget=0.5)

            def training_step(self, *args, **kwargs):
                return self.recompute(super().training_step, *args, **kwargs)

    Gradients are bitwise equal to those without recomputation, even under dropout, and the forward modifies the same
    tensors (the running statistics of a batch-norm are updated once). PyTorch's own engine runs the backward,
    inside the `with` block or after it. Optimizer, autocast, GradScaler, DistributedDataParallel, gradient accumulation
    and the user's checkpoints work as without recomputation.

    The first forward under a plan keeps all saved tensors. At its end each storage that the plan drops is recomputed,
    compared with the original, and dropped if it is the same to the bit. If it is not, for example because NumPy
    modified its data, it is kept from then on (`report.banned`), with a warning. A storage is recomputed from the
    forward's own inputs. If they were modified in place meanwhile, the backward raises as PyTorch does for saved
    tensors.

    Args:
        plan: from `ts.plan_recompute` or `RecomputePlan.load`. Forwards of other sizes may also use it: the storages
            that it drops are recomputed with their own operations. If the first forward runs other operations than the
            plan's, it is refused. If a later one does, it keeps all saved tensors from there on, with a warning. With a
            plan that drops nothing the block does nothing and takes no time.
        budget, overhead, seconds, model: as in `ts.plan_recompute`, for the plan of the first call. Planning runs some
            twenty forwards and backwards and restores everything they change, except their logs. If gradients are off,
            as in an evaluation, a call just runs the function.

    Attributes:
        plan: the plan; None before the first call.

    Raises:
        TypeError: if `plan` is not a plan, or `ts.plan_recompute` would refuse an argument.
        ValueError: if both a plan and arguments for planning are passed, or `ts.plan_recompute` would refuse one. In
            the forward: if it is not the planned one.
        RuntimeError: if a `with` block is entered without a plan.
        NotImplementedError: in the forward, if it calls compiled code or disables saved_tensors_hooks.

    The first forward under a plan is followed operation by operation. Later blocks follow only the calls that drop or
    save something. Open one block for each forward: several forwards in one block take longer.

    Known limitations: saved tensors are dropped only in the thread that opens the block; a block in which that thread
    calls no function of torch warns at its end. Functions that disable
    `saved_tensors_hooks`, such as torch.func.grad, are refused. Saved-tensor hooks that the user opens around the block
    do not see its tensors. An nn.MultiheadAttention or nn.TransformerEncoder in eval mode without gradients does not
    use its fast path, as under any TorchFunctionMode, and its result differs by rounding. Changes that PyTorch does not
    count as modifications go unnoticed between forward and backward: writes through .data, running statistics of a
    batch-norm that ran in eval mode and then trains, and settings for the precision of matrix products.
    """

    def __init__(
        self,
        plan: RecomputePlan | None = None,
        *,
        budget: Budget | None = None,
        overhead: float | None = None,
        seconds: float | None = None,
        model: nn.Module | None = None,
    ) -> None:
        if not isinstance(plan, RecomputePlan | None):
            raise TypeError(
                f"ts.recompute expects a plan from ts.plan_recompute, got {a_kind(plan)}; pass a budget by name: "
                "ts.recompute(budget=0.5)"
            )
        wanted: dict[str, Any] = {"budget": budget, "overhead": overhead, "seconds": seconds, "model": model}
        options = {name: value for name, value in wanted.items() if value is not None}
        if plan is not None and options:
            raise ValueError(
                f"ts.recompute expects either a plan or {', '.join(options)}, not both; pass {', '.join(options)} to "
                "ts.plan_recompute instead"
            )
        Wanted.of(budget, overhead)  # raises for invalid arguments here, not at the first call
        if seconds is not None:
            expect_seconds(seconds)
        expect_model(model)
        self._plan_for: Callable[[MakeLoss], RecomputePlan] = partial(plan_recompute, **options)
        self.plan = plan
        self._block = None if plan is None else apply_plan(plan)

    def __repr__(self) -> str:
        return f"<recompute: {'no plan yet' if self.plan is None else repr(self.plan)}>"

    def __enter__(self) -> recompute:
        if self._block is None:
            raise RuntimeError(
                "ts.recompute has no plan before its first call; for a with block, use "
                "ts.recompute(ts.plan_recompute(make_loss, budget))"
            )
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._block is not None, "the block was not entered"
        self._block.__exit__(kind, error, traceback)

    @property
    def report(self) -> RecomputeReport:
        """The counts so far, including recomputation after the `with` block; for calls, those of the newest call."""
        if self._block is None:
            return RecomputeReport(0, 0, 0, 0, 0, 0, 0.0, (), ())
        return self._block.report

    def __call__(self, function: Callable[..., Made], *args: Any, **kwargs: Any) -> Made:
        """Run a trainer's function under the plan, which the first call makes, and return its result.

        Args:
            function: the function that runs the forward, such as `super().compute_loss`. The loss is its result, the
                first element of a tuple, or the "loss" entry of a dict or of a transformers output.
            args, kwargs: the arguments of the function.

        Raises:
            TypeError, ValueError: if the result has no loss. Errors of `ts.plan_recompute` pass through.
        """
        if not callable(function):
            expect_callable(
                function, len(args), "function", "a function that runs the forward, such as super().compute_loss"
            )
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        if self.plan is None:
            refuse_transforms("ts.recompute")
            # Planning calls the function some twenty times; the call that counts follows below, under the plan.
            _make_once(lambda: _loss_in(_called(function, args, kwargs)))
            self.plan = self._plan_for(lambda: _loss_in(_called(function, args, kwargs)))
        self._block = apply_plan(self.plan)
        with self._block:
            return function(*args, **kwargs)


def _make_once(make_loss: MakeLoss) -> None:
    """Create the tensors that only the first forward creates and keeps, such as a mask.

    All forwards then run the same operations, as a plan needs. The copies of the program's state are released on
    return, before planning.
    """
    world = AsFound(make_loss, "ts.recompute", refuses=True)
    with world, nothing_reduced():
        world.watch(backward=False)
        with world.run():
            made = world.carried.made_once()
    for each in made:
        each.redo()


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call the function with copies of the batches, because some trainers pop the labels from them."""
    return function(*map(_copied, args), **{name: _copied(each) for name, each in kwargs.items()})


def _copied(value: Any) -> Any:
    return copy(value) if isinstance(value, Mapping | UserDict) else value


def _loss_in(made: Any) -> Any:
    """Return the loss in the result of a trainer's function."""
    if isinstance(made, Mapping | UserDict):
        return made.get("loss")
    if isinstance(made, tuple | list) and made:
        return made[0]
    return getattr(made, "loss", made)
