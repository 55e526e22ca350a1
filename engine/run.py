"""The record of one backward."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from ..inspector.graph import Graph
from .schedule import queue_lengths
from .trace import Trace

Engine = Literal["native", "direct"]


@dataclass(frozen=True, eq=False)
class Run:
    """What one backward did.

    Attributes:
        graph: the graph that was run.
        policy: the policy's name.
        engine: "native" or "direct".
        order: the ids of the tasks in the order in which they were executed.
        planned: the policy's order. Equal to `order` unless a task that `inputs=` makes needless was left out.
        elapsed_ns: nanoseconds of the backward itself, without reading the graph and planning.
        trace: what happened to each task; None where it was not recorded.
    """

    graph: Graph
    policy: str
    engine: Engine
    order: tuple[int, ...]
    planned: tuple[int, ...]
    elapsed_ns: int
    trace: Trace | None = None

    def __repr__(self) -> str:
        return (
            f"<Run of {len(self.order)} tasks under {self.policy}, {self.engine} engine: "
            f"{self.elapsed_ns / 1e6:.1f} ms, longest queue {self.longest_queue}>"
        )

    @cached_property
    def queue_lengths(self) -> tuple[int, ...]:
        """How many tasks were ready when each one of `order` was picked, that one included."""
        return tuple(queue_lengths(self.graph, self.order))

    @property
    def longest_queue(self) -> int:
        return max(self.queue_lengths, default=0)

    def save(self, path: str | Path) -> Path:
        """Writes the run as versioned JSON, compressed when large, for `th.load`; see `trace_file.py` for the fields.

        Of the graph all is kept but the nodes, so what they save from the forward is not.
        """
        from .trace_file import save

        return save(self, path)
