"""`ts.find_order_dependence`: checks whether a backward depends on the order of its tasks, and where."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf, isfinite

import torch
from torch import Tensor, nn

from ...inspector.graph.graph import Edge, Graph
from ...inspector.text.progress import telling
from ...inspector.torch_private.compiled import keep_compiler_out
from ...inspector.torch_private.tensors import all_elements
from ...inspector.torch_private.thread_state import unobserved
from ...inspector.validation import expect_callable, expect_model
from ..api.make_loss import MakeLoss, expect_make_loss, real_loss_of
from ..api.restore_state import AsFound
from ..planning.policies import find_policy
from ..schedule.ddp_buckets import nothing_reduced
from ..schedule.policy import AnyPolicy, Choice, Policy, policy_name
from .order_dependence import GradientApart, OrderDependence
from .order_explanation import FIRST, AtDeparture, departure_of, tell
from .run_in_order import OrderRun, Print, run_in_order

_MOST = 10_000  # most tasks for which pairs are counted: one bit per pair, 12.5 MB per set of pairs


def count_pairs(graph: Graph, orders: Sequence[Sequence[int]]) -> tuple[int | None, int | None]:
    """Count the pairs of tasks without a path between them, and those of them that ran in both orders.

    Returns (None, None) if the graph has too many tasks.
    """
    tasks = sorted(orders[0])
    if len(tasks) > _MOST:
        return None, None
    behind = dict.fromkeys(tasks, 0)  # per task, bits of all tasks that must run later
    for task in reversed(orders[0]):
        for edge in graph.out_edges[task]:
            if edge.next_task in behind:
                behind[task] |= behind[edge.next_task] | 1 << edge.next_task
    later = dict.fromkeys(tasks, 0)  # per task, bits of the tasks that ran later in any order
    for order in orders:
        seen = 0
        for task in reversed(order):
            later[task] |= seen
            seen |= 1 << task
    everything = sum(1 << task for task in tasks)
    ordered = sum(each.bit_count() for each in behind.values())
    pairs = len(tasks) * (len(tasks) - 1) // 2 - ordered
    # each unordered pair is counted once, or twice if the orders differ
    both = sum((later[task] & everything).bit_count() for task in tasks) - len(tasks) * (len(tasks) - 1) // 2
    return pairs, both


OLDEST = Policy("oldest", "first created, first run", lambda task, arrival: (task.sequence_nr, arrival))
"""The order by creation that is furthest from the engine's. AccumulateGrad, with the highest number, runs last."""

ORDERS: tuple[AnyPolicy, ...] = ("bfs", "dfs", OLDEST, "random(1)", "random(2)", "random(3)", "random(4)")


