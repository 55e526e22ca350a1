"""Compute the order of a policy for a problem."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from time import perf_counter

from ...inspector.graph.graph import Graph, unique_name
from ...inspector.validation import a_kind
from ..schedule.dependencies import Pending
from ..schedule.device_queues import DeviceQueues, MakeQueue, Queues
from ..schedule.fsdp_stages import POST_BACKWARD, has_stages, unknown_task
from ..schedule.greedy_order import allowed, chosen_order
from ..schedule.policy import HEAP, Choice, Policy, following, is_dynamic, policy_name
from ..schedule.ready_queue import PolicyError, ready_queue
from .order_cache import CACHED_ORDERS, fingerprint
from .scheduling_problem import Problem


def order_of(policy: Policy | Choice, problem: Problem, ran: Sequence[int] = (), queues: Queues = "one") -> list[int]:
    """Return the task ids in the order in which a policy runs a problem, starting with the tasks that `ran`."""
    graph, needed = problem.graph, problem.needed
    if isinstance(policy, Policy) and policy.plan is not None:
        plan = planned(policy, problem, ran)
        if queues == "one" and _is_order(graph, plan, needed):
            return list(plan)
        policy = following(policy, plan)
    return chosen_order(graph, policy, allowed(graph, needed), ran, queue_maker(problem, queues))


def queue_maker(problem: Problem, queues: Queues) -> MakeQueue:
    """Return a factory for the ready queue of a problem: one queue, or one for each device of its tasks."""
    if queues == "one":
        return ready_queue
    devices = [str(task.device) for task in problem.graph.tasks]
    return partial(DeviceQueues, durations_ns=list(map(round, problem.durations)), devices=devices)


def _is_order(graph: Graph, order: Sequence[int], needed: Collection[int] | None) -> bool:
    """Return whether the order is legal and complete."""
    pending = allowed(graph, needed)
    ready = set(pending.start())
    for task_id in order:
        if task_id not in ready:
            return False
        ready.remove(task_id)
        ready.update(pending.run(task_id))
    return not ready


def bound(policy: Policy | Choice, problem: Problem, ran: Sequence[int] = ()) -> Policy | Choice:
    """Return the policy for this problem's graph. A planning policy has planned; its keys are places in the plan.

    Args:
        policy: any policy; one that does not plan is returned unchanged.
        problem: the graph, the tasks that run, and their memory.
        ran: the tasks that have already run.

    Raises:
        PolicyError: the graph has tasks of `fully_shard` and the policy cannot keep their order; or a plan is not an
            order of the tasks.
    """
    graph, name = problem.graph, policy_name(policy)
    if policy is not HEAP and (task := unknown_task(graph)) is not None:
        raise PolicyError(
            f"policy {name} cannot be followed: {graph.describe(task)} belongs to fully_shard (FSDP2), and tapescope "
            'does not know its dependencies in this version of torch; use policy="heap", PyTorch\'s order'
        )
    if policy is not HEAP and is_dynamic(policy) and has_stages(graph):
        raise PolicyError(
            f"policy {name} decides while the backward runs; under fully_shard (FSDP2) all tasks that read a group's "
            f"parameters have to run before its {POST_BACKWARD}, which only a planned order guarantees. "
            'Use "heap" or another policy that is not dynamic'
        )
    if not isinstance(policy, Policy) or policy.plan is None:
        return policy
    if policy.choose is not None:
        chosen = policy.choose(problem, ran)
        if not isinstance(chosen, Policy) or chosen.plan is not None:
            raise PolicyError(
                f"policy {policy_name(policy)} returned {chosen!r} from choose; expected a ts.Policy with key= and "
                "without plan="
            )
        return chosen
    return following(policy, planned(policy, problem, ran))


def planned(policy: Policy, problem: Problem, ran: Sequence[int] = ()) -> Sequence[int]:
    """Return the order that a policy plans, which begins with the tasks that `ran`.

    Raises:
        PolicyError: it is not a list of task ids, leaves a task out, has one twice, or a task before its inputs.
    """
    plan = policy.plan
    assert plan is not None

    def checked() -> list[int]:
        return _legal_plan(policy_name(policy), plan(problem, ran), problem, ran)

    if not policy.keeps or problem.has_footprints:
        return checked()
    order: tuple[int, ...] = CACHED_ORDERS.of((policy.name, fingerprint(problem), tuple(ran)), lambda: tuple(checked()))
    return order


def _legal_plan(name: str, plan: object, problem: Problem, ran: Sequence[int]) -> list[int]:
    """Return the plan of the policy `name`: the tasks that `ran`, then the others that run, in its order.

    A plan may contain tasks that do not run (`inputs=`), and those that ran at any place.

    Raises:
        PolicyError: it is not an order of the remaining tasks.
    """
    graph = problem.graph
    expected = "expected each task's id once, after the ids of all tasks whose outputs it takes"
    if not isinstance(plan, Iterable) or isinstance(plan, str):
        raise PolicyError(
            f"policy {name} returned {a_kind(plan)} from plan; expected a list of the ids of {len(problem.tasks)} tasks"
        )
    order: list[int] = []
    for each in plan:
        try:
            order.append(index(each))
        except TypeError:
            raise PolicyError(f"policy {name} planned {each!r}, which is not the id of a task; {expected}") from None
        if not 0 <= order[-1] < len(graph):
            known = f"the graph has tasks 0 to {len(graph) - 1}"
            raise PolicyError(f"policy {name} planned task {order[-1]}, and {known}; {expected}")
    pending, gone, seen = Pending(graph, problem.needed), frozenset(ran), set()
    ready, found = set(pending.start()), list(ran)
    for task_id in ran:
        ready.update(pending.run(task_id))
    for task_id in order:
        if task_id in seen:
            raise PolicyError(f"policy {name} planned {unique_name(graph, task_id)} twice; {expected}")
        seen.add(task_id)
        if task_id in gone or not (problem.needed is None or task_id in problem.needed):
            continue
        if task_id not in ready:
            before = min({edge.task for edge in graph.in_edges[task_id]}.difference(found))
            raise PolicyError(
                f"policy {name} planned {unique_name(graph, task_id)} before {unique_name(graph, before)}, "
                f"whose output it takes; {expected}"
            )
        ready.update(pending.run(task_id))
        found.append(task_id)
    if missing := sorted(set(problem.tasks).difference(found)):
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise PolicyError(f"policy {name} left {unique_name(graph, missing[0])}{others} out of its plan; {expected}")
    return found


@dataclass(frozen=True, slots=True, eq=False)
class PlannedOrder:
    """The order of a policy, with its predicted peak.

    Attributes:
        policy: the name of the policy.
        order: the ids of the tasks.
        peak_bytes: the highest predicted level.
        seconds: the time for planning and simulating it.
    """

    policy: str
    order: tuple[int, ...]
    peak_bytes: int
    seconds: float


def planned_order(problem: Problem, policy: Policy | Choice) -> PlannedOrder:
    """Compute a policy's order for a problem, and its predicted peak.

    Raises:
        ValueError: the policy decides while the backward runs.
    """
    if is_dynamic(policy):
        raise ValueError(
            f"policy {policy_name(policy)} decides while the backward runs, so its order cannot be planned"
        )
    began = perf_counter()
    own = policy is HEAP
    order = tuple(problem.heap_order if own else order_of(policy, problem))  # all share the problem's memory
    return PlannedOrder(policy_name(policy), order, problem.peak_bytes(order), perf_counter() - began)
