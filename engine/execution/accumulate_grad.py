"""AccumulateGrad: storing or adding the gradient of a leaf."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Parameter

from ...inspector.torch_private.hooks import post_accumulate_hooks
from ...inspector.torch_private.nodes import call_node, leaf_of
from ...inspector.torch_private.reference_counts import owned_alone
from ...inspector.torch_private.thread_state import grad_layout_is_enforced
from .gradient_layouts import copy_for, layout_of, suits

_SPARSE = (torch.sparse_coo, torch.sparse_csr)


def accumulate(node: Node, gradients: list[Tensor | None], on_hook: Callable[[object], None] | None = None) -> None:
    """Run an AccumulateGrad (accumulate_grad.h), including its post-accumulate hooks.

    The first gradient becomes .grad itself, without a copy, if nothing else holds it and its strides match the leaf's
    or need not (`torch.autograd.enforce_grad_layout_policy`). The node is not called for this: it tests reference
    counts, and the argument tuple of a call from Python adds one.

    Args:
        node: the AccumulateGrad.
        gradients: its input buffer. If anything but this list holds the gradient, it is copied.
        on_hook: called with each hook before it runs.
    """
    if gradients[0] is None:
        return
    leaf = leaf_of(node)
    hooks = post_accumulate_hooks(leaf)
    if on_hook is not None:
        for hook in hooks:
            on_hook(hook)
    frozen = not leaf.requires_grad  # frozen since the forward: it receives no gradient
    if torch.is_grad_enabled() or frozen or not _take(gradients, leaf):
        call_node(node, gradients)  # which also runs the hooks
        return
    for hook in hooks:
        if hook(leaf) is not None:
            raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def accumulate_fitting(node: Node, gradients: list[Tensor | None]) -> None:
    """Run `accumulate` without hooks, with fewer checks for a usual gradient that fits its leaf.

    Must be called without grad mode and without function modes.
    """
    gradient = gradients[0]
    strided = torch.strided
    if type(gradient) is Tensor and gradient.layout is strided and gradient.is_contiguous():
        leaf = leaf_of(node)
        is_plain = type(leaf) in _PLAIN_LEAVES
        if is_plain and leaf.grad is not None:
            node(gradient)  # type: ignore[operator]  # adds in place, whoever holds the gradient
            return
        # others=1: the local name `gradient` is one more reference. As accumulate_grad.h, case 1.1, .grad becomes the
        # detached gradient on the same storage.
        if (
            is_plain
            and leaf.requires_grad
            and leaf.layout is strided
            and leaf.is_contiguous()
            and 0 not in gradient.stride()
            and not gradient._is_zerotensor()
            and owned_alone(gradients, 0, others=1)
            and leaf._post_accumulate_grad_hooks is None
        ):
            made = gradient.detach()
            try:
                if leaf.grad is None:  # otherwise another thread has set it meanwhile, see `_fill`
                    leaf.grad = made
                    return
            except RuntimeError:  # its shape or dtype does not fit
                pass
            del made
    del gradient  # this reference would make `accumulate` copy
    accumulate(node, gradients)


_PLAIN_LEAVES = Tensor, Parameter
"""Types whose attributes no tensor subclass overrides."""


def _fill(leaf: Tensor, make: Callable[[], Tensor]) -> bool:
    """Set the leaf's .grad. Return False if it already has one, possibly set meanwhile by another thread or by `make`.

    No lock is needed: between the last check and the assignment there is no user code, and nothing at which Python
    switches threads.
    """
    with torch._C.DisableTorchFunction():
        if leaf.grad is not None:
            return False
        gradient = make()
        if leaf.grad is not None:
            return False
        leaf.grad = gradient
        return True


def _take(gradients: list[Tensor | None], leaf: Tensor) -> bool:
    """Set the leaf's .grad to its first gradient or a copy of it. Return False if it has one, or if the kinds
    differ."""
    gradient = gradients[0]
    assert gradient is not None
    if gradient.layout is torch.strided:
        if not _plain(gradient, leaf):
            return False
        if gradient.is_contiguous() and leaf.is_contiguous():
            fitting = 0 not in gradient.stride()
        else:
            fitting = suits(layout_of(gradient), layout_of(leaf))
        if (fitting or not grad_layout_is_enforced()) and owned_alone(gradients, 0, others=1):
            return _fill(leaf, gradient.detach)
        return _fill(leaf, lambda: _copy(gradient, leaf))
    if gradient.layout not in _SPARSE:
        return False
    # A compact COO gradient may become .grad without a copy. Later ones are added to its values in place.
    compact = gradient.layout is torch.sparse_coo and gradient._indices().is_contiguous()
    compact = compact and gradient._values().is_contiguous()
    alone = compact and owned_alone(gradients, 0, others=1)
    return _fill(leaf, gradient.detach if alone else gradient.clone)


def _copy(gradient: Tensor, leaf: Tensor) -> Tensor:
    layout = copy_for(layout_of(gradient), layout_of(leaf))
    copy = torch.empty_strided(layout.shape, layout.strides, dtype=gradient.dtype, device=gradient.device)
    return copy.copy_(gradient)


def _plain(gradient: Tensor, leaf: Tensor) -> bool:
    """Return whether both are strided tensors of the same shape, dtype and device, without special cases."""
    return (
        type(gradient) is Tensor
        and gradient.layout is leaf.layout is torch.strided
        and gradient.dtype is leaf.dtype
        and gradient.shape == leaf.shape
        and gradient.device == leaf.device
        and not (leaf.is_nested or gradient._is_zerotensor() or leaf._is_zerotensor())
    )
