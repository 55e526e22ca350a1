"""Constraints on the order, such as "k before k-1": any policy can keep them, and they are checked before a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import pairwise
from typing import TypeAlias

from torch import Tensor

from ...inspector.graph.graph import Graph, Task, unique_name
from ...inspector.graph.phrases import joined
from ...inspector.text.sizes_and_counts import counted, nth
from ...inspector.validation import a_kind
from ..schedule.find_tasks import tasks_at
from ..schedule.fsdp_stages import POST_BACKWARD, stage_edges
from ..schedule.greedy_order import allowed, stages
from ..schedule.policy import AnyPolicy, Choice, Key, Policy, QueueState, is_dynamic, policy_name
from ..schedule.ready_queue import ChoiceQueue, KeyedQueue, PolicyError, ReadyTask, pop, push
from .policies import find_policy
from .policy_orders import bound
from .scheduling_problem import Problem
from .unpack_order import SavedBy, tensor_text

Place: TypeAlias = "str | int | Task | ReadyTask | Tensor"
Side: TypeAlias = "Place | AbstractSet[Place]"
Constraint: TypeAlias = Sequence[Side]

_MOST_PARTS = 5  # parts of a contradiction that are listed
_MOST_STEPS = 5  # tasks of a path that are listed
_MOST_TRIED = 20  # precedences from which the shortest contradiction is searched


@dataclass(frozen=True, slots=True)
class Precedence:
    """One step of a constraint: all tasks of `first` run before any task of `then`.

    Attributes:
        number: the number of the constraint, from 1. A chain of n places has n - 1 steps.
        first, then: ids of tasks.
        names: descriptions of both places.
    """

    number: int
    first: frozenset[int]
    then: frozenset[int]
    names: tuple[str, str]

    @property
    def text(self) -> str:
        """`"decoder" before "encoder"`."""
        return " before ".join(self.names)

    def __str__(self) -> str:
        return f"constraint {self.number} ({self.text})"


def resolve(graph: Graph, constraints: Sequence[Constraint]) -> list[Precedence]:
    """Translate constraints, as documented in `constrained`, into precedences between tasks of a graph.

    Raises:
        ValueError: a place is not in this graph; a constraint has fewer than two places; or both sides contain a task.
        TypeError: a constraint or a place has the wrong type.
    """
    found = []
    saved = SavedBy(graph)
    for number, constraint in enumerate(constraints, 1):
        try:
            tasks = [_tasks_of(graph, saved, side) for side in constraint]
        except (TypeError, ValueError) as error:
            raise type(error)(f"constraint {number}: {error}") from None
        texts = [_side_text(side, place) for place, side in enumerate(constraint, 1)]
        for (first, then), names in zip(pairwise(tasks), pairwise(texts), strict=True):
            step = Precedence(number, first, then, names)
            if both := first & then:
                shared = joined([unique_name(graph, task) for task in sorted(both)])
                raise ValueError(
                    f"{step} cannot be met: {shared} {'is' if len(both) == 1 else 'are'} on both sides, and cannot run "
                    f"before {'itself' if len(both) == 1 else 'themselves'}; narrow one of them"
                )
            found.append(step)
    return found


def as_constraints(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """Return the constraints as tuples, after checking their shape.

    Raises:
        TypeError, ValueError: something is not a sequence of two or more places.
    """
    if isinstance(constraints, str | Tensor | AbstractSet) or not isinstance(constraints, Iterable):
        raise TypeError(f"constraints are a list of (first, then) or longer chains, not {_shown(constraints)}")
    found = []
    for number, each in enumerate(constraints, 1):
        if isinstance(each, str | Tensor | AbstractSet) or not isinstance(each, Iterable):
            raise TypeError(
                f"constraint {number} is {_shown(each)}, one place alone: constraints are a list of (first, then) or "
                'longer chains, as in [("decoder", "encoder")]'
            )
        chain = tuple(each)
        if len(chain) < 2:
            raise ValueError(
                f"constraint {number} names {counted(len(chain), 'place')}; expected two, (first, then), or a longer "
                "chain"
            )
        found.append(chain)
    return tuple(found)


def _tasks_of(graph: Graph, saved: SavedBy, side: Side) -> frozenset[int]:
    """Return the ids of the tasks on one side of a constraint."""
    if isinstance(side, AbstractSet):
        return frozenset().union(*(_tasks_of(graph, saved, place) for place in side))
    return saved.tasks(side) if isinstance(side, Tensor) else tasks_at(graph, side)


def _side_text(side: Side, place: int = 0) -> str:
    """Describe one side of a constraint; a tensor is described by its place in the chain, since tensors look alike."""
    if isinstance(side, AbstractSet):
        texts = sorted(map(_side_text, side), key=lambda text: (len(text), text))
        return joined(texts) or "nothing"
    if isinstance(side, Tensor):
        return f"the {nth(place)} tensor ({tensor_text(side)})" if place else f"a tensor of {tensor_text(side)}"
    if isinstance(side, str):
        return f'"{side}"'
    task = side.task if isinstance(side, ReadyTask) else side
    return f"#{task.id if isinstance(task, Task) else task}"


def _shown(value: object) -> str:
    return _side_text(value) if isinstance(value, str | int | Task | Tensor) else a_kind(value)


def constrained(policy: AnyPolicy, constraints: Iterable[Constraint]) -> Policy:
    """Return a policy that follows another one's rule among the tasks that the constraints allow.

    A constraint is a pair (first, then), where all tasks of `first` run before any task of `then`, or a chain
    [a, b, c, ...]. A place is anything that `session.break_at` takes (a task or its number; a node's name, a module's
    path, a source line, a parameter, or a pattern), a tensor, which stands for the tasks that unpack it, or a set of
    these. Hooks that rebuild state k from state k+1 when it is unpacked (chunked training with a KV cache, reversible
    networks: PyTorch RFC #198225) need the chain of their states, the last one first:

        >>> import torch, tapescope as ts
        >>> state, states = torch.ones(2, requires_grad=True), []
        >>> for _ in range(3):
        ...     state = state * 1.5
        ...     states.append(state)
        >>> loss = sum((state * state).sum() for state in reversed(states))
        >>> chain = states[::-1]
        >>> bool(ts.orders.check_order(loss, [chain]))
        False
        >>> bool(ts.orders.check_order(loss, [chain], ts.orders.constrained("heap", [chain])))
        True
        >>> ts.backward(loss, policy=ts.orders.constrained("heap", [chain])).policy
        'heap with 1 constraint'

    The order is planned ahead, in time and memory nearly linear in tasks, edges and constrained tasks. If the policy's
    own order keeps the constraints, it is unchanged. A user's function gets only the ready tasks that may run. Tasks
    that do not run because of `inputs=` are ignored. Places by name are resolved again in each forward of a training
    loop; tensors belong to one forward. With `queues="per device"`, constraints between devices are not kept.

    Args:
        policy: as in `ts.backward`.
        constraints: pairs and chains of places.

    Raises:
        ValueError, TypeError: the policy decides while the backward runs, or a constraint is malformed. When a
            backward is planned, before anything runs: a place is not in the graph, or the constraints cannot be met;
            the message gives the task on both sides, or the path of edges that contradicts them.
    """
    base = find_policy(policy)
    if is_dynamic(base):
        raise ValueError(
            f"policy {policy_name(base)} decides while the backward runs; constraints need a policy that plans ahead"
        )
    given = as_constraints(constraints)
    plan = base.plan if isinstance(base, Policy) else None
    if isinstance(plan, _Plan):  # its own constraints would be no more than a preference
        base, given = plan.base, (*plan.constraints, *given)
    rule = f"{base.title}, " if isinstance(base, Policy) else ""
    return Policy(
        f"{policy_name(base)} with {counted(len(given), 'constraint')}",
        f"{rule}among the tasks that the constraints allow",
        plan=_Plan(base, given),
    )


@dataclass(frozen=True, slots=True, repr=False)
class _Plan:
    """The planner of a constrained policy."""

    base: Policy | Choice
    constraints: tuple[Constraint, ...]

    def __call__(self, problem: Problem, ran: Sequence[int] = ()) -> list[int]:
        graph, needed = problem.graph, problem.needed
        steps = running_steps(resolve(graph, self.constraints), needed)
        if (obstacle := obstacle_to(graph, steps, needed)) is not None:
            raise ValueError(obstacle)
        return _scheduled(graph, bound(self.base, problem, ran), steps, needed, ran)


def running_steps(steps: Sequence[Precedence], needed: Collection[int] | None) -> list[Precedence]:
    """Return the precedences between tasks that run. A place without any such task is skipped in its chain."""
    if needed is None:
        return list(steps)
    runs = frozenset(needed)
    found: list[Precedence] = []
    skipped: Precedence | None = None  # the first of those whose `then` does not run
    for step in steps:
        if skipped is not None and skipped.number == step.number:
            step = Precedence(step.number, skipped.first, step.then, (skipped.names[0], step.names[1]))
        skipped = None
        step = replace(step, first=step.first & runs, then=step.then & runs)
        if not step.then:
            skipped = step
        elif step.first:
            found.append(step)
    return found


def _scheduled(
    graph: Graph,
    policy: Policy | Choice,
    steps: Sequence[Precedence],
    needed: Collection[int] | None,
    ran: Sequence[int],
) -> list[int]:
    """Return the order of a policy that gets a ready task only after its precedences are met."""
    left = [len(step.first) for step in steps]
    opens: dict[int, list[int]] = {}
    holds: dict[int, int] = {}
    for number, step in enumerate(steps):
        for task_id in step.first:
            opens.setdefault(task_id, []).append(number)
        for task_id in step.then:
            holds[task_id] = holds.get(task_id, 0) + 1
    order: list[int] = []
    pending = allowed(graph, needed)
    queue: _Keyed | ChoiceQueue
    if isinstance(policy, Policy):
        queue = _Keyed(graph, policy, holds)
    else:
        queue = ChoiceQueue(graph, _among_allowed(policy, graph, holds), order)
    for task_id in pending.start():
        queue.push(task_id)
    given = iter(ran)
    while queue:
        task_id = next(given, -1)
        if task_id < 0:
            task_id = queue.choose()
        queue.remove(task_id)
        order.append(task_id)
        for number in opens.get(task_id, ()):
            left[number] -= 1
            if not left[number]:
                for then in steps[number].then:
                    holds[then] -= 1
                    if not holds[then] and isinstance(queue, _Keyed):
                        queue.allow(then)
        for next_task in pending.run(task_id):
            queue.push(next_task)
    return order


class _Keyed(KeyedQueue):
    """A keyed queue in which some tasks may not be chosen yet. They keep the key with which they arrived."""

    def __init__(self, graph: Graph, policy: Policy, holds: Mapping[int, int]) -> None:
        super().__init__(graph, policy)
        self._holds = holds
        self._aside: dict[int, Key] = {}

    def choose(self) -> int:
        while self._holds.get(task_id := super().choose()):
            self._aside[task_id] = pop(self._heap)[0]
            self._drop_removed()
        return task_id

    def remove(self, task_id: int) -> None:
        if self._aside.pop(task_id, None) is None:
            super().remove(task_id)
        else:  # was run by hand
            del self._arrivals[task_id]

    def allow(self, task_id: int) -> None:
        """Return the task to the queue, after its last precedence is met."""
        if task_id in self._aside:
            push(self._heap, (self._aside.pop(task_id), task_id))


def _among_allowed(choice: Choice, graph: Graph, holds: Mapping[int, int]) -> Choice:
    """Wrap a user's choice function so that it gets only the allowed tasks."""

    @wraps(choice)
    def chosen(ready: Sequence[Task], state: QueueState) -> Task:
        allowed = [task for task in ready if not holds.get(task.id)]
        task = choice(allowed, state)
        if isinstance(task, Task) and task not in allowed and task in ready:
            raise PolicyError(
                f"policy {policy_name(choice)} returned {graph.describe(task)}, which a constraint holds back; "
                f"expected one of the {len(allowed)} tasks passed to it"
            )
        return task

    return chosen


def obstacle_to(graph: Graph, steps: Sequence[Precedence], needed: Collection[int] | None) -> str | None:
    """Return why no order meets these precedences, as a sentence; None if one does. O(tasks + edges + places)."""
    tasks = len(graph)
    nexts: list[list[int]] = [[edge.next_task for edge in edges] for edges in graph.out_edges]
    if (numbers := stages(graph, needed)) is not None:
        for task, later in stage_edges(numbers, nexts):
            nexts[task].append(later)
    for number, step in enumerate(steps):  # a precedence is an extra node between its two sides
        nexts.append(list(step.then))
        for task_id in step.first:
            nexts[task_id].append(tasks + number)
    missing = [0] * len(nexts)
    for targets in nexts:
        for target in targets:
            missing[target] += 1
    free = [node for node, waits in enumerate(missing) if not waits]
    while free:
        for target in nexts[free.pop()]:
            missing[target] -= 1
            if not missing[target]:
                free.append(target)
    stuck = {node for node, waits in enumerate(missing) if waits}
    if not stuck:
        return None
    starts = [node for node in _on_a_cycle(nexts, stuck) if node >= tasks]
    cycles = [_shortest_cycle(node, nexts, stuck) for node in starts[:_MOST_TRIED]]
    cycle = min(cycles, key=lambda nodes: (sum(node >= tasks for node in nodes), len(nodes)))
    return _contradiction(graph, steps, cycle)


def _on_a_cycle(nexts: Sequence[Sequence[int]], stuck: AbstractSet[int]) -> list[int]:
    """Return the nodes of a cycle. Each stuck node waits for another stuck node, so going back always finds one."""
    before = {target: node for node in stuck for target in nexts[node] if target in stuck}
    node, seen = min(stuck), dict[int, None]()
    while node not in seen:
        seen[node] = None
        node = before[node]
    path = list(seen)
    return path[path.index(node) :]


def _shortest_cycle(start: int, nexts: Sequence[Sequence[int]], stuck: AbstractSet[int]) -> list[int]:
    """Return the nodes of the shortest cycle through a node, starting with it."""
    came_from: dict[int, int] = {}
    queue = deque([start])
    while start not in came_from:
        node = queue.popleft()
        for target in nexts[node]:
            if target in stuck and target not in came_from:
                came_from[target] = node
                queue.append(target)
    path = [came_from[start]]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]


