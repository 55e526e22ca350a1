"""Which ready task runs next: one flat table of keys, of which the least runs first, or a choice of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..inspector.graph import Graph, Task
from ..inspector.kinds import Kind

Key: TypeAlias = tuple[int, ...]


def arrival_label(task: Task, arrival: int) -> str:
    """The place in the order of arrival, as the ready queue shows it."""
    return f"@{arrival}"


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
    """

    name: str
    title: str
    key: Callable[[Task, int], Key] = field(repr=False)
    label: Callable[[Task, int], str] = field(default=arrival_label, repr=False)
    dynamic: bool = False


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


def label_of(policy: Policy | Choice) -> Callable[[Task, int], str]:
    """What the ready queue shows for a task and its arrival."""
    return policy.label if isinstance(policy, Policy) else arrival_label


def is_dynamic(policy: Policy | Choice) -> bool:
    """Whether its order is only known while the backward runs."""
    return isinstance(policy, Policy) and policy.dynamic
