"""Watchers of optimizer steps and gradient scalers, in any thread."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import wraps
from types import FrameType
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .compiled import keep_compiler_out

Watcher = Callable[..., Generator[None, Any, None]]
"""A generator function called with the scaler and the arguments of a call. The generator runs to its `yield` before the
call, and the result is sent to it. It is closed instead if the call raises, or if watching has ended meanwhile."""

Scaled = Callable[[Any, Any, Tensor], None]
"""Called with the scaled value, the result, and the scaler's scale tensor."""


class _WatchedMethod:
    """A method of `GradScaler`, replaced once while there are watchers.

    If someone else has wrapped the replacement, it stays inside that wrapper and only passes calls on.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._watchers: tuple[Watcher, ...] = ()
        self._replacement: Any = None

    @contextmanager
    def watched_by(self, watcher: Watcher) -> Iterator[None]:
        try:  # entered first, because an interrupt may come at any line
            with self._lock:
                self._watchers = (*self._watchers, watcher)
                self._settle()
            yield
        finally:
            try:
                self._end(watcher)
            except BaseException:  # Ctrl-C
                self._end(watcher)
                raise

    def _end(self, watcher: Watcher) -> None:
        with self._lock:
            self._watchers = tuple(each for each in self._watchers if each is not watcher)
            self._settle()

    def _settle(self) -> None:
        """Replace the method if it has watchers, otherwise restore the original. Safe to repeat after an interrupt."""
        current = getattr(GradScaler, self._name)
        if not self._watchers:
            if current is self._replacement:
                setattr(GradScaler, self._name, current.__wrapped__)
            self._replacement = None
        elif current is not self._replacement:
            self._replacement = self._replacing(current)
            setattr(GradScaler, self._name, self._replacement)

    def _replacing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            if self._replacement is not method:
                return original(*args, **kwargs)
            under_way = [(watcher, watcher(*args, **kwargs)) for watcher in self._watchers]
            try:
                for _, call in under_way:
                    next(call)
                result = original(*args, **kwargs)
                for watcher, call in under_way:
                    if watcher in self._watchers:
                        with suppress(StopIteration):
                            call.send(result)
                return result
            finally:
                for _, call in under_way:
                    call.close()

        return method


_scale = _WatchedMethod("scale")
_maybe_step = _WatchedMethod("_maybe_opt_step")


def watching_scales(scaled: Scaled) -> AbstractContextManager[None]:
    """Call `scaled` each time an enabled scaler has scaled a value."""

    def watcher(scaler: GradScaler, outputs: Any) -> Generator[None, Any, None]:
        result = yield
        if scaler.is_enabled() and scaler._scale is not None:
            scaled(outputs, result, scaler._scale)

    return _scale.watched_by(watcher)


watching_scaler_steps = _maybe_step.watched_by
"""Pass a watcher each call that steps an optimizer, or skips the step because gradients are not finite."""


class StepObserver(Protocol):
    """Callbacks for optimizer steps."""

    def step_begins(self, optimizer: Optimizer, has_closure: bool) -> None:
        """Called before a step. `has_closure`: whether the step has a closure that runs forward and backward."""

    def step_ends(self, optimizer: Optimizer) -> None: ...

    def closure_begins(self, optimizer: Optimizer) -> None:
        """Called when the step calls its closure, which runs forward and backward."""

    def closure_ends(self, optimizer: Optimizer) -> None: ...

    def step_skipped(self, optimizer: Optimizer) -> None:
        """Called when a gradient scaler has skipped the step because gradients were not finite."""


@contextmanager
def watching_optimizers(observer: StepObserver) -> Iterator[None]:
    """Call `observer` at all steps of all optimizers. A step that raises has no end.

    A step of an optimizer that only wraps others (such as Lookahead) counts when one of the wrapped optimizers steps,
    since in most calls such a wrapper may step none. A base class's step inside a subclass's step does not count again.
    """
    steps = _Steps(observer)

    def report_skips(
        scaler: object, optimizer: Optimizer, *args: object, **kwargs: object
    ) -> Generator[None, Any, None]:
        stepped: list[Optimizer] = []
        steps.of_scaler = stepped
        try:
            yield
        finally:
            steps.of_scaler = None
        # The optimizer that the user passes may wrap the one that steps.
        wanted = [optimizer] if any(each is optimizer for each in stepped) else stepping_for(optimizer)
        if not any(each is one for each in stepped for one in wanted):
            for each in stepping_for(optimizer)[:1]:
                observer.step_skipped(each)

    with ExitStack() as stack:
        stack.callback(register_optimizer_step_pre_hook(steps.before).remove)
        stack.callback(register_optimizer_step_post_hook(steps.after).remove)
        stack.enter_context(watching_scaler_steps(report_skips))
        yield


class _Call(NamedTuple):
    """A call of a step.

    Attributes:
        frame: id of torch's frame around the step.
        is_reported: whether the observer has been called; None if it never is for this call.
    """

    optimizer: Optimizer
    frame: int
    is_reported: bool | None


class _Steps(threading.local):
    """The running, nested step calls of a thread.

    Attributes:
        of_scaler: optimizers stepped in the gradient scaler's current step; None outside of one, because a permanent
            list would keep every optimizer of the loop alive.
    """

    def __init__(self, observer: StepObserver) -> None:
        self._observer = observer
        self._calls: list[_Call] = []
        self.of_scaler: list[Optimizer] | None = None

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.of_scaler is not None:
            self.of_scaler.append(optimizer)
        frame = sys._getframe(1)
        self._calls = _under_way(self._calls, frame)
        if any(each.optimizer is optimizer for each in self._calls):
            self._calls.append(_Call(optimizer, id(frame), None))
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        is_reported = callable(closure) or not _only_wraps(optimizer)
        self._calls.append(_Call(optimizer, id(frame), is_reported))
        if is_reported:
            for place, each in enumerate(self._calls[:-1]):
                if each.is_reported is False:
                    self._calls[place] = each._replace(is_reported=True)
                    self._observer.step_begins(each.optimizer, False)
            self._observer.step_begins(optimizer, callable(closure))
        return _around_closure(self._observer, optimizer, closure, args, kwargs) if callable(closure) else None

    def after(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        frame = id(sys._getframe(1))
        while self._calls:
            call = self._calls.pop()
            if call.frame == frame:
                if call.is_reported:
                    self._observer.step_ends(optimizer)
                return


for _called_in_compiled_code in (_Steps.before, _Steps.after):
    keep_compiler_out(_called_in_compiled_code)


def _under_way(calls: list[_Call], frame: FrameType) -> list[_Call]:
    """Return the calls that have not ended: torch's frames around them are still on the stack."""
    if not calls:
        return calls
    around, each = set(), frame.f_back
    while each is not None:
        if each.f_code is frame.f_code:
            around.add(id(each))
        each = each.f_back
    return [call for call in calls if call.frame in around]