def find_order_dependence(
    make_loss: MakeLoss,
    policies: Sequence[AnyPolicy] | AnyPolicy = ORDERS,
    *,
    model: nn.Module | None = None,
    progress: Callable[[str], object] | None = None,
) -> OrderDependence:
    """Check whether a backward's results depend on the order of its tasks by more than rounding, and where it starts.

    The engine chooses which ready task runs first, and a program should not depend on this choice. It does if a custom
    Function modifies in place a tensor that another task reads (its incoming gradient, which other tasks may share, or
    a shared buffer), if a hook or a Function counts its calls, or if a backward draws random numbers. Of these, PyTorch
    only detects writes to tensors saved with `save_for_backward`.

    Forward and backward run twice under "heap", PyTorch's own order, and once under each other order, on PyTorch's
    engine. The inputs and outputs of every task are compared bit by bit. Tasks with equal inputs and different outputs
    are examined in one more run of each order: a sum that equals its summands within the rounding of its dtype counts
    as rounding; for everything else the report names the task that modifies a tensor read by another.

    Afterwards .grad, buffers, parameters and random number generators are restored, see `AsFound`. Each run starts
    without .grad. Hooks run; DistributedDataParallel does not reduce.

    Args:
        make_loss: a function that runs the forward and returns the loss, one element. It must build the same graph each
            time.
        policies: the orders to try, as in `ts.backward`; by default bfs, dfs, "oldest" (first created, first run) and
            four random ones.
        model: the module that names modules and parameters, for a forward that calls only parts of it. Pass several
            models as one `nn.ModuleDict({"G": generator, "D": critic})`. None: names start at each outermost module.
        progress: a function that is called before each run with a text such as `bfs (2 of 8)`. None: a progress line is
            shown on a terminal and in a notebook after two seconds.

    Known limitations: a dependence that shows only in untried orders is not found; compare `both_ways` with
    `open_pairs` to see how many pairs the tried orders cover. Writes outside torch's operations (NumPy, extensions) are
    found by their effect, but the writer is not named. For a dependence within one task (a compiled region, a reentrant
    checkpoint), only the task is named. For subclasses of Tensor (DTensor), the rank's local part is compared.

    Raises:
        TypeError: if `make_loss` cannot be called or does not return a tensor, or `policies` are not policies.
        ValueError: if the loss has more than one element or no data, the forwards build different graphs, or
            `policies` is empty or contains an unknown policy.
    """
    expect_make_loss(make_loss, "ts.find_order_dependence")
    expect_model(model)
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function of one text, called before each run")
    others = _chosen(policies)
    world = AsFound(make_loss, "ts.find_order_dependence")
    with telling(progress, "trying orders") as say, world, nothing_reduced():
        say("a run that records writes in place")
        real_loss_of(world.watch())
        study = _Study(world, world.make_loss, model)
        first = study.run(find_policy(FIRST))
        if first is None:
            return OrderDependence((FIRST,), (), (), 0, 0, 0, None)
        say(f"{FIRST} again")
        again = study.run(find_policy(FIRST))
        assert again is not None
        unsteady = _origins(first, again)
        runs, origins = [first], {}
        for number, (name, policy) in enumerate(others.items(), 2):
            say(f"{name} ({number} of {len(others) + 1})")
            run = study.run(policy)
            assert run is not None
            runs.append(run)
            study.compare(name, run, first)
            origins[name] = [task for task in _origins(first, run) if task not in unsteady]
        say("a closer look")
        differing = [
            *study.departures(origins, others),
            *(AtDeparture(task, "unsteady", (FIRST,)) for task in unsteady),
        ]
    graph = first.graph.in_order(first.order)
    places = {task: place for place, task in enumerate(first.order)}
    differing.sort(key=lambda each: (each.how == "rounding", places.get(each.task, len(places))))
    pairs = count_pairs(first.graph, [run.order for run in runs])
    gradients = sorted(study.gradients.values(), key=lambda each: (each.close, -each.share))
    departures = tuple(departure_of(graph, each) for each in differing)
    leaves, unread = len(first.gradients), _unread(first)
    return OrderDependence((FIRST, *others), departures, tuple(gradients), leaves, *pairs, graph, unread)


keep_compiler_out(find_order_dependence)


def _chosen(policies: Sequence[AnyPolicy] | AnyPolicy) -> dict[str, Policy | Choice]:
    """Return the policies other than the first order, by name."""
    if isinstance(policies, str | Policy) or callable(policies):
        policies = (policies,)
    if not isinstance(policies, Iterable):
        raise TypeError(f"policies must be a list of names, Policy objects or functions, got {policies!r}")
    chosen = {policy_name(policy): policy for policy in map(find_policy, policies)}
    chosen.pop(FIRST, None)
    if not chosen:
        raise ValueError(f"policies must name an order other than {FIRST}, which always runs")
    return chosen


