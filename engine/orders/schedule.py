"""The order in which a policy would run a graph: nothing is executed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...inspector.graph.graph import Graph
from ..memory.footprint import Footprints
from ..queue.device_queues import Queues
from ..queue.policy import AnyPolicy
from .planning import order_of
from .policies import find_policy
from .problem import Problem


def schedule(
    graph: Graph,
    policy: AnyPolicy,
    needed: Collection[int] | None = None,
    ran: Sequence[int] = (),
    footprints: Footprints | None = None,
    queues: Queues = "one",
) -> list[int]:
    """The task ids in the order in which `policy` runs them.

    Args:
        graph: the graph.
        policy: a name, a `Policy` or a callable (ready tasks, state) -> task.
        needed: the tasks that are going to run at all, as `inputs=` leaves them; None: all.
        ran: the tasks with which the order starts, whatever the policy says: it goes on from there.
        footprints: what the tasks allocate, for a policy that plans by memory; None: a dry run finds it out.
        queues: "per device" gives each device a queue of its own, which it works through as it comes to it, by
            `Problem.durations`; the order is that in which tasks start.

    Raises:
        PolicyError: a user's policy returned something that is not ready.
    """
    return order_of(find_policy(policy), Problem(graph, footprints, needed), ran, queues)