def stepping_for(optimizer: Any) -> list[Optimizer]:
    """Return the optimizers whose steps are seen when this one steps: itself if it has torch's hooks, and wrapped ones.

    It may be a wrapper that is not an `Optimizer`, or that has not called `Optimizer.__init__`.
    """
    beneath = _wrapped_by(optimizer)
    if has_hooks(optimizer):
        return [optimizer, *beneath]
    if beneath:
        return beneath
    # It wraps none visibly: take living optimizers that share a parameter group with it, or else those with a subset of
    # its parameters.
    alive = [each for each in optimizers_alive() if has_hooks(each)]
    groups = {id(each) for each in getattr(optimizer, "param_groups", ())}
    found = [each for each in alive if not groups.isdisjoint(map(id, each.param_groups))]
    held = {id(each) for each in parameters_of(optimizer)}
    found = found or [each for each in alive if held.issuperset(map(id, parameters_of(each)))]
    return found or ([optimizer] if isinstance(optimizer, Optimizer) else [])


def is_optimizer(value: object) -> bool:
    """Return whether the value is an optimizer, or steps a wrapped one. A scheduler only refers to one."""
    return isinstance(value, Optimizer) or (
        not isinstance(value, list | tuple | LRScheduler)
        and callable(getattr(value, "step", None))
        and bool(stepping_for(value))
    )


