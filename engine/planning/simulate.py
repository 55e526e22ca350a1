"""`ts.simulate`: the memory of a backward under any policy, and the order that a policy gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.graph import Graph
from ...inspector.text.progress import telling
from ...inspector.validation import a_kind, expect, expect_truth
from ..execution.accumulation_rule import Accumulate, Accumulation, Release
from ..memory.device_choice import chosen_device
from ..memory.dry_run import dry_run
from ..memory.task_memory import Footprints, difference, for_graph
from ..memory.timeline import Timeline
from ..schedule.device_queues import Queues
from ..schedule.policy import AnyPolicy, Policy, is_dynamic, policy_name
from .policies import find_policy
from .policy_orders import order_of
from .scheduling_problem import Problem


def schedule(
    graph: Graph,
    policy: AnyPolicy,
    needed: Collection[int] | None = None,
    ran: Sequence[int] = (),
    footprints: Footprints | None = None,
    queues: Queues = "one",
) -> list[int]:
    """Return the task ids in the order in which `policy` runs them.

    Args:
        graph: the graph.
        policy: a name, a `Policy` or a callable (ready tasks, state) -> task.
        needed: the tasks that run, given `inputs=`; None: all.
        ran: the tasks that have already run; the order starts with them.
        footprints: the allocations of the tasks, for a policy that plans by memory; None: a dry run.
        queues: "per device" gives each device its own queue, with the times of `Problem.durations`; the order is then
            that in which tasks start.

    Raises:
        PolicyError: a user's policy returned something that is not ready.
    """
    return order_of(find_policy(policy), Problem(graph, footprints, needed), ran, queues)


def simulate(
    graph: Graph,
    order: AnyPolicy | Sequence[int] = "heap",
    footprints: Footprints | None = None,
    *,
    device: torch.device | str | None = None,
    retain_graph: bool | None = None,
    accumulate: Accumulate = "inplace",
    release: Release = "eager",
) -> Timeline:
    """Predict the memory of a backward without running it.

    Without footprints, `dry_run` calls each node once on fake tensors, and runs each distinct operator whose workspace
    is unknown once, on real tensors of its shapes on the CPU. The first prediction for new shapes therefore takes the
    time of these kernels, which can be more than that of the backward, and real memory: for one operator at a time, at
    most 2 GiB of arguments and results, and at most half of the free memory. Later predictions need neither.

    The simulation follows the engine's rules for every reference: which sums happen in place, which gradient becomes a
    .grad without a copy, which storages views keep alive, when saved tensors are freed. If tasks allocate as their
    footprints say, the result equals the engine's, event by event. `Timeline.estimates` lists possible differences, and
    `Timeline.direction` says whether the true peak is "at least" or "at most" the predicted one, or "unknown".

    Args:
        graph: the graph.
        order: a policy, or the ids of the tasks in a legal order; tasks that `inputs=` excludes may be left out.
        footprints: the allocations of the tasks on one device, from a measured run (`run.footprints_by_device`);
            None: `dry_run(graph, device)`.
        device: the device whose memory is predicted. None: that of the footprints; without footprints the accelerator
            of the graph (with several, the one on which nodes save most), or the CPU.
        retain_graph: as in `torch.autograd.backward`; None: as in the run that gave the footprints.
        accumulate, release: how gradients are summed, and when they are freed, see `Accumulation`. The footprints may
            be from a run under another rule. A planning policy plans for PyTorch's rule.

    Known limitations: each task is predicted on its own. Groups run by `batch=` allocate copies and keep factors
    longer; `ts.profile(make_loss, engine="direct", batch="auto")` measures them.

    Raises:
        ValueError: the order is not legal, or comes from a policy that decides while the backward runs; or the
            footprints belong to another graph or device.
        TypeError: the graph, the footprints or an id in the order has the wrong type.
    """
    from ..memory.simulation import simulated

    if not isinstance(graph, Graph):
        instead = ": pass its .graph" if isinstance(getattr(graph, "graph", None), Graph) else ""
        if isinstance(graph, Tensor | GradientEdge):
            instead = ": ts.simulate(ts.graph(loss))"
        elif callable(graph):
            instead = ": ts.simulate(ts.graph(loss)), where loss is the result of the function"
        raise TypeError(f"ts.simulate expected a graph, got {a_kind(graph)}{instead}")
    expect(order, Iterable | Callable | Policy, "order", "a policy, or the ids of all tasks in a legal order")
    if retain_graph is not None:
        expect_truth(retain_graph, "retain_graph")
    accumulation = Accumulation(accumulate, release)
    if footprints is not None and not isinstance(footprints, Footprints):
        kind = type(footprints).__name__
        raise TypeError(f"footprints are those of a measured run, ts.profile(...).footprints, not a {kind}")
    with telling(None, "simulating") as tell, collector_paused():
        tell(f"a backward of {len(graph):,} tasks")
        if footprints is None:
            footprints = dry_run(graph, device)
        elif (other := difference(graph, footprints.graph)) is not None:
            raise ValueError(f"the footprints belong to another graph: {other}")
        else:
            footprints = for_graph(footprints, graph)
            if device is not None:
                chosen_device(device, [footprints.device])
        if isinstance(order, str | Policy) or callable(order):
            policy = find_policy(order)
            if is_dynamic(policy):
                raise ValueError(f"policy {policy_name(policy)} decides while the backward runs; give an order instead")
            order = schedule(graph, policy, footprints=footprints)
        return simulated(graph, order, footprints, retain_graph, accumulation)
