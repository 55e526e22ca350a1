"""Policies: a key for each ready task, of which the lowest runs first, or a user's own function that chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from ...inspector.validation import a_kind, expect

if TYPE_CHECKING:  # the command line checks a policy's name without importing torch
    from ...inspector.graph.graph import Graph, Task

Key: TypeAlias = tuple[int, ...]

Planner: TypeAlias = Callable[[Any, Sequence[int]], list[int]]
"""Returns an order from a problem (`engine/planning/scheduling_problem.py`) and the tasks that have run, which come
first."""


def arrival_label(task: Task, arrival: int) -> str:
    """Return the place in the order of arrival, as the ready queue shows it."""
    return f"@{arrival}"


def _unplanned(task: Task, arrival: int) -> Key:
    raise AssertionError("a policy with a plan has keys only for a graph; call bound()")


@dataclass(frozen=True, slots=True)
class Policy:
    """A scheduling policy by keys: the ready task with the lowest key runs next.

    Args:
        name: the policy's name in tables and messages.
        title: the rule in words.
        key: returns a task's key from the task and its place in the order of arrival (0 for the first ready task): a
            tuple that compares with all other keys. Called once per task, when it becomes ready. A choice costs
            O(log n).
        label: returns the key as the ready queue shows it, from the same arguments.
        dynamic: whether keys depend on facts only known while the backward runs (memory in use, values of gradients).
            No order can be planned then. Among equal keys, the first to arrive runs first.
        plan: for a policy that uses the whole graph before anything runs: returns the ids of all tasks in order, each
            once and after the tasks whose outputs it needs, from a `Problem` and the tasks that have run already, which
            come first. There is no `key` then: a task's place in the plan is its key.
        keeps: whether a plan holds for every graph of the same kind (`engine/planning/order_cache.py`), so that a
            training loop plans once. Without `plan`: whether its keys put the tasks of all such graphs in one order.
        choose: for a policy that adopts another one's order: returns a policy that follows it, from the arguments of
            `plan`.
        took: the name of the policy whose order was adopted.
        note: the reason for that, or why the requested order is not used.
    """

    name: str
    title: str
    key: Callable[[Task, int], Key] = field(default=_unplanned, repr=False)
    label: Callable[[Task, int], str] = field(default=arrival_label, repr=False)
    dynamic: bool = False
    plan: Planner | None = field(default=None, repr=False)
    keeps: bool = field(default=False, repr=False)
    choose: Callable[[Any, Sequence[int]], Policy] | None = field(default=None, repr=False)
    took: str = field(default="", repr=False)
    note: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Check that the policy can choose.

        Raises:
            TypeError: If a name is not a str, or a function is not callable.
            ValueError: If it has neither keys nor a plan.
        """
        expect(self.name, str, "name", "the policy's name, a str")
        expect(self.title, str, "title", "the rule in words")
        functions = {"key": self.key, "label": self.label, "plan": self.plan, "choose": self.choose}
        for name, each in functions.items():
            if each is not None and not callable(each):
                raise TypeError(f"{name} of policy {self.name!r} is {a_kind(each)}; expected a function")
        if self.key is _unplanned and self.plan is None:
            raise ValueError(f"policy {self.name!r} has no key=, a function of a task and its arrival, and no plan=")


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state passed to a user's policy besides the ready tasks: the graph, and the ids of the tasks that ran, in
    order."""

    graph: Graph
    order: Sequence[int]


Choice: TypeAlias = Callable[["Sequence[Task]", QueueState], "Task"]
"""A user's policy: receives the ready tasks in order of arrival, and returns one of them."""

AnyPolicy: TypeAlias = str | Policy | Choice


def creation_label(task: Task, arrival: int) -> str:
    return "leaf" if task.is_leaf else f"#{task.id}"


class Places:
    """Keys from a plan: the ready task that comes first in the plan runs next."""

    __slots__ = "_last", "_places", "plan"

    def __init__(self, plan: Sequence[int]) -> None:
        self.plan = tuple(plan)
        self._places = {task_id: place for place, task_id in enumerate(plan)}
        self._last = len(self._places)

    def __call__(self, task: Task, arrival: int) -> Key:
        return self._places.get(task.id, self._last), arrival

    def label(self, task: Task, arrival: int) -> str:
        return f"{self._places.get(task.id, self._last) + 1}."


def following(policy: Policy, plan: Sequence[int]) -> Policy:
    """Return the policy with a plan: the ready task that comes first in the plan runs next."""
    places = Places(plan)
    return replace(policy, plan=None, choose=None, key=places, label=places.label)


def policy_name(policy: Policy | Choice) -> str:
    """Return the policy's name for tables."""
    return policy.name if isinstance(policy, Policy) else getattr(policy, "__name__", type(policy).__name__)


def names_in_turn(policies: Iterable[Policy | Choice]) -> str:
    """Return the name of an order in which several policies followed each other: "bfs, then dfs"."""
    return ", then ".join(name for name, _ in groupby(map(policy_name, policies)))


def label_of(policy: Policy | Choice) -> Callable[[Task, int], str]:
    """Return the function that labels a task and its arrival in the ready queue."""
    return policy.label if isinstance(policy, Policy) else arrival_label


def is_dynamic(policy: Policy | Choice) -> bool:
    """Return whether the policy's order is only known while the backward runs."""
    return isinstance(policy, Policy) and policy.dynamic


# PyTorch before PR #4746 (2018).
BFS = Policy("bfs", "first ready, first run", lambda task, arrival: (arrival,), arrival_label, keeps=True)
# PR #4746, its second candidate.
DFS = Policy("dfs", "last ready, first run", lambda task, arrival: (-arrival,), arrival_label, keeps=True)
# PyTorch since PR #4746: engine.h, CompareNodeTaskTime. AccumulateGrad has the highest possible number (PR #7604).
# For equal numbers the order follows from the engine's heap, see ready_queue.py.
HEAP = Policy("heap", "last created, first run", lambda task, arrival: (-task.sequence_nr,), creation_label, keeps=True)
