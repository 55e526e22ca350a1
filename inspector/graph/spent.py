"""Nodes that have run and keep what they saved: to everybody but the session that keeps it they are freed."""

from __future__ import annotations

from collections.abc import Iterable

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from ..torch_internals.hooks import own
from ..torch_internals.nodes import function_of, notes_on
from ..torch_internals.saved import first_freed, function_is_freed, holds_saved, refuse_spent

_NOTE = "tapescope_spent"
_any_spent = False  # in this process, ever: most never ask a node


class SpentNodes:
    """The nodes that a session has run and has not let free what they saved.

    PyTorch's engine finds a pre-hook on each, which raises its own error for a graph that has been freed; our engine
    finds a note. Both stay on the node when this object goes: what it saved lives on, and nobody may use it.

    Known limitations. Who reads `node._saved_result`, or calls a node as a function, is not stopped. A custom Function
    that saved tensors is refused even if its backward would not have looked at them.
    """

    def __init__(self) -> None:
        self._handles: dict[Node, RemovableHandle] = {}

    def add(self, node: Node) -> None:
        """The node has run. One that keeps nothing may run again, as in PyTorch."""
        global _any_spent
        if node not in self._handles and holds_saved(node):
            _any_spent = True
            self._handles[node] = own(node.register_prehook(refuse_spent))
            notes_on(node)[_NOTE] = True

    def remove(self, node: Node) -> None:
        """The node has not run, or has been freed."""
        handle = self._handles.pop(node, None)
        if handle is not None:
            handle.remove()
            notes_on(node).pop(_NOTE, None)


def is_spent(node: Node) -> bool:
    """Whether a session keeps for itself what this node saved."""
    return _any_spent and _NOTE in notes_on(node)


def first_over(nodes: Iterable[Node]) -> Node | None:
    """The first of the nodes through which a backward has run, as far as that can be told: another one would raise."""
    return next(filter(is_over, nodes), None)


def is_over(node: Node) -> bool:
    """Whether a backward has run through the node, as far as that can be told: another one would raise."""
    return is_spent(node) or _is_freed(node)


def _is_freed(node: Node) -> bool:
    if isinstance(node, BackwardCFunction):  # one that never looks at what it saved may run again
        code = getattr(function_of(node).backward, "__code__", None)
        return code is not None and "saved_tensors" in code.co_names and function_is_freed(node)
    return first_freed([node]) is not None
