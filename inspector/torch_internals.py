"""Everything of torch that is private, in one place.

tests/inspector/test_torch_internals.py checks each function's promise, so that a torch release which changes one fails there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import FrameSummary
from typing import Any, NewType

import torch
from torch._C._profiler import gather_traceback
from torch.autograd.function import Function
from torch.autograd.graph import Node
from torch.utils._traceback import CapturedTraceback

if not hasattr(torch.autograd, "_get_sequence_nr"):
    raise ImportError(f"tapehead needs torch >= 2.11; this is torch {torch.__version__}")

sequence_nr: Callable[[], int] = torch.autograd._get_sequence_nr
"""The sequence number which the next node of this thread will get."""


UNNUMBERED = 2**64 - 1
"""The sequence number of each AccumulateGrad: the engine runs them first of all (accumulate_grad.h)."""


def input_metadata(node: Node) -> list[tuple[tuple[int, ...] | None, torch.dtype, torch.device]]:
    """Shape (None for nested tensors), dtype and device of each gradient that `node` takes."""
    found: list[Any] = []
    for meta in node._input_metadata:  # type: ignore[attr-defined]
        nested = meta.is_nested_tensor or meta.is_cpp_nested_tensor
        found.append((None if nested else tuple(meta.shape), meta.dtype, meta.device))
    return found


Traceback = NewType("Traceback", object)


def capture_traceback() -> Traceback:
    """The Python stack of the caller, not yet turned into lines: about two microseconds."""
    return Traceback(gather_traceback(python=True, script=False, cpp=False))


def traceback_frames(traceback: Traceback) -> list[FrameSummary]:
    """The lines of a captured stack, outermost first."""
    return list(CapturedTraceback(traceback).summary())


def saved_tensor_hooks_in_use() -> bool:
    """Whether hooks for saved tensors are active or forbidden here, so that none may be put on top of them."""
    autograd = torch._C._autograd
    return autograd._top_saved_tensors_default_hooks(True) is not None or not autograd._saved_tensors_hooks_is_enabled()


ApplyWatcher = Callable[[type[Function], int, Any], None]
_apply_watchers: list[ApplyWatcher] = []
_apply_lock = threading.Lock()
_original_apply = Function.__dict__["apply"]


@contextmanager
def watch_function_apply(watcher: ApplyWatcher) -> Iterator[None]:
    """Calls `watcher(SomeFunction, sequence number before, result)` after each `SomeFunction.apply`, in any thread.

    torch has no hook for this. `Function.apply` itself is replaced while at least one watcher is there.
    """
    with _apply_lock:
        _apply_watchers.append(watcher)
        Function.apply = classmethod(_watched_apply)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        with _apply_lock:
            _apply_watchers.remove(watcher)
            if not _apply_watchers:
                Function.apply = _original_apply


def _watched_apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
    start = sequence_nr()
    result = _original_apply.__get__(None, cls)(*args, **kwargs)
    for watcher in tuple(_apply_watchers):
        watcher(cls, start, result)
    return result
