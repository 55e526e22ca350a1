"""Hooks of nodes and leaves, and the tensors whose gradients are retained."""

from __future__ import annotations

import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.autograd.graph import Node
from torch.nn.modules.module import _WrappedHook
from torch.utils.hooks import RemovableHandle

from .compiled import keep_compiler_out
from .saved_variables import refuse_spent

Hooks = list[Callable[..., Any]]

ModuleHook = _WrappedHook
"""The hook that torch registers at a node for `Module.register_backward_hook`; it has the user's hook and module."""


def node_hooks(node: Node) -> tuple[Hooks, Hooks]:
    """Return the Python pre-hooks (`register_prehook`) and post-hooks (`register_hook`) of a node, in running order.

    torch does not list them, but the handle of a newly registered hook refers to the dict of all hooks.
    """
    before, after = ([hook for hook in each.values() if hook is not refuse_spent] for each in _dicts_of(node))
    return before, after


def hook_dicts(node: Node) -> list[dict[int, Any]]:
    """Return the non-empty dicts of a node's pre-hooks and post-hooks, keyed by handle id."""
    return [hooks for hooks in _dicts_of(node) if hooks]


def _dicts_of(node: Node) -> tuple[dict[int, Any], dict[int, Any]]:
    with own(node.register_prehook(_no_hook)) as handle:
        before = handle.hooks_dict_ref()
    with register_post_hook(node, _no_hook) as handle:
        after = handle.hooks_dict_ref()
    return before or {}, after or {}


def _no_hook(*args: Any) -> None:
    """A hook that is removed at once, and is harmless if an interrupt prevents the removal."""


_own_handles = itertools.count(1)  # counts without a lock


_owned = 0


def own(handle: RemovableHandle) -> RemovableHandle:
    """Mark a hook as ours rather than the user's."""
    global _owned
    try:
        _owned = next(_own_handles)
        return handle
    except BaseException:  # Ctrl-C: the caller never receives the handle
        handle.remove()
        raise


def register_post_hook(node: Node, hook: Callable[..., Any]) -> RemovableHandle:
    """Register a post-hook of ours. torch counts the node as one with post-hooks even after the hook is removed."""
    if isinstance(node, BackwardCFunction):
        provide_input_grad_buffers()
    return own(node.register_hook(hook))


_buffers: property | None = vars(FunctionCtx).get("input_grad_buffers")  # torch 2.15


def provide_input_grad_buffers() -> None:
    """Let custom Functions read `ctx.input_grad_buffers` if the engine only refuses because of us.

    It refuses for a node with post-hooks, including ours, and for a node called from Python, as in the direct engine.
    Each buffer is then None, the same as before a gradient has reached the input, and the backward returns a new
    tensor.
    """
    if _buffers is not None and vars(FunctionCtx)["input_grad_buffers"] is _buffers:
        FunctionCtx.input_grad_buffers = property(_input_grad_buffers, doc=_buffers.__doc__)  # type: ignore[attr-defined]


def _input_grad_buffers(node: Any) -> tuple[Tensor | None, ...]:
    assert _buffers is not None and _buffers.fget is not None
    try:
        found: tuple[Tensor | None, ...] = _buffers.fget(node)
        return found
    except RuntimeError:
        current: Any = torch._C._current_autograd_node()
        # torch itself refuses in these cases.
        if torch.is_grad_enabled() or torch.is_anomaly_enabled() or current is not node:
            raise
        if not all(map(_is_ours, node_hooks(node)[1])):
            raise
    needed: tuple[bool, ...] = node.needs_input_grad
    return (None,) * len(needed)


_PACKAGE = __name__.partition(".inspector.")[0]


