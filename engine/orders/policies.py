"""Which ready task runs next: one flat table of keys, of which the least runs first, or a choice of the user's own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from ...inspector.arguments import expect_callable
from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.kinds import Kind
from . import planners

if TYPE_CHECKING:
    from .problem import Problem

Key: TypeAlias = tuple[int, ...]
Planner: TypeAlias = "Callable[[Problem, Sequence[int]], list[int]]"


def arrival_label(task: Task, arrival: int) -> str:
    """The place in the order of arrival, as the ready queue shows it."""
    return f"@{arrival}"


def _unplanned(task: Task, arrival: int) -> Key:
    raise AssertionError("a policy that plans has keys in a graph alone: bound() gives them")


@dataclass(frozen=True, slots=True)
class Policy:
    """A scheduling policy by keys: of the ready tasks the one with the least key runs next.

    Attributes:
        name: what users call it.
        title: the rule in words.
        key: from a task and its place in the order of arrival (0 for the first that got ready) to its key, a tuple that
            compares with the others. It is asked once, when the task gets ready. A queue of such keys costs O(log n) a
            task.
        label: the key as the ready queue shows it.
        dynamic: whether keys depend on what is only known while the backward runs (memory in use, values of gradients).
            No order can be planned then. Of equal keys the first to arrive runs first.
        plan: for a policy that looks at the whole graph before anything runs: gives the ids of all tasks in their order
            from a `Problem` and the tasks that have run already, with which the order starts. There are no keys then:
            in a graph, a task's place in the plan is its key.
        keeps: whether a plan holds for every graph of the same kind (`plans.fingerprint`): a training loop plans once.
        choose: for a policy that takes one of several others' orders: gives one that goes by it, from what `plan` gets.
        took: whose order that is.
        note: why, or why it is not the order that was asked for.
    """

    name: str
    title: str
    key: Callable[[Task, int], Key] = field(default=_unplanned, repr=False)
    label: Callable[[Task, int], str] = field(default=arrival_label, repr=False)
    dynamic: bool = False
    plan: Planner | None = field(default=None, repr=False)
    keeps: bool = field(default=False, repr=False)
    choose: Callable[[Problem, Sequence[int]], Policy] | None = field(default=None, repr=False)
    took: str = field(default="", repr=False)
    note: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a user's policy may look at besides the ready tasks: the graph, and the ids of what ran, in order."""

    graph: Graph
    order: Sequence[int]


Choice: TypeAlias = Callable[[Sequence[Task], QueueState], Task]
"""A user's policy: gets the ready tasks, first arrived first, and returns one of them."""

AnyPolicy: TypeAlias = str | Policy | Choice


def _creation_label(task: Task, arrival: int) -> str:
    return "leaf" if task.kind is Kind.ACCUMULATE_GRAD else f"#{task.id}"


def _random(seed: str) -> Policy:
    """Each task draws a number, and the least runs first. Not every order is as likely as any other."""
    number = int(seed)
    return Policy(
        "random",
        "by lot",
        lambda task, arrival: (Random(f"{number} {task.id}").getrandbits(32), arrival),
        arrival_label,
    )


def _bfs_width(width: str) -> Policy:
    number = int(width)
    if number < 1:
        raise ValueError("at least one branch has to be open")
    plan = partial(planners.bfs_width, width=number)
    return Policy("bfs_width", f"first ready, first run, at most {number} branches open", plan=plan)


def _comm_first(patterns: str) -> Policy:
    named = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    what = ", ".join(named) or "what DistributedDataParallel sends"
    return Policy("comm_first", f"first what leads to {what}", plan=partial(planners.comm_first, patterns=named))


def _auto(problem: Problem, ran: Sequence[int]) -> list[int]:
    from .auto import auto_order

    return auto_order(problem, ran)


def _auto_choice(problem: Problem, ran: Sequence[int]) -> Policy:
    from .auto import auto_choice

    return auto_choice(problem, ran)


