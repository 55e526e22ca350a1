"""Running a task's Python hooks as the engine does (engine.cpp, call_function; python_hook.cpp)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.torch_private.engine import calling_engine
from ...inspector.torch_private.hooks import leaf_hooks, node_hooks
from ...inspector.torch_private.nodes import leaf_of
from .graph_task import GraphTask

Gradients = Sequence[Tensor | None]
OnHook = Callable[[str, str], None]
"""Called for each hook that runs, with "tensor", "pre" or "post" and the hook's name."""


def hook_name(hook: Any) -> str:
    """Return the name of a hook."""
    return getattr(hook, "__qualname__", None) or getattr(hook, "__name__", None) or type(hook).__qualname__


def run_leaf_hooks(node: Node, gradients: Gradients, on_hook: OnHook | None) -> Gradients:
    """Run the hooks of a leaf's `register_hook`, which receive None for undefined gradients."""
    for hook in leaf_hooks(leaf_of(node)):
        if on_hook is not None:
            on_hook("tensor", hook_name(hook))
        result = hook(gradients[0])
        if result is not None:
            gradients = _checked(hook, (result,), gradients)
    return gradients


def run_tensor_hooks(graph_task: GraphTask, node: Node, gradients: Gradients, on_hook: OnHook | None) -> Gradients:
    """Run the hooks of the tensors that the node created in the forward."""
    if on_hook is None:
        return graph_task.run_tensor_hooks(node, gradients)
    with _calls_noted(on_hook):
        return graph_task.run_tensor_hooks(node, gradients)


def run_pre_hooks(node: Node, gradients: Gradients, on_hook: OnHook | None) -> Gradients:
    """Run the hooks of `Node.register_prehook`."""
    for hook in node_hooks(node)[0]:
        if on_hook is not None:
            on_hook("pre", hook_name(hook))
        gradients = replaced(hook, hook(tuple(gradients)), gradients)
    return gradients


def run_post_hooks(hooks: Sequence[Any], outputs: Gradients, gradients: Gradients, on_hook: OnHook | None) -> Gradients:
    """Run the hooks of `Node.register_hook`, which receive the outputs as the next tasks will receive them."""
    for hook in hooks:
        if on_hook is not None:
            on_hook("post", hook_name(hook))
        outputs = replaced(hook, hook(tuple(outputs), tuple(gradients)), outputs)
    return outputs


def replaced(hook: Any, result: Any, before: Gradients) -> Gradients:
    """Return a hook's replacement gradients after checks; a result of None keeps the gradients."""
    if result is None:
        return before
    if not isinstance(result, tuple):
        raise TypeError(f"expected tuple, but hook '{_own_name(hook)}' returned '{type(result).__name__}'")
    return _checked(hook, result, before)


def _checked(hook: Any, result: tuple[Any, ...], before: Gradients) -> Gradients:
    name = _own_name(hook)
    if len(result) != len(before):
        raise RuntimeError(
            f"hook '{name}' has returned an incorrect number of values (got {len(result)}, but expected {len(before)})"
        )
    for new, old in zip(result, before, strict=True):
        if new is None:
            continue
        if old is None:
            raise RuntimeError("can't replace a None gradient with a non-None value")
        if not isinstance(new, Tensor):
            raise TypeError(f"expected Variable, but hook '{name}' returned '{type(new).__name__}'")
        if (new.dtype, new.device, new.layout) != (old.dtype, old.device, old.layout):
            raise RuntimeError(f"hook '{name}' has changed the type of value (was {old.type()} got {new.type()})")
        if new.shape != old.shape:
            raise RuntimeError(f"hook '{name}' has changed the size of value")
    return result


def _own_name(hook: Any) -> str:
    """Return the hook's name as in torch's errors."""
    return getattr(hook, "__name__", "<unknown>")


@contextmanager
def _calls_noted(on_hook: OnHook) -> Iterator[None]:
    """Record the Python functions that the engine calls meanwhile; tensor hooks cannot be listed in another way.

    This uses `sys.setprofile`, so it does nothing while a user's profiler is active. Builtins (`some_list.append`) are
    not recorded.
    """
    if sys.getprofile() is not None:
        yield
        return

    def note(frame: FrameType, event: str, argument: object) -> None:
        caller = frame.f_back
        by_engine = event == "call" and caller is not None and caller.f_code is calling_engine.__code__
        if by_engine:
            on_hook("tensor", frame.f_code.co_qualname)

    def end() -> None:
        if sys.getprofile() is note:  # unless a hook has set another one
            sys.setprofile(None)

    try:
        try:
            sys.setprofile(note)
            yield
        finally:
            end()
    finally:
        end()  # once more, as an interrupt may come at any line


class Hook(NamedTuple):
    """A hook that ran.

    Attributes:
        kind: "tensor", "retain_grad", "pre", "post" or "post_accumulate"; see `TaskRecord.hooks`.
        name: the function's `__qualname__`, or the class of another callable.
    """

    kind: str
    name: str
