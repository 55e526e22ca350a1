"""Nodes of a graph: what they take, what they are of, calling one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, Function
from torch.autograd.graph import Node

InputMetadata = tuple[tuple[int, ...] | None, torch.dtype, torch.device]


def input_metadata(node: Node) -> list[InputMetadata]:
    """Shape (None for nested tensors), dtype and device of each gradient that `node` takes."""
    metas: list[Any] = node._input_metadata
    return [(None if meta.is_nested_tensor else tuple(meta.shape), meta.dtype, meta.device) for meta in metas]


def input_metadata_of_each(nodes: Iterable[Node]) -> list[tuple[InputMetadata, ...]]:
    """`input_metadata` of many nodes, without a call for each."""
    found: list[tuple[InputMetadata, ...]] = []
    add = found.append
    for node in nodes:
        metas: list[Any] = node._input_metadata
        if len(metas) == 1:
            (meta,) = metas
            add(((None if meta.is_nested_tensor else tuple(meta.shape), meta.dtype, meta.device),))
        else:
            add(tuple(input_metadata(node)))
    return found


def types_of(nodes: Iterable[Node]) -> tuple[Hashable, ...]:
    """The type of each node, to be kept: a custom Function's is referred to weakly. It may be made anew in each forward
    and have tensors in its closures."""
    types = tuple(map(type, nodes))
    of_functions = {kind: ref(kind) for kind in set(types) if issubclass(kind, BackwardCFunction)}
    return tuple([of_functions.get(kind, kind) for kind in types]) if of_functions else types


def notes_on(node: Node) -> dict[str, Any]:
    """A dict in which anybody may put things about a node; it lives as long as the node does."""
    notes: dict[str, Any] = node.metadata  # type: ignore[assignment]
    return notes


def leaf_of(node: Node) -> Tensor:
    """The leaf whose .grad an AccumulateGrad writes."""
    leaf: Tensor = node.variable  # type: ignore[attr-defined]
    return leaf


def leaf_if_any(node: Node) -> Tensor | None:
    """The same of a node without a sequence number: an AccumulateGrad, or one that only raises that a derivative is not
    implemented, which has no leaf."""
    return getattr(node, "variable", None)


def have_grad(unnumbered: Iterable[Node]) -> tuple[bool, ...]:
    """Of each of these nodes without a sequence number whether it has a leaf with a .grad."""
    return tuple([(leaf := leaf_if_any(node)) is not None and leaf.grad is not None for node in unnumbered])


def function_of(node: BackwardCFunction) -> type[Function]:
    """The custom Function whose backward the node runs."""
    function: type[Function] = node._forward_cls  # type: ignore[attr-defined]
    return function


def call_node(node: Node, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Calls the node of a C++ or custom Function: its apply and nothing else. One output comes as a tuple too."""
    outputs = node(*gradients) if callable(node) else node.apply(*gradients)  # type: ignore[attr-defined]
    return outputs if type(outputs) is tuple else (outputs,)
