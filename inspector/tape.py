"""What `th.capture()` gives its user."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from torch.autograd.graph import Node

from .facts import Facts
from .marks import made_during, nodes_of

if TYPE_CHECKING:
    from .graph import Graph


class Tape:
    """One captured forward. `th.graph(loss)` finds what was seen through the nodes; the tape need not be kept.

    Attributes:
        started_ns: `time.perf_counter_ns()` when the capture began.
        error: the exception that ended it, if one did. Then `graph()` gives the graph up to it.
        saves_seen: False where the saved tensors could not be watched: `torch.autograd.graph.saved_tensors_hooks` of
            the user were active around the capture (they keep working, untouched), or such hooks were disabled.
    """

    def __init__(self, facts: Facts) -> None:
        self.started_ns = time.perf_counter_ns()
        self.error: BaseException | None = None
        self.saves_seen = True
        self._facts = facts
        self._frontier: tuple[Node, ...] = ()

    def __repr__(self) -> str:
        return f"<Tape, ended by {type(self.error).__name__}>" if self.error else "<Tape>"

    def graph(self) -> Graph:
        """The graph which a forward that raised had built when it raised.

        Raises:
            ValueError: the forward did not raise (pass its loss to `th.graph` instead), or had built nothing.
        """
        from .walk import graph_of_nodes

        if self.error is None:
            raise ValueError("the captured forward did not raise: pass its result to th.graph(loss)")
        if not self._frontier:
            raise ValueError(f"the forward raised {type(self.error).__name__} before it had built any graph")
        return graph_of_nodes(self._frontier)

    def note_error(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Keeps what an exception's frames still hold of the graph, so that it can be drawn. An exit callback."""
        self.error = error
        nodes: dict[Node, None] = {}
        while traceback is not None:
            for value in list(traceback.tb_frame.f_locals.values()):
                with suppress(Exception):  # a user's container may do anything when it is read
                    nodes.update(dict.fromkeys(nodes_of(value)))
            traceback = traceback.tb_next
        self._frontier = tuple(node for node in nodes if made_during(self._facts, node))