def has_hooks(optimizer: object) -> bool:
    """Return whether torch's step hooks run at its steps, which `Optimizer.__init__` sets up."""
    return (
        isinstance(optimizer, Optimizer)
        and "_optimizer_step_pre_hooks" in vars(optimizer)
        and getattr(type(optimizer).step, "hooked", False)
    )


def _wrapped_by(optimizer: object) -> list[Optimizer]:
    """Return the optimizers in its attributes (or in lists and dicts there) whose parameters are a subset of its own.

    Optimizers that these wrap in turn are included.
    """
    held = {id(each) for each in parameters_of(optimizer)}
    found: list[Optimizer] = []
    seen = {id(optimizer)}
    todo = [optimizer]
    while todo:
        for each in _attributes(todo.pop()):
            if id(each) not in seen:
                seen.add(id(each))
                todo.append(each)
                beneath = {id(parameter) for parameter in parameters_of(each)}
                if has_hooks(each) and (not held or beneath <= held):
                    found.append(each)
    return found


def _attributes(wrapper: object) -> Iterator[Any]:
    """Yield the attributes that have a `step` method."""
    for name, value in list(getattr(wrapper, "__dict__", {}).items()):
        if name not in ("param_groups", "state", "defaults"):
            values = value.values() if isinstance(value, dict) else value
            several = values if isinstance(value, dict | list | tuple) else [value]
            yield from (each for each in several if callable(getattr(type(each), "step", None)))


def parameters_of(optimizer: object) -> list[Tensor]:
    """Return all parameters of the optimizer."""
    return [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]


_wrappers: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()


def _only_wraps(optimizer: Optimizer) -> bool:
    """Return whether the wrapped optimizers hold all its parameters, so that it leaves the steps to them."""
    known = _wrappers.get(optimizer)
    if known is None:
        beneath = {id(parameter) for each in _wrapped_by(optimizer) for parameter in parameters_of(each)}
        known = bool(beneath) and beneath.issuperset(map(id, parameters_of(optimizer)))
        _wrappers[optimizer] = known
    return known


def is_fused(optimizer: Optimizer) -> bool:
    """Return whether a fused kernel steps some of its parameters (`fused=True`)."""
    return any(group.get("fused") for group in optimizer.param_groups)


def optimizers_alive() -> list[Optimizer]:
    """Return the optimizers that Python's garbage collector tracks.

    Wrappers of other libraries (Accelerate) are not included; they share the groups of the optimizer they wrap. PyTorch
    has no list of optimizers: its hooks report steps, and an optimizer may not have stepped yet.
    """
    subclasses: list[type] = [Optimizer]
    for each in subclasses:
        subclasses += each.__subclasses__()
    # Optimizer.__init__ marks the step of its class as hooked (torch/optim/optimizer.py, _patch_step_function), so one
    # of PyTorch's own classes without the mark has no instance. Most programs leave one class or two to look for.
    used = [
        each
        for each in dict.fromkeys(subclasses)
        if hasattr(getattr(each, "step", None), "hooked") or not each.__module__.startswith("torch.optim.")
    ]
    if not used:
        return []
    # An object refers to its class. This one pass in C takes half the time of a list of all objects.
    referrers = gc.get_referrers(*used)
    return [each for each in referrers if issubclass(type(each), Optimizer) and "param_groups" in vars(each)]


def _around_closure(
    observer: StepObserver,
    optimizer: Optimizer,
    closure: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a step with a closure that reports its calls to the observer."""

    @wraps(closure, updated=())
    def reporting(*given: Any, **named: Any) -> Any:
        observer.closure_begins(optimizer)
        try:
            return closure(*given, **named)
        finally:
            observer.closure_ends(optimizer)

    return (args, kwargs | {"closure": reporting}) if "closure" in kwargs else ((args[0], reporting, *args[2:]), kwargs)
