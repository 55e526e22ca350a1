"""Which gradients come into each module call and which leave it, so that their norms can be compared."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ...inspector.graph.graph import Graph
from ..queue.named_tasks import calls_of

Port = tuple[int, int]
"""A task and the number of one of its inputs or outputs."""


@dataclass(slots=True)
class _Call:
    """One module call: its ports, and the norms that are known."""

    enters: set[Port] = field(default_factory=set)
    leaves: set[Port] = field(default_factory=set)
    came: dict[Port, float] = field(default_factory=dict)
    left: dict[Port, float] = field(default_factory=dict)


class ModuleFlow:
    """Follows the norms of the gradients that come into module calls and leave them.

    A gradient comes in at an input of a task of the call which is fed from outside, and leaves with an edge to a task
    outside that is no leaf. Several count together as one long vector; those that leave towards one tensor in parts
    (queries, keys and values) are not added up.

    Args:
        calls: the ids of the module calls that are followed.
        needed: the tasks that run at all; None: all.
    """

    def __init__(self, graph: Graph, calls: Collection[int], needed: Collection[int] | None) -> None:
        self._calls = {call: _Call() for call in calls}
        self._entered_at: dict[Port, list[int]] = {}
        self._left_at: dict[Port, list[int]] = {}
        self._ports: dict[int, set[Port]] = {}  # by task
        around: dict[int | None, frozenset[int]] = {None: frozenset()}
        for task in graph.tasks:
            if task.call not in around:
                around[task.call] = frozenset(calls_of(graph, task.id)).intersection(self._calls)
        tasks = graph.tasks
        for root in graph.roots:
            self._enter(around[tasks[root.task].call], (root.task, root.input))
        for edge in graph.edges:
            if tasks[edge.next_task].is_leaf or (needed is not None and edge.next_task not in needed):
                continue
            here, there = around[tasks[edge.task].call], around[tasks[edge.next_task].call]
            if here != there:
                self._leave(here - there, (edge.task, edge.output))
                self._enter(there - here, (edge.next_task, edge.input))

    def _enter(self, calls: Iterable[int], port: Port) -> None:
        for call in calls:
            self._calls[call].enters.add(port)
            self._entered_at.setdefault(port, []).append(call)
            self._ports.setdefault(port[0], set()).add(port)

    def _leave(self, calls: Iterable[int], port: Port) -> None:
        for call in calls:
            self._calls[call].leaves.add(port)
            self._left_at.setdefault(port, []).append(call)
            self._ports.setdefault(port[0], set()).add(port)

    def asks_input(self, port: Port) -> bool:
        return port in self._entered_at

    def asks_output(self, port: Port) -> bool:
        return port in self._left_at

    def came(self, port: Port, norm: float) -> list[tuple[int, float, float]]:
        """The norm of an input is known. Returns the calls that are thereby, with the norms that came in and left."""
        return self._know(port, norm, entered=True)

    def left(self, port: Port, norm: float) -> list[tuple[int, float, float]]:
        """The same of an output."""
        return self._know(port, norm, entered=False)

    def _know(self, port: Port, norm: float, entered: bool) -> list[tuple[int, float, float]]:
        done = []
        for number in (self._entered_at if entered else self._left_at).get(port, ()):
            call = self._calls[number]
            (call.came if entered else call.left)[port] = norm
            if len(call.came) == len(call.enters) and len(call.left) == len(call.leaves) and call.leaves:
                done.append((number, _together(call.came), _together(call.left)))
        return done

    def forget(self, task_ids: Collection[int]) -> None:
        """These tasks have not run after all."""
        for task_id in task_ids:
            for port in self._ports.get(task_id, ()):
                for call in self._entered_at.get(port, ()):
                    self._calls[call].came.pop(port, None)
                for call in self._left_at.get(port, ()):
                    self._calls[call].left.pop(port, None)


def _together(norms: dict[Port, float]) -> float:
    return math.hypot(*norms.values())