def _seconds(text: str) -> float:
    found = float(text)
    if not 0 <= found < math.inf:
        raise ValueError("it takes a time")
    return found


def _search(seconds: str) -> Policy:
    """The best of the portfolio, and then tasks moved about for some time."""
    most = _seconds(seconds)

    def plan(problem: Problem, ran: Sequence[int]) -> list[int]:
        from .local_search import searched_order

        return searched_order(problem, ran, most)

    return Policy("search", f"the best order found in {most:g} s", plan=plan, keeps=True)


def _optimal(seconds: str) -> Policy:
    """The least peak there is. Where that can't be proven in time, PolicyError says what was found."""
    most = _seconds(seconds)

    def plan(problem: Problem, ran: Sequence[int]) -> list[int]:
        from .exact import optimal_order

        return optimal_order(problem, ran, most)

    return Policy("optimal", f"the least peak there is, proven in at most {most:g} s", plan=plan, keeps=True)


POLICIES = {
    policy.name: policy
    for policy in (
        # PyTorch before PR #4746 (2018).
        Policy("bfs", "first ready, first run", lambda task, arrival: (arrival,), arrival_label),
        # PR #4746, its second candidate.
        Policy("dfs", "last ready, first run", lambda task, arrival: (-arrival,), arrival_label),
        # PyTorch since PR #4746: engine.h, CompareNodeTaskTime. AccumulateGrad has the highest number there is (PR
        # #7604). Equal numbers come in the order in which the engine's queue gives them, see binary_heap.py.
        Policy("heap", "last created, first run", lambda task, arrival: (-task.sequence_nr,), _creation_label),
        # What HEAP would be if leaves did not go first: the gradients that wait for them add up (PR #7604, PR #52180).
        Policy(
            "delay_accumulate",
            "last created, first run; AccumulateGrad last",
            lambda task, arrival: (int(task.is_leaf), -task.sequence_nr, arrival),
            _creation_label,
        ),
        _random("0"),
        # The planned ones: see `planners` for the rule, source and cost of each.
        Policy("lpmf", "least peak memory first", plan=planners.lpmf, keeps=True),
        Policy("list", "most bytes freed, less those made, first", plan=planners.list_schedule, keeps=True),
        Policy("postorder", "depth first, the largest branches first", plan=planners.postorder, keeps=True),
        Policy("liu", "branches merged by their hills and valleys", plan=planners.liu, keeps=True),
        _bfs_width("8"),
        Policy("critical_path", "what most time of work still waits for first", plan=planners.critical_path),
        _comm_first(""),
        Policy("auto", "the least predicted peak of several policies", plan=_auto, choose=_auto_choice),
        _search("10"),
        _optimal("10"),
    )
}

CLASSIC = ("bfs", "dfs", "heap")
"""The three of PR #4746, which need no plan."""

TABS = (*CLASSIC, "lpmf")
"""The policies that a deck shows beside the one that picks."""

_WITH_ARGUMENT: dict[str, tuple[Callable[[str], Policy], str]] = {
    "random": (_random, "a seed, a whole number,"),
    "bfs_width": (_bfs_width, "how many branches may be open, a whole number,"),
    "comm_first": (_comm_first, "tasks, modules or parameters, with commas between them,"),
    "search": (_search, "seconds"),
    "optimal": (_optimal, "seconds"),
}
"""By name what makes the policy of what stands in brackets behind it, and what that is."""


def find_policy(policy: AnyPolicy) -> Policy | Choice:
    """The policy that is meant.

    Raises:
        ValueError: no policy has this name, and the message lists those there are; or what stands in brackets behind it
            is not what this policy takes.
        TypeError: it is neither a name, nor a Policy, nor callable.
    """
    if isinstance(policy, str):
        return POLICIES[policy] if policy in POLICIES else _with_argument(policy)
    if not isinstance(policy, Policy):
        wanted = f"a name ({', '.join(POLICIES)}), a Policy or a callable (ready, state) -> Task"
        expect_callable(policy, 2, "policy", wanted)
    return policy


