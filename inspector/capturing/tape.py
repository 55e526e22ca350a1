"""What `ts.capture()` gives its user."""

from __future__ import annotations

import time
import traceback
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from torch.autograd.graph import Node

from ..graph.facts import Facts
from ..graph.marks import made_during, nodes_of
from ..graph.source import innermost_user_line

if TYPE_CHECKING:
    from ..graph.graph import Graph


class Tape:
    """One captured forward. `ts.graph(loss)` finds what was seen through the nodes; the tape need not be kept.

    Attributes:
        started_ns: `time.perf_counter_ns()` when the capture began.
        error: the exception that ended it, if one did. Then `graph()` gives the graph up to it.
    """

    def __init__(self, facts: Facts) -> None:
        self.started_ns = time.perf_counter_ns()
        self.error: BaseException | None = None
        self._facts = facts
        self._frontier: tuple[Node, ...] = ()

    def __repr__(self) -> str:
        return f"<Tape, ended by {type(self.error).__name__}>" if self.error else "<Tape>"

    def restart(self, facts: Facts) -> None:
        """The capture has begun a new record."""
        self.started_ns = time.perf_counter_ns()
        self._facts = facts

    def graph(self) -> Graph:
        """The graph which a forward that raised had built when it raised.

        Raises:
            ValueError: the forward did not raise (pass its loss to `ts.graph` instead), or had built nothing.
        """
        from .walk import graph_of_nodes

        if self.error is None:
            raise ValueError("the captured forward did not raise: pass its result to ts.graph(loss)")
        if not self._frontier:
            raise ValueError(f"the forward raised {type(self.error).__name__} before it had built any graph")
        where = innermost_user_line(traceback.extract_tb(self.error.__traceback__))
        message = str(self.error).partition("\n")[0]
        raised = f"{type(self.error).__name__}{f' at {where.short}' if where else ''}{': ' if message else ''}{message}"
        return replace(graph_of_nodes(self._frontier), raised=raised)

    def note_error(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """Keeps what an exception's frames still hold of the graph, so that it can be drawn. An exit callback."""
        self.error = error
        nodes: dict[Node, None] = {}
        while frames is not None:
            for value in list(frames.tb_frame.f_locals.values()):
                with suppress(Exception):  # a user's container may do anything when it is read
                    nodes.update(dict.fromkeys(nodes_of(value)))
            frames = frames.tb_next
        self._frontier = tuple(node for node in nodes if made_during(self._facts, node))
