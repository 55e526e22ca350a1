"""Hooks of nodes and leaves, and which of them are ours."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn.modules.module import _WrappedHook
from torch.utils.hooks import RemovableHandle

from .saved import refuse_spent

Hooks = list[Callable[..., Any]]

ModuleHook = _WrappedHook
"""Registered by torch at a node for a hook of `Module.register_backward_hook`; it has that hook and its module."""


def node_hooks(node: Node) -> tuple[Hooks, Hooks]:
    """The Python pre-hooks (`register_prehook`) and post-hooks (`register_hook`) of a node, in running order.

    torch lists them nowhere, but a handle knows the dict in which it stands.
    """
    return _hooks_of(own(node.register_prehook(_no_hook))), _hooks_of(own(node.register_hook(_no_hook)))


def hook_dicts(node: Node) -> list[dict[int, Any]]:
    """The dicts in which those hooks stand, by the numbers of their handles; those that have any."""
    found = []
    for register in (node.register_prehook, node.register_hook):
        handle = own(register(_no_hook))
        hooks: dict[int, Any] | None = handle.hooks_dict_ref()
        handle.remove()
        if hooks:
            found.append(hooks)
    return found


def _no_hook(*args: Any) -> None:
    """Is taken away at once, and does no harm where an interrupt prevents that."""


def _hooks_of(handle: RemovableHandle) -> Hooks:
    try:
        hooks = handle.hooks_dict_ref()
    finally:
        handle.remove()
    return [hook for hook in hooks.values() if hook is not refuse_spent] if hooks else []


_own_handles = itertools.count(1)  # counts without a lock


_owned = 0


def own(handle: RemovableHandle) -> RemovableHandle:
    """Notes that a hook is ours, not the user's."""
    global _owned
    _owned = next(_own_handles)
    return handle


def hooks_registered() -> int:
    """How many hooks users have registered in this process so far; those that were removed, too."""
    return RemovableHandle.next_id - _owned


def post_accumulate_hooks(leaf: Tensor) -> Hooks:
    """The hooks of `leaf.register_post_accumulate_grad_hook`, in running order."""
    return list((leaf._post_accumulate_grad_hooks or {}).values())


def set_post_accumulate_hooks(leaf: Tensor, hooks: OrderedDict[int, Any] | None) -> None:
    """Binds a leaf's dict of post-accumulate-grad hooks; None removes the hooks.

    torch's setter ignores None in C++: the leaf goes on to run the hooks of the dict before, and to keep it alive,
    until it is given another one. So it gets an empty dict first.
    """
    if hooks is None:
        leaf._post_accumulate_grad_hooks = OrderedDict()
    leaf._post_accumulate_grad_hooks = hooks  # type: ignore[assignment]


def leaf_hooks(leaf: Tensor) -> Hooks:
    """The hooks of `leaf.register_hook`, in running order."""
    return list((leaf._backward_hooks or {}).values())
