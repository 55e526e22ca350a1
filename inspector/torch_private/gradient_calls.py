"""Watchers of the calls that clear or clip gradients, in any thread."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, GeneratorType
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.clip_grad import _clip_grads_with_norm_, clip_grad_value_
from torch.optim import Optimizer

from .compiled import leaving_lock, out_of_compiled_code

Cleared = Callable[[Any], None]
"""Called with the optimizer or module whose `zero_grad` is called."""

Clipped = Callable[[str, list[Tensor]], None]
"""Called with the name of the clipping function and the tensors whose gradients it is about to clip."""

_cleared: list[Cleared] = []
_clipped: list[Clipped] = []


# The code objects of the next three functions replace those of torch's, which keeps `clip_grad_norm_` watched where a
# program has imported it by name. They run with the globals of torch's functions and have the same parameters, because
# Accelerate reads the signature of `zero_grad`.
def _watched_zero_grad(self: Any, set_to_none: bool = True) -> None:
    _tapescope_zero_grad(self, set_to_none)  # type: ignore[name-defined]  # noqa: F821


def _watched_norm(parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    _tapescope_clip_norm(parameters, max_norm, total_norm, foreach)  # type: ignore[name-defined]  # noqa: F821


def _watched_value(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    _tapescope_clip_value(parameters, clip_value, foreach)  # type: ignore[name-defined]  # noqa: F821


def _zero_grad(original: Callable[..., None], owner: Any, set_to_none: bool) -> None:
    for tell in tuple(_cleared):
        tell(owner)
    original(owner, set_to_none)


def _clip(original: Callable[..., None], name: str, parameters: Any, *given: Any) -> None:
    # A generator that still has tensors is not read here: the call would find it empty. `clip_grad_norm_` has made a
    # list of its generator by now.
    is_used_up = isinstance(parameters, GeneratorType) and parameters.gi_frame is None
    if is_used_up or isinstance(parameters, list | tuple | Tensor):
        tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for tell in tuple(_clipped):
            tell(name, tensors)
    original(parameters, *given)


class _Replaced:
    """A function of torch with another code object while there are watchers."""

    def __init__(self, function: Callable[..., Any], watched: Callable[..., Any], name: str, *bound: Any) -> None:
        found = inspect.unwrap(function)
        assert isinstance(found, FunctionType) and isinstance(watched, FunctionType)
        self._function, self._code, self._name = found, watched.__code__, name
        self._original = found.__code__
        beneath = FunctionType(self._original, found.__globals__, found.__name__, found.__defaults__, found.__closure__)
        called, *more = bound
        self._call = partial(called, beneath, *more)

    def settle(self, is_watched: bool) -> None:
        """Replace or restore the code. Safe to repeat after an interrupt."""
        self._function.__globals__[self._name] = self._call  # it stays: another thread may be about to look it up
        self._function.__code__ = self._code if is_watched else self._original


_REPLACED = (
    _Replaced(Optimizer.zero_grad, _watched_zero_grad, "_tapescope_zero_grad", _zero_grad),
    _Replaced(nn.Module.zero_grad, _watched_zero_grad, "_tapescope_zero_grad", _zero_grad),
    _Replaced(_clip_grads_with_norm_, _watched_norm, "_tapescope_clip_norm", _clip, "clip_grad_norm_"),
    _Replaced(clip_grad_value_, _watched_value, "_tapescope_clip_value", _clip, "clip_grad_value_"),
)


@contextmanager
def watching_zero_grad(cleared: Cleared) -> Iterator[None]:
    """Call `cleared` before each `zero_grad`. A subclass that overrides it without calling torch's is not seen."""
    with _told(_cleared, cleared):
        yield


@contextmanager
def watching_clipping(clipped: Clipped) -> Iterator[None]:
    """Call `clipped` before each `clip_grad_norm_` and `clip_grad_value_`."""
    with _told(_clipped, clipped):
        yield


@contextmanager
def _told(watchers: list[Any], watcher: Callable[..., None]) -> Iterator[None]:
    with ExitStack() as stack:
        try:  # entered first, because an interrupt may come at any line
            with leaving_lock:
                watchers.append(watcher)
                _settle()
            stack.enter_context(out_of_compiled_code(_leave))
            yield
        finally:
            with leaving_lock:
                watchers[:] = [each for each in watchers if each is not watcher]
                _settle()


def _settle() -> None:
    for each in _REPLACED:
        each.settle(bool(_cleared or _clipped))


def _leave() -> Callable[[], None]:
    for each in _REPLACED:
        each.settle(False)
    return _settle
