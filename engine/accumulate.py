"""What an AccumulateGrad does with the gradient of its leaf."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ..inspector.torch_internals import call_node, leaf_of, owned_alone, post_accumulate_hooks


def accumulate(node: Node, gradients: list[Tensor | None], on_hook: Callable[[object], None] | None) -> None:
    """What an AccumulateGrad does (accumulate_grad.h), its post-accumulate hooks included.

    The first gradient becomes .grad itself, without a copy, where nobody else holds it and its strides suit the leaf's.
    Called from Python the node would always copy, since the call's arguments hold the gradient too.

    Args:
        gradients: its input buffer. Nobody but the caller's list may hold the gradient, or it is copied.
        on_hook: is told of each hook before that runs.
    """
    if gradients[0] is None:
        return
    leaf = leaf_of(node)
    if on_hook is not None:
        for hook in post_accumulate_hooks(leaf):
            on_hook(hook)
    if leaf.grad is None and not torch.is_grad_enabled() and _may_become(gradients, leaf):
        leaf.grad = gradients[0].detach()
        for hook in post_accumulate_hooks(leaf):
            if hook(leaf) is not None:
                raise RuntimeError("Tensor post accumulate grad hooks should return None.")
    else:
        call_node(node, gradients)


def _may_become(gradients: list[Tensor | None], leaf: Tensor) -> bool:
    """Whether the gradient can be the leaf's .grad as it is (accumulate_grad.h, case 1.1)."""
    gradient = gradients[0]
    if type(gradient) is not Tensor or gradient.layout is not torch.strided or leaf.layout is not torch.strided:
        return False
    fits = (gradient.dtype, gradient.device, gradient.shape) == (leaf.dtype, leaf.device, leaf.shape)
    fits = fits and not leaf.is_nested and not gradient._is_zerotensor() and _suits(gradient, leaf)
    del gradient
    return fits and owned_alone(gradients, 0)


def _suits(gradient: Tensor, leaf: Tensor) -> bool:
    """Whether the gradient is laid out as the leaf is (grad_layout_contract.h)."""
    if gradient.is_contiguous() and leaf.is_contiguous():
        return 0 not in gradient.stride()
    if not is_dense(leaf):
        return gradient.is_contiguous()
    pairs = zip(gradient.shape, gradient.stride(), leaf.stride(), strict=True)
    return all(ours == its if size != 1 else ours != 0 for size, ours, its in pairs)


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order of dimensions."""
    if tensor.is_contiguous():
        return True
    if not tensor.numel():
        return True
    steps = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1)
    return steps[0][0] == 1 and all(step * size == next_step for (step, size), (next_step, _) in pairwise(steps))
