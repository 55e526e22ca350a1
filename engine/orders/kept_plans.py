"""Plans that are kept: of one kind of graph a training loop makes many, and plans once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ...inspector.graph.latest import Latest, LongKey
from ...inspector.torch_internals.saved import is_packed
from .problem import Problem

_plans: Latest[tuple[int, ...]] = Latest()


def kept_plan(
    name: str, planner: Callable[[Problem, Sequence[int]], list[int]], problem: Problem, ran: Sequence[int]
) -> tuple[int, ...]:
    """What the policy of this name planned for such a graph after such tasks, else what its planner plans now."""
    return _plans.of((name, fingerprint(problem), tuple(ran)), lambda: tuple(planner(problem, ran)))


def forget_kept() -> None:
    """None is kept any more."""
    _plans.clear()


def fingerprint(problem: Problem) -> Hashable:
    """What decides on a plan, but for the sizes of what was saved, which mostly follow from it.

    It is made of the names of the nodes, the shapes, dtypes and devices of their gradients, the edges and roots, which
    tasks run, which leaves have a .grad already, what `saved_tensors_hooks` packed, and whether the graph is kept.
    """
    graph = problem.graph
    return LongKey(
        tuple([(task.name, task.inputs) for task in graph.tasks]),
        graph.edges,
        graph.roots,
        problem.needed,
        tuple([leaf.grad is None for leaf in graph.leaves.values()]) if graph.nodes else None,
        tuple(map(is_packed, graph.nodes)),
        problem.keep_graph,
    )
