"""Nodes whose saved tensors are freed, and the open stepping sessions that have freed them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol
from weakref import WeakSet

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from ..torch_private.hooks import own
from ..torch_private.nodes import function_of, notes_on
from ..torch_private.saved_variables import first_freed, function_is_freed, holds_saved, refuse_spent
from .graph import Graph

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


class StepByStep(Protocol):
    """A session. Its graph has no nodes any more once it is over."""

    @property
    def graph(self) -> Graph: ...

    @property
    def order(self) -> Sequence[int]: ...

    @property
    def left(self) -> int: ...


_sessions: WeakSet[StepByStep] = WeakSet()


def begins(session: StepByStep) -> None:
    """From here on it runs its graph."""
    _sessions.add(session)


def begun_by_session(graph: Graph) -> Iterator[str]:
    """A sentence for each open session that has run some of these nodes, and is not at its end."""
    nodes = set(map(id, graph.nodes))
    for session in [*_sessions]:
        theirs = session.graph
        if theirs is graph or not theirs.nodes or not session.left:
            continue
        ran = [*session.order]
        if any(id(theirs.nodes[task_id]) in nodes for task_id in ran):
            yield (
                f"an open session has run {len(ran):,} of {len(theirs):,} tasks there: its run() goes on, its close() "
                "ends it, and another backward needs a fresh forward"
            )