def _with_argument(text: str) -> Policy:
    """The policy that "name(argument)" means."""
    match = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", text, re.DOTALL)
    if match is None or match[1] not in POLICIES:
        raise ValueError(f"there is no policy {text!r}; known are {', '.join(POLICIES)}, or pass a callable")
    name, argument = match[1], match[2].strip()
    if name not in _WITH_ARGUMENT:
        raise ValueError(f"policy {name} takes nothing in brackets; those which do are {', '.join(_WITH_ARGUMENT)}")
    made, what = _WITH_ARGUMENT[name]
    try:
        return replace(made(argument), name=f"{name}({argument})")
    except ValueError as error:
        reason = f": {error}" if str(error) and not str(error).startswith(("invalid", "could not")) else ""
        raise ValueError(f"policy {name} takes {what} in brackets, not {argument!r}{reason}") from None


def bound(policy: Policy | Choice, problem: Problem, ran: Sequence[int] = ()) -> Policy | Choice:
    """The policy in this problem's graph. One that plans has done so, and its keys are places in the plan.

    Args:
        policy: any; one that does not plan is returned as it is.
        problem: the graph, which tasks run, and what is known of their memory.
        ran: those that have run already.

    Raises:
        PolicyError: `fully_shard` has tasks in this graph, and it is not known ahead what runs before them.
    """
    if policy is not POLICIES["heap"]:
        _refuse_stages(policy, problem.graph)
    if not isinstance(policy, Policy) or policy.plan is None:
        return policy
    if policy.choose is not None:
        return policy.choose(problem, ran)
    return following(policy, planned(policy, problem, ran))


def _refuse_stages(policy: Policy | Choice, graph: Graph) -> None:
    from ..queue.ready_queue import PolicyError
    from ..queue.stages import POST_BACKWARD, has_stages, unknown_task

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


def following(policy: Policy, plan: Sequence[int]) -> Policy:
    """The policy once it has planned: of the ready tasks the one that stands first in the plan."""
    places = {task_id: place for place, task_id in enumerate(plan)}

    def place_of(task: Task) -> int:
        return places.get(task.id, len(places))

    return replace(
        policy,
        plan=None,
        choose=None,
        key=lambda task, arrival: (place_of(task), arrival),
        label=lambda task, arrival: f"{place_of(task) + 1}.",
    )


def planned(policy: Policy, problem: Problem, ran: Sequence[int] = ()) -> Sequence[int]:
    """The order that a policy plans, which begins with the tasks that `ran`."""
    from .kept_plans import kept_plan

    assert policy.plan is not None
    if policy.keeps and not problem.given:
        return kept_plan(policy.name, policy.plan, problem, ran)
    return policy.plan(problem, ran)


def policy_name(policy: Policy | Choice) -> str:
    """What to call it in tables."""
    return policy.name if isinstance(policy, Policy) else getattr(policy, "__name__", type(policy).__name__)


def order_name(policy: Policy | Choice) -> str:
    """The policy, and whose order it took: "auto: lpmf"."""
    took = policy.took if isinstance(policy, Policy) else ""
    return f"{policy_name(policy)}: {took}" if took else policy_name(policy)


def note_on(policy: Policy | Choice) -> str:
    """Why it took that order; "" where there is nothing to say."""
    return policy.note if isinstance(policy, Policy) else ""


def names_in_turn(policies: Iterable[Policy | Choice]) -> str:
    """What to call an order that they made, one after the other: "bfs, then dfs"."""
    return ", then ".join(name for name, _ in groupby(map(policy_name, policies)))


def label_of(policy: Policy | Choice) -> Callable[[Task, int], str]:
    """What the ready queue shows for a task and its arrival."""
    return policy.label if isinstance(policy, Policy) else arrival_label


def is_dynamic(policy: Policy | Choice) -> bool:
    """Whether its order is only known while the backward runs."""
    return isinstance(policy, Policy) and policy.dynamic
