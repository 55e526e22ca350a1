"""Steps of optimizers, seen in any thread: also those which a gradient scaler leaves out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Protocol

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_DOOR = "_maybe_opt_step"


class StepObserver(Protocol):
    """Is told of steps, each time with the optimizer."""

    def step_begins(self, optimizer: Optimizer, has_closure: bool) -> None:
        """`has_closure`: it was given a function that runs forward and backward, and may call it."""

    def step_ends(self, optimizer: Optimizer) -> None: ...

    def closure_begins(self, optimizer: Optimizer) -> None:
        """The step calls the function that it was given, which runs forward and backward."""

    def closure_ends(self, optimizer: Optimizer) -> None: ...

    def step_skipped(self, optimizer: Optimizer) -> None:
        """A gradient scaler has left the step out, as gradients were not finite."""


@contextmanager
def watching_optimizers(observer: StepObserver) -> Iterator[None]:
    """Meanwhile `observer` is told of all steps of all optimizers. One that raises does not end."""

    def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stepped.append(optimizer)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        observer.step_begins(optimizer, callable(closure))
        return _around_closure(observer, optimizer, closure, args, kwargs) if callable(closure) else None

    def after(optimizer: Optimizer, args: object, kwargs: object) -> None:
        observer.step_ends(optimizer)

    stepped: list[Optimizer] = []  # inside of a scaler's step
    with ExitStack() as stack:
        stack.callback(register_optimizer_step_pre_hook(before).remove)
        stack.callback(register_optimizer_step_post_hook(after).remove)
        stack.callback(_watch_scalers(observer, stepped))
        yield


def is_fused(optimizer: Optimizer) -> bool:
    """Whether a kernel of its own steps some of its parameters (`fused=True`)."""
    return any(group.get("fused") for group in optimizer.param_groups)


def optimizers_alive() -> list[Optimizer]:
    """All that Python's garbage collector sees; without those that stand around another one (Accelerate's), whose
    groups are that one's."""
    return [each for each in gc.get_objects() if issubclass(type(each), Optimizer) and "param_groups" in vars(each)]


def _around_closure(
    observer: StepObserver,
    optimizer: Optimizer,
    closure: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a step, whose closure tells when it runs."""

    @wraps(closure, updated=())
    def told(*given: Any, **named: Any) -> Any:
        observer.closure_begins(optimizer)
        try:
            return closure(*given, **named)
        finally:
            observer.closure_ends(optimizer)

    return (args, kwargs | {"closure": told}) if "closure" in kwargs else ((args[0], told, *args[2:]), kwargs)


def _watch_scalers(observer: StepObserver, stepped: list[Optimizer]) -> Callable[[], None]:
    """Has steps told of that scalers leave out. Returns what ends that."""
    original = getattr(GradScaler, _DOOR)
    ended = False

    @wraps(original)
    def maybe_step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        stepped.clear()
        result = original(scaler, optimizer, *args, **kwargs)
        if not ended and not _is_among(optimizer, stepped):
            observer.step_skipped(optimizer)
        stepped.clear()
        return result

    def end() -> None:
        nonlocal ended
        ended = True
        stepped.clear()
        if getattr(GradScaler, _DOOR) is maybe_step:
            setattr(GradScaler, _DOOR, original)

    setattr(GradScaler, _DOOR, maybe_step)
    return end


def _is_among(optimizer: Optimizer, stepped: Sequence[Optimizer]) -> bool:
    """Whether it has stepped, or the one that it wraps has."""
    inner = getattr(optimizer, "optimizer", optimizer)
    return any(each is optimizer or each is inner for each in stepped)
