"""Arrays of a taped forward that are still alive. Needs the package `autograd`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .tape import HipsTape
from .tape_nodes import RecordedNode, owner_of


class ForwardArray(NamedTuple):
    """An array of the forward: the node that made it, and the (task, name) pairs of the formulas that keep it alive."""

    owner: np.ndarray[Any, Any]
    made_by: RecordedNode
    keepers: tuple[tuple[int, str], ...]


def forward_arrays(tape: HipsTape) -> list[ForwardArray]:
    """Return the arrays made by the forward's nodes that formulas (`vjp`) or the user's code keep alive.

    References through objects that are neither functions nor containers are not attributed to a formula.
    """
    nodes = tape.nodes
    given = {id(owner) for each in nodes[-1].made if (owner := each()) is not None}
    makers: dict[int, tuple[np.ndarray[Any, Any], RecordedNode]] = {}
    for node in nodes[:-1]:
        for each in node.made:
            owner = each()
            if owner is not None and id(owner) not in given:
                makers.setdefault(id(owner), (owner, node))
    keepers: dict[int, dict[tuple[int, str], None]] = {}
    for task_id, node in enumerate(nodes):
        for name, value in kept_by(node):
            owner = owner_of(value)
            if id(owner) in makers:
                keepers.setdefault(id(owner), {})[task_id, name] = None
    return [ForwardArray(owner, node, tuple(keepers.get(key, ()))) for key, (owner, node) in makers.items()]


def kept_by(node: RecordedNode) -> Iterator[tuple[str, Any]]:
    """Yield the arrays that a node's formula keeps alive, with their variable names."""
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("vjp", node.vjp)]
    while stack:
        name, value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, tuple | list):
            stack += [(name, each) for each in value]
        elif isinstance(value, dict):
            stack += [(name, each) for each in value.values()]
        elif isinstance(value, partial):
            stack += [(name, each) for each in (value.func, *value.args, *value.keywords.values())]
        elif (cells := getattr(value, "__closure__", None)) is not None:
            for free, cell in zip(value.__code__.co_freevars, cells, strict=True):
                if cell != _EMPTY:
                    stack.append((free, cell.cell_contents))


_EMPTY = type((lambda value: lambda: value)(0).__closure__[0])()  # type: ignore[index]
"""An empty closure cell; empty cells are equal to it."""
