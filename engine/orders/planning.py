"""From a policy and a problem to an order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from ...inspector.graph.graph import Graph
from ..queue.chosen_order import allowed, chosen_order
from ..queue.device_queues import DeviceQueues, MakeQueue, Queues
from ..queue.policy import HEAP, Choice, Policy, following, is_dynamic, policy_name
from ..queue.ready_queue import PolicyError, ready_queue
from ..queue.stages import POST_BACKWARD, has_stages, unknown_task
from .kept_plans import kept_plan
from .problem import Problem


def order_of(policy: Policy | Choice, problem: Problem, ran: Sequence[int] = (), queues: Queues = "one") -> list[int]:
    """The task ids in the order in which a policy runs a problem, beginning with the tasks that `ran`."""
    graph, needed = problem.graph, problem.needed
    if isinstance(policy, Policy) and policy.plan is not None:
        plan = planned(policy, problem, ran)
        if queues == "one" and _is_order(graph, plan, needed):
            return list(plan)
        policy = following(policy, plan)
    return chosen_order(graph, policy, allowed(graph, needed), ran, queue_maker(problem, queues))


def queue_maker(problem: Problem, queues: Queues) -> MakeQueue:
    """What makes the ready queues of a problem: one, or side by side one for each device of its tasks."""
    if queues == "one":
        return ready_queue
    devices = [str(task.device) for task in problem.graph.tasks]
    return partial(DeviceQueues, durations_ns=list(map(round, problem.durations)), devices=devices)


def _is_order(graph: Graph, order: Sequence[int], needed: Collection[int] | None) -> bool:
    """Whether each task may run in its turn, and none is left."""
    pending = allowed(graph, needed)
    ready = set(pending.start())
    for task_id in order:
        if task_id not in ready:
            return False
        ready.remove(task_id)
        ready.update(pending.run(task_id))
    return not ready


def refuse_stages(policy: Policy | Choice, graph: Graph) -> None:
    """Raises PolicyError where `fully_shard` has tasks in the graph, and the policy can't keep what they ask for."""
    if (task := unknown_task(graph)) is not None:
        raise PolicyError(
            f"policy {policy_name(policy)} can't be followed: {graph.describe(task)} is of fully_shard (FSDP2), and "
            'what has to run before it is not known of this version of torch; policy="heap" is PyTorch\'s own order'
        )
    if is_dynamic(policy) and has_stages(graph):
        raise PolicyError(
            f"policy {policy_name(policy)} decides while the backward runs, and under fully_shard (FSDP2) what reads a "
            f"group's parameters has to run before its {POST_BACKWARD}, which only an order planned ahead can promise: "
            'take "heap" or any other policy that is not dynamic'
        )


def bound(policy: Policy | Choice, problem: Problem, ran: Sequence[int] = ()) -> Policy | Choice:
    """The policy in this problem's graph. One that plans has done so, and its keys are places in the plan.

    Args:
        policy: any; one that does not plan is returned as it is.
        problem: the graph, which tasks run, and what is known of their memory.
        ran: those that have run already.

    Raises:
        PolicyError: `fully_shard` has tasks in this graph, and it is not known ahead what runs before them.
    """
    if policy is not HEAP:
        refuse_stages(policy, problem.graph)
    if not isinstance(policy, Policy) or policy.plan is None:
        return policy
    if policy.choose is not None:
        return policy.choose(problem, ran)
    return following(policy, planned(policy, problem, ran))


def planned(policy: Policy, problem: Problem, ran: Sequence[int] = ()) -> Sequence[int]:
    """The order that a policy plans, which begins with the tasks that `ran`."""
    assert policy.plan is not None
    if policy.keeps and not problem.given:
        return kept_plan(policy.name, policy.plan, problem, ran)
    return policy.plan(problem, ran)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedOrder:
    """One order.

    Attributes:
        policy: what it is called.
        order: the ids of the tasks.
        peak_bytes: the highest level, predicted.
        seconds: what finding it took, the simulation included.
    """

    policy: str
    order: tuple[int, ...]
    peak_bytes: int
    seconds: float


def planned_order(problem: Problem, policy: Policy | Choice) -> PlannedOrder:
    """What a policy makes of a problem.

    Raises:
        ValueError: it decides while the backward runs.
    """
    if is_dynamic(policy):
        raise ValueError(f"policy {policy_name(policy)} decides while the backward runs, so it has no order yet")
    began = perf_counter()
    own = policy is HEAP
    order = tuple(problem.heap_order if own else order_of(policy, problem))  # all read the memory of one problem
    return PlannedOrder(policy_name(policy), order, problem.peak_bytes(order), perf_counter() - began)
