"""The kinds of nodes, and the kind and short name of a node."""

from __future__ import annotations

import re
from enum import StrEnum

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from ..torch_private.nodes import function_of


class Kind(StrEnum):
    """The kind of a task's node. The values are the names in exports and style sheets.

    Attributes:
        CPP: generated C++ nodes: MmBackward0, ReluBackward0, ...
        FUNCTION: a user's torch.autograd.Function.
        ACCUMULATE_GRAD: writes .grad of a leaf.
        COPY_SLICES: an in-place write into a view.
        COMPILED: a torch.compile region: one opaque node.
        CHECKPOINT: torch.utils.checkpoint(use_reentrant=True).
        MODULE_HOOK: the identity nodes of nn.Module full backward hooks.
        ERROR: nodes that raise when they run: not implemented, not differentiable.
        PRIMITIVE: a function of HIPS autograd with its vjp.
        FAILED: the call that ended a forward with an error. Only pictures have it, since it made no node.
        UNTRACKED: a tensor without a gradient: a frozen parameter, a buffer, an input. Only pictures have it.
    """

    CPP = "cpp"
    FUNCTION = "function"
    ACCUMULATE_GRAD = "accumulate_grad"
    COPY_SLICES = "copy_slices"
    COMPILED = "compiled"
    CHECKPOINT = "checkpoint"
    MODULE_HOOK = "module_hook"
    ERROR = "error"
    PRIMITIVE = "primitive"
    FAILED = "failed"
    UNTRACKED = "untracked"


ARGUMENT = "Argument"
"""The name of the leaf task in a tape of HIPS autograd, which stands for the differentiated argument."""

KIND_TITLES = {
    Kind.CPP: "C++ node",
    Kind.FUNCTION: "custom Function",
    Kind.ACCUMULATE_GRAD: "AccumulateGrad",
    Kind.COPY_SLICES: "CopySlices (in-place write)",
    Kind.COMPILED: "compiled region",
    Kind.CHECKPOINT: "reentrant checkpoint",
    Kind.MODULE_HOOK: "module backward hook",
    Kind.ERROR: "raises when run",
    Kind.PRIMITIVE: "HIPS autograd primitive",
    Kind.FAILED: "raised in the forward",
    Kind.UNTRACKED: "no gradient: frozen, buffer, input or detached",
}

_CPP_KINDS = {
    "AccumulateGrad": Kind.ACCUMULATE_GRAD,
    "CopySlices": Kind.COPY_SLICES,
    "Error": Kind.ERROR,
    "DelayedError": Kind.ERROR,
    "NotImplemented": Kind.ERROR,
}
_TORCH_FUNCTION_KINDS = {
    "CompiledFunction": Kind.COMPILED,
    "CheckpointFunction": Kind.CHECKPOINT,
    "BackwardHookFunction": Kind.MODULE_HOOK,
}


def kind_of(node: Node) -> Kind:
    """Return the kind of a node: by its name for a C++ node, by its class for a Function of torch itself."""
    if not isinstance(node, BackwardCFunction):
        return _CPP_KINDS.get(node.name().rsplit("::", 1)[-1], Kind.CPP)
    function = function_of(node)
    own = function.__module__.startswith("torch.")
    return _TORCH_FUNCTION_KINDS.get(function.__name__, Kind.FUNCTION) if own else Kind.FUNCTION


def short_name(name: str) -> str:
    """Return the name without namespace and suffix: `Mm` for `MmBackward0`, `CopySlices` for its C++ name."""
    name = name.rsplit("::", 1)[-1]
    return re.sub(r"Backward\d*$", "", name) or name
