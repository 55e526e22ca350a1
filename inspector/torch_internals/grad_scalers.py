"""Calls of gradient scalers, seen in any thread: torch has no hook for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler

Watcher = Callable[..., Generator[None, Any, None]]
"""Takes the scaler and the arguments of a call. It runs to its `yield` before the call, and is sent the result there.
It is closed instead where the call raises, or where watching has ended meanwhile."""

Scaled = Callable[[Any, Any, Tensor], None]
"""Gets what was scaled, the result, and the scale, which is the scaler's own tensor."""


class _WatchedMethod:
    """A method of `GradScaler`, replaced while somebody watches it: once, however many do.

    A replacement that somebody else has wrapped meanwhile stays beneath, where it only passes calls on.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._watchers: tuple[Watcher, ...] = ()
        self._replacement: Any = None

    @contextmanager
    def watched_by(self, watcher: Watcher) -> Iterator[None]:
        try:  # an interrupt may come as soon as it has begun
            self._begin(watcher)
            yield
        finally:
            try:
                self._end(watcher)
            except BaseException:  # Ctrl-C
                self._end(watcher)
                raise

    def _begin(self, watcher: Watcher) -> None:
        with self._lock:
            self._watchers = (*self._watchers, watcher)
            self._settle()

    def _end(self, watcher: Watcher) -> None:
        with self._lock:
            self._watchers = tuple(each for each in self._watchers if each is not watcher)
            self._settle()

    def _settle(self) -> None:
        """Replace the method if anybody watches it, else put the original back; also after an interrupt in here."""
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
    """Call `scaled` each time a scaler that is enabled has scaled something."""

    def watcher(scaler: GradScaler, outputs: Any) -> Generator[None, Any, None]:
        result = yield
        if scaler.is_enabled() and scaler._scale is not None:
            scaled(outputs, result, scaler._scale)

    return _scale.watched_by(watcher)


def watching_scaler_steps(watcher: Watcher) -> AbstractContextManager[None]:
    """Let `watcher` see each call that steps an optimizer, or leaves the step out as gradients are not finite."""
    return _maybe_step.watched_by(watcher)
