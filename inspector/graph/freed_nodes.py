"""Nodes whose saved tensors are freed, and the open stepping sessions that have freed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_any_spent = False  # whether any node was ever spent in this process; usually False, which saves a check per node


class SpentNodes:
    """The nodes that a session has run while it keeps their saved tensors for undo.

    To other backwards these nodes must look freed. For PyTorch's engine each has a pre-hook that raises PyTorch's error
    for a freed graph; for the direct engine each has a note. Both stay on the node after this object is freed, because
    the saved tensors are still alive and must not be used.

    Known limitations: reading `node._saved_result`, or calling a node as a function, does not raise. A custom Function
    that saved tensors raises even if its backward would not have read them.
    """

    def __init__(self) -> None:
        self._handles: dict[Node, RemovableHandle] = {}

    def add(self, node: Node) -> None:
        """Mark a node as run. A node without saved tensors may run again, as in PyTorch."""
        global _any_spent
        if node not in self._handles and holds_saved(node):
            _any_spent = True
            self._handles[node] = own(node.register_prehook(refuse_spent))
            notes_on(node)[_NOTE] = True

    def remove(self, node: Node) -> None:
        """Unmark a node that was undone or freed."""
        handle = self._handles.pop(node, None)
        if handle is not None:
            handle.remove()
            notes_on(node).pop(_NOTE, None)


def any_spent() -> bool:
    """Return whether any node may be spent."""
    return _any_spent


def is_spent(node: Node) -> bool:
    """Return whether a session keeps this node's saved tensors for itself."""
    return _any_spent and _NOTE in notes_on(node)


def is_freed(node: Node) -> bool:
    """Return whether the node is known to be freed by a backward, so that another backward would raise."""
    if is_spent(node):
        return True
    if isinstance(node, BackwardCFunction):  # a node that never reads its saved tensors may run again
        code = getattr(function_of(node).backward, "__code__", None)
        return code is not None and "saved_tensors" in code.co_names and function_is_freed(node)
    return first_freed([node]) is not None


class StepByStep(Protocol):
    """A stepping session. Its graph has no nodes after it ends."""

    @property
    def graph(self) -> Graph: ...

    @property
    def order(self) -> Sequence[int]: ...

    @property
    def left(self) -> int: ...


_sessions: WeakSet[StepByStep] = WeakSet()


def begins(session: StepByStep) -> None:
    """Register a session that starts to run its graph."""
    _sessions.add(session)


def begun_by_session(graph: Graph) -> Iterator[str]:
    """Yield a sentence for each open session that has run some of these nodes and has not ended.

    AccumulateGrad nodes do not count: they save nothing, and all graphs of a model share them.
    """
    nodes = {id(node) for node, task in zip(graph.nodes, graph.tasks, strict=False) if not task.is_leaf}
    for session in [*_sessions]:
        theirs = session.graph
        if theirs is graph or not theirs.nodes or not session.left:
            continue
        ran = [*session.order]
        if any(id(theirs.nodes[task_id]) in nodes for task_id in ran):
            yield (
                f"an open session has run {len(ran):,} of {len(theirs):,} tasks there: session.run() runs the rest, "
                "session.close() ends it, and another backward needs a new forward"
            )