def _contradiction(graph: Graph, steps: Sequence[Precedence], cycle: Sequence[int]) -> str:
    """Describe a cycle that begins with a precedence; the tasks after each precedence lead to the next one."""
    parts: list[tuple[Precedence, list[int]]] = []
    for node in cycle:
        if node >= len(graph):
            parts.append((steps[node - len(graph)], []))
        else:
            parts[-1][1].append(node)
    describe = partial(unique_name, graph)
    if len(parts) == 1:
        step, path = parts[0]
        first, last = describe(path[0]), describe(path[-1])
        return f"{step} cannot be met: {first} has to run before {last}, because {_path_text(graph, path)}"
    said = []
    for (_, path), (step, after) in zip(parts, [*parts[1:], parts[0]], strict=True):
        if len(path) > 1:
            said.append(_path_text(graph, path))
        said.append(f"constraint {step.number} requires {describe(path[-1])} before {describe(after[0])}")
    if len(said) > _MOST_PARTS:
        said = [*said[:_MOST_PARTS], "and so on, back to where it began"]
    names = list({step.number: str(step) for step, _ in reversed(parts)}.values())[::-1]
    together = " together" if len(names) > 1 else ""
    return f"{joined(names, _MOST_PARTS)} cannot be met{together}: {'; '.join(said)}"


def _path_text(graph: Graph, path: Sequence[int]) -> str:
    """Explain why the last task of a path runs after the first."""
    if len(path) > _MOST_STEPS:
        start = [unique_name(graph, task) for task in path[: _MOST_STEPS - 2]]
        shown = [*start, f"{len(path) - len(start) - 1:,} more", unique_name(graph, path[-1])]
    else:
        shown = [unique_name(graph, task) for task in path]
    steps = " → ".join(shown)
    if all(any(edge.next_task == after for edge in graph.out_edges[task]) for task, after in pairwise(path)):
        return f"the gradient goes {steps}"
    reduces = next(task for task in path if graph.tasks[task].name == POST_BACKWARD)
    return (
        f"the path is {steps}, and fully_shard reduces gradients in {unique_name(graph, reduces)}, which every order "
        "runs between the same tasks as PyTorch's own"
    )
