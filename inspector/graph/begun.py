"""Graphs that a session is running step by step: who comes upon what it has freed is told that it is open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol
from weakref import WeakSet

from .graph import Graph


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