def _is_ours(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    return str(getattr(hook, "__module__", "")).startswith(f"{_PACKAGE}.")


def hooks_registered() -> int:
    """Return the number of hooks that users have registered in this process so far, including removed ones."""
    return RemovableHandle.next_id - _owned


def post_accumulate_hooks(leaf: Tensor) -> Hooks:
    """Return the hooks of `leaf.register_post_accumulate_grad_hook`, in running order."""
    return list((leaf._post_accumulate_grad_hooks or {}).values())


def set_post_accumulate_hooks(leaf: Tensor, hooks: OrderedDict[int, Any] | None) -> None:
    """Set a leaf's dict of post-accumulate-grad hooks; None removes the hooks.

    torch's setter ignores None in C++: the leaf keeps running the hooks of the previous dict, and keeps it alive. So an
    empty dict is set first.
    """
    if hooks is None:
        leaf._post_accumulate_grad_hooks = OrderedDict()
    leaf._post_accumulate_grad_hooks = hooks  # type: ignore[assignment]


def leaf_hooks(leaf: Tensor) -> Hooks:
    """Return the hooks of `leaf.register_hook`, in running order."""
    return list((leaf._backward_hooks or {}).values())


_retain_grad: Any = vars(torch._C.TensorBase)["retain_grad"]


class _Noting:
    """A descriptor for `torch.Tensor.retain_grad` that returns torch's own method and records the tensor.

    A replacement function would be visible to torch.compile and to modes; with a descriptor, `torch.Tensor.retain_grad`
    is still torch's own method. Calls through the class are not recorded, except that the access itself is. torch's own
    tables also access it, but only compare it.

    Attributes:
        accesses: number of times a tensor's method was accessed.
        tensors: those tensors, by `id`.
        taken_from_class: whether the method was accessed on the class.
    """

    def __init__(self) -> None:
        self.accesses = 0
        self.tensors: dict[int, ref[Tensor]] = {}
        self.taken_from_class = False
        self._counter = itertools.count(1)  # counts without a lock

    def __get__(self, tensor: Tensor | None, kind: type) -> Callable[..., None]:
        if tensor is None:
            taker = str(sys._getframe(1).f_globals.get("__name__"))
            self.taken_from_class |= not taker.startswith(_TABLES)
        else:
            self.note(tensor)
            self.accesses = next(self._counter)
        method: Callable[..., None] = _retain_grad.__get__(tensor, kind)
        return method

    def note(self, tensor: Tensor) -> None:
        number = id(tensor)
        self.tensors[number] = ref(tensor, partial(self._forget, number))

    def _forget(self, number: int, dead: ref[Tensor]) -> None:
        if self.tensors.get(number) is dead:
            del self.tensors[number]


for _called_in_compiled_code in (_Noting.__get__, _Noting._forget):
    keep_compiler_out(_called_in_compiled_code)

_TABLES = "torch._dynamo.", "torch.overrides"

noting = _Noting()
"""The installed descriptor. Its `accesses` count changes if a tensor may have been made to retain its gradient."""

_complete = False


def start_noting_retained() -> None:
    """Start recording the tensors that are made to retain their gradient."""
    if "retain_grad" not in vars(Tensor):
        Tensor.retain_grad = noting  # type: ignore[method-assign, assignment]


def note_already_retained(tensors: Iterable[Tensor]) -> None:
    """Record tensors that retained their gradient before `start_noting_retained`. The list is complete from then on."""
    global _complete
    for tensor in tensors:
        noting.note(tensor)
    _complete = True


def retaining() -> list[Tensor] | None:
    """Return the tensors of this process that retain their gradient, or None if they are not all known.

    They are not if C++ may have been called directly, by TorchScript or `torch.ops`, or if `retain_grad` was replaced.

    Known limitation: TorchScript that was loaded from a file and retains gradients is not detected.
    """
    unseen = (
        not _complete
        or vars(Tensor).get("retain_grad") is not noting
        or noting.taken_from_class
        or "retain_grad" in vars(torch.ops.aten)
        or torch.jit._state._python_cu.get_functions()  # type: ignore[func-returns-value]
        or torch.jit._recursive.concrete_type_store.type_store
    )
    if unseen:
        return None
    tensors = [each() for each in tuple(noting.tensors.values())] if noting.tensors else []
    return [tensor for tensor in tensors if tensor is not None and tensor.retains_grad]
