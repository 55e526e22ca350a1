"""The table of policies by name, and the lookup of a policy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from ...inspector.entry_points import entry_points_of, load_entry_point
from ...inspector.validation import did_you_mean, expect_callable
from ..schedule.policy import BFS, DFS, HEAP, AnyPolicy, Choice, Policy, arrival_label, creation_label, policy_name
from . import planning_policies

if TYPE_CHECKING:
    from .scheduling_problem import Problem


def _random(seed: str) -> Policy:
    """Return the policy that gives each task a random number and runs the lowest first. Orders are not uniformly
    distributed."""
    number = int(seed)
    return Policy(
        "random",
        "a random ready task",
        lambda task, arrival: (Random(f"{number} {task.id}").getrandbits(32), arrival),
        arrival_label,
        keeps=True,
    )


def _comm_first(patterns: str) -> Policy:
    named = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    what = ", ".join(named) or "DistributedDataParallel's buckets"
    return Policy(
        "comm_first", f"first the tasks that lead to {what}", plan=partial(planning_policies.comm_first, patterns=named)
    )


def _auto(problem: Problem, ran: Sequence[int]) -> list[int]:
    from .auto_policy import auto_order

    return auto_order(problem, ran, portfolio())


def _auto_choice(problem: Problem, ran: Sequence[int]) -> Policy:
    from .auto_policy import auto_choice

    return auto_choice(problem, ran, POLICIES["auto"], portfolio())


def _seconds(text: str) -> float:
    found = float(text)
    if not 0 <= found < math.inf:
        raise ValueError("expected a number of seconds, 0 or more")
    return found


def _search(seconds: str) -> Policy:
    """Return the policy that improves the portfolio's best order by local search for this time."""
    most = _seconds(seconds)

    def plan(problem: Problem, ran: Sequence[int]) -> list[int]:
        from .local_search import searched_order

        return searched_order(problem, ran, most, portfolio())

    return Policy("search", f"the best order found in {most:g} s", plan=plan, keeps=True)


def _optimal(seconds: str) -> Policy:
    """Return the policy that searches the lowest possible peak. It raises PolicyError, with the best order found, if no
    order is proven to be the best in this time."""
    most = _seconds(seconds)

    def plan(problem: Problem, ran: Sequence[int]) -> list[int]:
        from .exact_search import optimal_order

        return optimal_order(problem, ran, most)

    return Policy("optimal", f"the lowest possible peak, proven in at most {most:g} s", plan=plan, keeps=True)


POLICIES = {
    policy.name: policy
    for policy in (
        BFS,
        DFS,
        HEAP,
        # HEAP with leaves last instead of first: gradients that wait for them accumulate (PR #7604, PR #52180).
        Policy(
            "delay_accumulate",
            "last created, first run; AccumulateGrad last",
            lambda task, arrival: (int(task.is_leaf), -task.sequence_nr, arrival),
            creation_label,
            keeps=True,
        ),
        _random("0"),
        # Planned policies: `planning_policies` documents rule, source and cost of each.
        Policy("lpmf", "least peak memory first", plan=planning_policies.lpmf, keeps=True),
        Policy("postorder", "depth first, the largest branches first", plan=planning_policies.postorder, keeps=True),
        Policy("liu", "branches merged by their hills and valleys", plan=planning_policies.liu, keeps=True),
        Policy("critical_path", "the longest remaining path first", plan=planning_policies.critical_path),
        _comm_first(""),
        Policy("auto", "the lowest predicted peak of several policies", plan=_auto, choose=_auto_choice),
        _search("10"),
        _optimal("10"),
    )
}

GROUP = "tapescope.policies"
"""The entry points of policies from other packages."""

CLASSIC = ("bfs", "dfs", "heap")
"""The three orders of PR #4746, which need no plan."""

TABS = (*CLASSIC, "lpmf")
"""The policies that a deck shows beside the active one."""

PORTFOLIO = ("heap", "dfs", "bfs", "lpmf", "postorder", "liu")
"""The policies among which "auto" chooses. PyTorch's own comes first, so that it wins ties."""

_WITH_ARGUMENT: dict[str, tuple[Callable[[str], Policy], str]] = {
    "random": (_random, "a seed (an integer)"),
    "comm_first": (_comm_first, "tasks, modules or parameters, separated by commas,"),
    "search": (_search, "seconds"),
    "optimal": (_optimal, "seconds"),
}
"""For each policy with an argument: the function that makes it, and a description of the argument."""


def find_policy(policy: AnyPolicy) -> Policy | Choice:
    """Return the policy for a name, a Policy or a callable.

    Raises:
        ValueError: no policy has this name; the message lists the known ones. Or the argument in brackets is invalid.
        TypeError: it is neither a name, nor a Policy, nor callable.
    """
    if not isinstance(policy, str):
        if not isinstance(policy, Policy):
            wanted = f"a name ({', '.join(POLICIES)}), a Policy or a callable (ready, state) -> Task"
            expect_callable(policy, 2, "policy", wanted)
        return policy
    if policy in POLICIES:
        return POLICIES[policy]
    match = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", policy, re.DOTALL)
    if match is None and policy in entry_points_of(GROUP):
        return _of_package(policy)
    if match is None or match[1] not in POLICIES:
        near, known = did_you_mean(policy, policy_names()), ", ".join(policy_names())
        raise ValueError(f"unknown policy {policy!r}{near} expected one of {known}, or a callable")
    name, argument = match[1], match[2].strip()
    if name not in _WITH_ARGUMENT:
        raise ValueError(
            f"policy {name} takes no argument in brackets; policies with one are {', '.join(_WITH_ARGUMENT)}"
        )
    made, what = _WITH_ARGUMENT[name]
    try:
        return replace(made(argument), name=f"{name}({argument})")
    except ValueError as error:
        reason = f": {error}" if str(error) and not str(error).startswith(("invalid", "could not")) else ""
        raise ValueError(f"policy {name} takes {what} in brackets, not {argument!r}{reason}") from None


def policy_names() -> list[str]:
    """Return the names of the policies, those of installed packages too."""
    return [*POLICIES, *(each for each in entry_points_of(GROUP) if each not in POLICIES)]


def _of_package(name: str) -> Policy | Choice:
    found = load_entry_point(GROUP, name, "policy")
    if isinstance(found, Policy):
        return replace(found, name=name)
    expect_callable(found, 2, f"policy {name!r}", "a Policy or a callable (ready, state) -> Task")
    choice: Choice = found
    return choice


def order_name(policy: Policy | Choice) -> str:
    """Return the policy's name, and that of the policy whose order it took: "auto: lpmf"."""
    took = policy.took if isinstance(policy, Policy) else ""
    return f"{policy_name(policy)}: {took}" if took else policy_name(policy)


def note_on(policy: Policy | Choice) -> str:
    """Return the policy's note on the order it took, or ""."""
    return policy.note if isinstance(policy, Policy) else ""


def portfolio() -> list[Policy]:
    """Return the policies of `PORTFOLIO`."""
    return [POLICIES[name] for name in PORTFOLIO]
