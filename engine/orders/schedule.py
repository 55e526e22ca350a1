"""The order in which a policy would run a graph: nothing is executed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ...inspector.graph.graph import Graph
from ..queue.pending import Pending
from ..queue.policy import AnyPolicy, Choice, Policy
from ..queue.ready_queue import ready_queue
from ..queue.stages import has_stages, stage_numbers
from .planning import order_of
from .policies import POLICIES, find_policy

if TYPE_CHECKING:
    from ..memory.footprint import Footprints

_stages: WeakKeyDictionary[Graph, dict[frozenset[int] | None, list[int]]] = WeakKeyDictionary()


class _Staged(Pending):
    """The same where tasks wait for their stage, too (`stages`)."""

    def __init__(self, graph: Graph, needed: Collection[int] | None, stages: Sequence[int]) -> None:
        super().__init__(graph, needed)
        self._stages = stages
        self._stage = 0
        self._left = [0] * (max(stages, default=0) + 1)
        self._aside: list[list[int]] = [[] for _ in self._left]
        for stage in stages:
            if stage >= 0:
                self._left[stage] += 1

    def start(self) -> list[int]:
        return self._among_allowed(super().start())

    def run(self, task_id: int) -> list[int]:
        self._left[self._stages[task_id]] -= 1
        return self._among_allowed(super().run(task_id))

    def _among_allowed(self, arrived: list[int]) -> list[int]:
        """Puts aside what belongs to a later stage, and adds what was put aside for one that begins."""
        ready: list[int] = []
        for task_id in arrived:
            stage = self._stages[task_id]
            (ready if stage <= self._stage else self._aside[stage]).append(task_id)
        while not self._left[self._stage] and self._stage + 1 < len(self._left):
            self._stage += 1
            ready += self._aside[self._stage]
        return ready


def stages(graph: Graph, needed: Collection[int] | None = None) -> list[int] | None:
    """By task the stage in which it runs, -1 for those that don't; None where there is one alone."""
    if not has_stages(graph):
        return None
    known = _stages.setdefault(graph, {})
    runs = None if needed is None else frozenset(needed)
    if runs not in known:
        known[runs] = stage_numbers(graph, _chosen(graph, POLICIES["heap"], Pending(graph, needed)))
    return known[runs]


def allowed(graph: Graph, needed: Collection[int] | None = None) -> Pending:
    """What gets ready, of that what may run: the same but under `fully_shard`, whose stages every order keeps."""
    numbers = stages(graph, needed)
    return Pending(graph, needed) if numbers is None else _Staged(graph, needed, numbers)


def schedule(
    graph: Graph,
    policy: AnyPolicy,
    needed: Collection[int] | None = None,
    ran: Sequence[int] = (),
    footprints: Footprints | None = None,
) -> list[int]:
    """The task ids in the order in which `policy` runs them.

    Args:
        graph: the graph.
        policy: a name, a `Policy` or a callable (ready tasks, state) -> task.
        needed: the tasks that are going to run at all, as `inputs=` leaves them; None: all.
        ran: the tasks with which the order starts, whatever the policy says: it goes on from there.
        footprints: what the tasks allocate, for a policy that plans by memory; None: a dry run finds it out.

    Raises:
        PolicyError: a user's policy returned something that is not ready.
    """
    from .problem import Problem

    return order_of(find_policy(policy), Problem(graph, footprints, needed), ran)


def _chosen(graph: Graph, policy: Policy | Choice, pending: Pending, ran: Sequence[int] = ()) -> list[int]:
    """All tasks, of the ready ones always that which a policy chooses, after those that `ran`."""
    order: list[int] = []
    queue = ready_queue(graph, policy, order)
    for task_id in pending.start():
        queue.push(task_id)
    given = iter(ran)
    while queue:
        task_id = next(given, -1)
        if task_id < 0:
            task_id = queue.choose()
        queue.remove(task_id)
        order.append(task_id)
        for next_task in pending.run(task_id):
            queue.push(next_task)
    return order
