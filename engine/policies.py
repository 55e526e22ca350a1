"""Which ready task runs next: one flat table of keys, of which the least runs first, or a choice of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..inspector.graph import Graph, Task
from ..inspector.kinds import Kind

Key: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """A scheduling policy whose keys never change: of the ready tasks the one with the least key runs next.

    Attributes:
        name: what users call it.
        title: the rule in words.
        key: from a task and its place in the order of arrival (0 for the first that got ready) to its key. A queue of
            such keys costs O(log n) a task.
        label: the key as the ready queue shows it.
    """

    name: str
    title: str
    key: Callable[[Task, int], Key] = field(repr=False)
    label: Callable[[Task, int], str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a user's policy may look at besides the ready tasks: the graph, and the ids of what ran, in order."""

    graph: Graph
    order: Sequence[int]


Choice: TypeAlias = Callable[[Sequence[Task], QueueState], Task]
"""A user's policy: gets the ready tasks, first arrived first, and returns one of them."""

AnyPolicy: TypeAlias = str | Policy | Choice


def _arrival_label(task: Task, arrival: int) -> str:
    return f"@{arrival}"


def _creation_label(task: Task, arrival: int) -> str:
    return "leaf" if task.kind is Kind.ACCUMULATE_GRAD else f"#{task.id}"


POLICIES = {
    policy.name: policy
    for policy in (
        # PyTorch before PR #4746 (2018).
        Policy("bfs", "first ready, first run", lambda task, arrival: (arrival,), _arrival_label),
        # PR #4746, its second candidate.
        Policy("dfs", "last ready, first run", lambda task, arrival: (-arrival,), _arrival_label),
        # PyTorch since PR #4746: engine.h, CompareNodeTaskTime. AccumulateGrad has the highest number there is (PR
        # #7604). Equal numbers come in the order in which the engine's queue gives them, see binary_heap.py.
        Policy("heap", "last created, first run", lambda task, arrival: (-task.sequence_nr,), _creation_label),
    )
}


def find_policy(policy: AnyPolicy) -> Policy | Choice:
    """The policy that is meant.

    Raises:
        ValueError: no policy has this name; the message lists those there are.
        TypeError: it is neither a name, nor a Policy, nor callable.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"there is no policy {policy!r}; known are {', '.join(POLICIES)}, or pass a callable")
        return POLICIES[policy]
    if isinstance(policy, Policy) or callable(policy):
        return policy
    raise TypeError(
        f"a policy is a name ({', '.join(POLICIES)}), a Policy or a callable (ready, state) -> Task, not {policy!r}"
    )


def policy_name(policy: Policy | Choice) -> str:
    """What to call it in tables."""
    return policy.name if isinstance(policy, Policy) else getattr(policy, "__name__", type(policy).__name__)
