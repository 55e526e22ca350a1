"""`th.simulate`: the memory of a backward under any policy, or in an order that is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index, lt

from torch import Tensor
from torch.autograd.graph import GradientEdge

from ...inspector.arguments import expect, expect_truth
from ...inspector.graph.collector import collector_paused
from ...inspector.graph.graph import Graph
from ..memory.accumulation import PYTORCHS, Accumulate, Accumulation, Release
from ..memory.footprint import Footprints
from ..memory.timeline import Timeline
from ..prediction.dry_run import dry_run
from ..prediction.footprint_program import (
    compiled,
)
from ..prediction.simulation import _OtherRule, _refuse_other_stages, _Simulation, difference
from ..queue.policy import AnyPolicy, Policy, is_dynamic, policy_name
from .policies import find_policy
from .schedule import schedule


def simulate(
    graph: Graph,
    order: AnyPolicy | Sequence[int] = "heap",
    footprints: Footprints | None = None,
    *,
    retain_graph: bool | None = None,
    accumulate: Accumulate = "inplace",
    release: Release = "eager",
) -> Timeline:
    """Predicts the memory of a backward. Nothing is executed.

    The engine's rules are followed to the reference: what is summed in place and what into a new block, which gradient
    becomes a .grad without a copy, what views hold on to, when saved tensors go. Where tasks allocate what their
    footprints say, the result is the engine's, event by event; `Timeline.estimates` says what may differ.

    Args:
        graph: the graph.
        order: a policy, or the ids of the tasks in a legal order. It may leave out what a backward with `inputs=` does.
        footprints: what the tasks allocate: those of a measured run; None: `dry_run(graph)`.
        retain_graph: as in `torch.autograd.backward`; None: as in the run from which the footprints are.
        accumulate, release: how gradients that meet are summed, and when they are let go, see `Accumulation`. The
            footprints may be those of a run under another rule. A policy that plans, plans for PyTorch's.

    Known limitations: each task is predicted by itself. What `batch=` runs as one takes copies and keeps factors for
    longer; `th.profile(make_loss, engine="direct", batch="auto")` measures that.

    Raises:
        ValueError: the order is not legal, or that of a policy which decides while the backward runs; or the footprints
            are another graph's.
        TypeError: the graph, the footprints or an id in the order is something else.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"th.simulate takes a graph, not a {type(graph).__name__}{_instead(graph)}")
    expect(order, Iterable | Callable | Policy, "order", "a policy, or the ids of all tasks as they are to run")
    if retain_graph is not None:
        expect_truth(retain_graph, "retain_graph")
    accumulation = Accumulation(accumulate, release)
    if footprints is not None and not isinstance(footprints, Footprints):
        kind = type(footprints).__name__
        raise TypeError(f"footprints are those of a measured run, th.profile(...).footprints, not a {kind}")
    with collector_paused():
        if footprints is None:
            footprints = dry_run(graph)
        elif (other := difference(graph, footprints.graph)) is not None:
            raise ValueError(f"the footprints are not this graph's: {other}")
        program = compiled(footprints)
        places = _places(graph, order, footprints, program.edges)
        _refuse_other_stages(graph, places)
        keep_graph = footprints.keep_graph if retain_graph is None else retain_graph
        if accumulation == PYTORCHS:
            return _Simulation(graph, footprints, program, keep_graph).run(places)
        return _OtherRule(graph, footprints, program, keep_graph, accumulation).run(places)


def _instead(given: object) -> str:
    """What to pass in place of this."""
    if isinstance(given, Tensor | GradientEdge):
        return ": th.simulate(th.graph(loss))"
    return ": pass its .graph" if isinstance(getattr(given, "graph", None), Graph) else ""


def _places(
    graph: Graph, order: AnyPolicy | Sequence[int], footprints: Footprints, edges: tuple[Sequence[int], Sequence[int]]
) -> Sequence[int]:
    """The ids of the tasks in their order, which is legal."""
    if isinstance(order, str | Policy) or callable(order):
        policy = find_policy(order)
        if is_dynamic(policy):
            raise ValueError(f"policy {policy_name(policy)} decides while the backward runs; give an order instead")
        return schedule(graph, policy, footprints=footprints)
    if isinstance(order, Tensor) and (order.dim() != 1 or order.is_floating_point()):
        raise TypeError("order is a Tensor of other than whole numbers in a row; expected the ids of all tasks")
    order = tuple(order)
    if set(map(type, order)) - {int}:
        order = tuple(graph.task(index(each) if hasattr(each, "__index__") else each).id for each in order)
    count = len(graph)
    place_of = [-1] * count
    for place, task_id in enumerate(order):
        if not 0 <= task_id < count:
            graph.task(task_id)  # raises
        if place_of[task_id] >= 0:
            raise ValueError(f"not a legal order: {graph.describe(task_id)} is in it twice")
        place_of[task_id] = place
    first_places, then_places = (map(place_of.__getitem__, tasks) for tasks in edges)
    if len(order) == count and all(map(lt, first_places, then_places)):
        return order
    for edge in graph.edges:
        after = place_of[edge.next_task]
        if after >= 0 and not 0 <= place_of[edge.task] < after:
            first, then = graph.describe(edge.task), graph.describe(edge.next_task)
            why = f"comes before {first}" if place_of[edge.task] >= 0 else f"is in it without {first}"
            raise ValueError(f"not a legal order: {then} {why}, for whose gradient it waits")
    return order