class _Study:
    """Runs of one program and the differences found between them.

    Attributes:
        gradients: the largest difference of each leaf's gradient.
    """

    def __init__(self, world: AsFound, make_loss: MakeLoss, model: nn.Module | None) -> None:
        self.gradients: dict[int, GradientApart] = {}
        self._world, self._make_loss, self._model = world, make_loss, model
        self._graph: Graph | None = None

    def run(self, policy: Policy | Choice, closer: Iterable[int] = ()) -> OrderRun | None:
        run = run_in_order(self._world, self._model, self._make_loss, policy, frozenset(closer))
        if run is not None:
            if self._graph is None:
                self._graph = run.graph
            first, own = (
                ([(task.name, task.inputs) for task in of.tasks], of.edges) for of in (self._graph, run.graph)
            )
            if own != first:
                raise ValueError(
                    f"make_loss builds a different graph under {policy_name(policy)} than under {FIRST}, so the orders "
                    "cannot be compared. Make it repeatable: use the same data and sizes, and seed its own random "
                    "generators"
                )
        return run

    def compare(self, name: str, run: OrderRun, first: OrderRun) -> None:
        """Note the leaves whose gradients differ from the first order's, and release this run's gradients."""
        for leaf, gradient in run.gradients.items():
            if run.given[leaf] == first.given[leaf]:
                continue
            share, close = _apart(gradient, first.gradients[leaf])
            known = self.gradients.get(leaf)
            if known is None or (known.close, -known.share) > (close, -share):
                self.gradients[leaf] = GradientApart(_leaf_name(first.graph, leaf, gradient), name, share, close)
        run.gradients.clear()

    def departures(
        self, origins: Mapping[str, Collection[int]], chosen: Mapping[str, Policy | Choice]
    ) -> list[AtDeparture]:
        """Examine each task in the first order that shows more than rounding there, and return the findings.

        Args:
            origins: for each order, the tasks where it starts to differ.
        """
        found: dict[int, AtDeparture] = {}
        under: dict[int, list[str]] = {}
        for name, tasks in origins.items():
            for task in tasks:
                under.setdefault(task, []).append(name)
        plain = self._looked(find_policy(FIRST), under) if under else None
        for name, tasks in origins.items():
            unknown = [task for task in tasks if task not in found or found[task].how == "rounding"]
            if unknown and plain is not None:
                other = self._looked(chosen[name], unknown)
                found.update((task, tell(task, plain, other, name, tuple(under[task]))) for task in unknown)
        return list(found.values())

    def _looked(self, policy: Policy | Choice, tasks: Iterable[int]) -> OrderRun:
        run = self.run(policy, tasks)
        assert run is not None
        run.gradients.clear()
        return run


def _origins(first: OrderRun, run: OrderRun) -> list[int]:
    """Return the tasks at which two runs start to differ.

    At such a task either the gradients sent to it are equal and its inputs differ, or its inputs are equal and its
    outputs differ. A leaf's .grad is not compared if a nested backward adds to it too.
    """
    found = []
    for task in first.graph.tasks:
        if task.id not in first.taken or task.id not in run.taken:
            continue
        if first.taken[task.id] == run.taken[task.id]:
            if task.id not in run.fed_inside and first.given.get(task.id) != run.given.get(task.id):
                found.append(task.id)
        elif all(_gave(first, edge) == _gave(run, edge) for edge in first.graph.in_edges[task.id]):
            found.append(task.id)
    return found


def _unread(run: OrderRun) -> tuple[int, ...]:
    """Return the tasks with a gradient whose bits cannot be read."""
    return tuple(
        task.id
        for task in run.graph.tasks
        if any(each == () for each in (*run.taken.get(task.id, ()), *run.given.get(task.id, ())))
    )


def _gave(run: OrderRun, edge: Edge) -> Print | None:
    given = run.given.get(edge.task, ())
    return given[edge.output] if edge.output < len(given) else None


def _apart(gradient: Tensor | None, first: Tensor | None) -> tuple[float, bool]:
    """Return the relative difference, and whether torch.testing would accept the two as equal."""
    if gradient is None or first is None:
        return inf, False
    with unobserved():
        one, other = all_elements(gradient), all_elements(first)
        if one is None or other is None:
            return inf, False
        try:
            torch.testing.assert_close(one, other, equal_nan=True)
            close = True
        except AssertionError:
            close = False
        if not (one.is_floating_point() or one.is_complex()) or one.shape != other.shape:
            return inf, close
        one, other = (each.to(torch.complex128 if each.is_complex() else torch.float64) for each in (one, other))
        norm = float(other.norm())
        share = float((one - other).norm()) / norm if norm else inf
    return (share if isfinite(share) else inf), close


def _leaf_name(graph: Graph, leaf: int, gradient: Tensor | None) -> str:
    if leaf < len(graph) and graph.tasks[leaf].parameter:
        return str(graph.tasks[leaf].parameter)
    if gradient is None:
        return "a leaf"
    return f"a leaf of shape {'×'.join(map(str, gradient.shape))}" if gradient.dim() else "a scalar leaf"
