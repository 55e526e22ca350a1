"""Nodes that part one gradient: each output is a view of it, known without a call. Their edges may be thousands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import torch
from torch.autograd.graph import Node

from ...inspector.graph.graph import TensorMeta
from ...inspector.torch_internals.saved import saved_value
from ..memory.footprint import TaskOutput
from ..memory.layouts import TensorLayout, is_dense

PARTING = ("StackBackward0", "CatBackward0")


def parts_of(
    node: Node, gradient: TensorLayout, dtype: torch.dtype, takes: Mapping[int, TensorMeta]
) -> tuple[TaskOutput, ...] | None:
    """What a node of `PARTING` makes of a gradient (FunctionsManual.cpp, unbind and cat_tensors_backward).

    Args:
        node: the node.
        gradient, dtype: the layout of its one input, and its elements' type.
        takes: by output what the next task takes, of all that go anywhere.

    Returns:
        Its outputs. None where they are not parts as the next tasks take them, or where the shapes don't tell: then the
        node has to be asked.
    """
    if gradient.sparse or any(each.dtype is not dtype for each in takes.values()):
        return None
    dim, dims = saved_value(node, "dim"), len(gradient.shape)
    dim = dim if dim < dims else dim - (1 << 64) + dims  # torch shows a negative number without its sign
    before, after = gradient.shape[:dim], gradient.shape[dim + 1 :]
    shapes = {number: tuple(each.shape or ()) for number, each in takes.items()}
    count = len(node.next_functions)
    if node.name() == "StackBackward0":
        shapes = dict.fromkeys(range(count), before + after) | shapes
        strides = gradient.strides[:dim] + gradient.strides[dim + 1 :]
        known = all(shape == before + after for shape in shapes.values())
    else:
        strides = gradient.strides
        known = all((shape[:dim], shape[dim + 1 :]) == (before, after) for shape in shapes.values())
        # Not where some go nowhere, whose share is not known, nor with the empty vectors which cat leaves out.
        known = known and len(shapes) == count
        known = known and sum(shape[dim] for shape in shapes.values()) == gradient.shape[dim]
    if not known:
        return None
    parts = {shape: TaskOutput("view", 0, _view(gradient, shape, strides), True) for shape in set(shapes.values())}
    return tuple(parts[shapes[number]] for number in range(count))


def _view(gradient: TensorLayout, shape: tuple[int, ...], strides: tuple[int, ...]) -> TensorLayout:
    itemsize = gradient.nbytes // prod(gradient.shape) if gradient.nbytes else 0
    return replace(
        gradient, shape=shape, strides=strides, dense=is_dense(shape, strides), nbytes=prod(shape) * itemsize
    )
