"""The order of a backward that a plan for mirroring was made for: its peak is predicted for no other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...inspector.graph.graph import Graph
from ..queue.policy import Policy

if TYPE_CHECKING:
    from .problem import Problem


@dataclass(frozen=True, slots=True)
class GraphOrder:
    """An order of one graph's tasks.

    Attributes:
        name: of the policy that planned it.
        tasks: the ids of the tasks.
        graph: `graph_digest` of the graph.
    """

    name: str
    tasks: tuple[int, ...]
    graph: str

    @property
    def policy(self) -> Policy:
        """What runs a backward in this order. It raises ValueError on another graph."""
        return Policy(f"planned {self.name}", f"{self.name}, for a mirrored forward", plan=self._plan)

    def _plan(self, problem: Problem, ran: Sequence[int]) -> list[int]:
        graph = problem.graph
        if graph_digest(graph) != self.graph:
            why = f"of {len(self.tasks):,} tasks, where this one has {len(graph):,}"
            if len(self.tasks) == len(graph):
                why = "whose tasks, edges or sizes are others"
            raise ValueError(f"this order was planned for another graph, {why}; plan again, with ts.plan_recompute")
        gone, runs = set(ran), set(problem.tasks)
        return [*ran, *(task for task in self.tasks if task in runs and task not in gone)]


def graph_digest(graph: Graph) -> str:
    """Equal for the graphs of equal forwards: 16 hexadecimal digits."""
    found = hashlib.sha256()
    for task in graph.tasks:
        found.update(f"{task.name} {task.inputs}\n".encode())
    for edge in graph.edges:
        found.update(f"{edge.task} {edge.output} {edge.next_task} {edge.input}\n".encode())
    found.update(repr(graph.roots).encode())
    return found.hexdigest()[:16]
