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
from ..memory.task_memory import Footprints, for_graph
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
    """The task ids in the order in which `policy` runs them.

    Args:
        graph: the graph.
        policy: a name, a `Policy` or a callable (ready tasks, state) -> task.
        needed: the tasks that are going to run at all, as `inputs=` leaves them; None: all.
        ran: the tasks with which the order starts, whatever the policy says: it goes on from there.
        footprints: what the tasks allocate, for a policy that plans by memory; None: a dry run finds it out.
        queues: "per device" gives each device a queue of its own, which it works through as it comes to it, by
            `Problem.durations`; the order is that in which tasks start.

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
    """Predicts the memory of a backward, which does not run.

    Without footprints, `dry_run` asks each node once on fake tensors, and runs each distinct operator whose workspace
    is not known once, alone, on real tensors of its shapes on the CPU. The first prediction for new shapes takes the
    time of these kernels, which may be more than that of the backward, and meanwhile real memory: at most 2 GiB of
    arguments and results, and half of what is free, for one operator at a time. Later ones take none.

    The engine's rules are followed to the reference: what is summed in place and what into a new block, which gradient
    becomes a .grad without a copy, what views hold on to, when saved tensors go. Where tasks allocate what their
    footprints say, the result is the engine's, event by event; `Timeline.estimates` says what may differ, and
    `Timeline.direction` whether the true peak is "at least" or "at most" the predicted one, or "unknown".

    Args:
        graph: the graph.
        order: a policy, or the ids of the tasks in a legal order. It may leave out what a backward with `inputs=` does.
        footprints: what the tasks allocate: those of a measured run, of one of its devices
            (`run.footprints_by_device`); None: `dry_run(graph, device)`.
        device: whose memory. None: that of the footprints; without these of the accelerator on which the graph is, of
            several of the one on which its nodes keep most; else of the CPU.
        retain_graph: as in `torch.autograd.backward`; None: as in the run from which the footprints are.
        accumulate, release: how gradients that meet are summed, and when they are let go, see `Accumulation`. The
            footprints may be those of a run under another rule. A policy that plans, plans for PyTorch's.

    Known limitations: each task is predicted by itself. What `batch=` runs as one takes copies and keeps factors for
    longer; `ts.profile(make_loss, engine="direct", batch="auto")` measures that.

    Raises:
        ValueError: the order is not legal, or that of a policy which decides while the backward runs; or the footprints
            are another graph's, or another device's.
        TypeError: the graph, the footprints or an id in the order is something else.
    """
    from ..memory.simulation import difference, simulated

    if not isinstance(graph, Graph):
        raise TypeError(f"ts.simulate takes a graph, not {a_kind(graph)}{_instead(graph)}")
    expect(order, Iterable | Callable | Policy, "order", "a policy, or the ids of all tasks as they are to run")
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
            raise ValueError(f"the footprints are not this graph's: {other}")
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


def _instead(given: object) -> str:
    """What to pass in place of this."""
    if isinstance(given, Tensor | GradientEdge):
        return ": ts.simulate(ts.graph(loss))"
    if callable(given):
        return ": ts.simulate(ts.graph(loss)), where loss is what the function makes"
    return ": pass its .graph" if isinstance(getattr(given, "graph", None), Graph) else ""
