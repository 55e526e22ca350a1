"""`ts.find_order_dependence`: whether a backward depends on the order of its tasks, and where."""

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

_MOST = 10_000  # tasks: a bit for each pair, 12.5 MB for each set of pairs


def count_pairs(graph: Graph, orders: Sequence[Sequence[int]]) -> tuple[int | None, int | None]:
    """The pairs between which no path leads, and those among them that come one way in one order and the other way in
    another. None where the graph has too many tasks."""
    tasks = sorted(orders[0])
    if len(tasks) > _MOST:
        return None, None
    behind = dict.fromkeys(tasks, 0)  # bits of all that has to come later
    for task in reversed(orders[0]):
        for edge in graph.out_edges[task]:
            if edge.next_task in behind:
                behind[task] |= behind[edge.next_task] | 1 << edge.next_task
    later = dict.fromkeys(tasks, 0)  # what came later in any of the orders
    for order in orders:
        seen = 0
        for task in reversed(order):
            later[task] |= seen
            seen |= 1 << task
    everything = sum(1 << task for task in tasks)
    ordered = sum(each.bit_count() for each in behind.values())
    pairs = len(tasks) * (len(tasks) - 1) // 2 - ordered
    # each pair of any order is there once, or twice where orders differ
    both = sum((later[task] & everything).bit_count() for task in tasks) - len(tasks) * (len(tasks) - 1) // 2
    return pairs, both


OLDEST = Policy("oldest", "first created, first run", lambda task, arrival: (task.sequence_nr, arrival))
"""As far from the engine's own order as there is one by creation: AccumulateGrad last, its number is the highest."""

ORDERS: tuple[AnyPolicy, ...] = ("bfs", "dfs", OLDEST, "random(1)", "random(2)", "random(3)", "random(4)")


def find_order_dependence(
    make_loss: MakeLoss,
    policies: Sequence[AnyPolicy] | AnyPolicy = ORDERS,
    *,
    model: nn.Module | None = None,
    progress: Callable[[str], object] | None = None,
) -> OrderDependence:
    """Whether a backward depends on the order of its tasks by more than rounding, and where that begins.

    Which of the ready tasks runs first is the engine's choice, and no program should hang on it. One does where a
    custom Function writes in place into what another task reads (its own incoming gradient, which others may have been
    given, too, or a buffer that they share), where a hook or a Function counts its calls, and where a backward draws
    random numbers. PyTorch looks at none of it but writes into what `save_for_backward` has.

    Runs forward and backward under "heap", PyTorch's own order, twice, and once under each other order, on PyTorch's
    engine, and notes to the bit what each task takes and gives. The tasks whose gradients come from equal ones and are
    not equal are looked at closely, in a run of the one order and of the other: a sum that has the value of its parts,
    within the rounding of its dtype, is rounding; all else is said with the task that writes where another one reads.

    Nothing stays: .grad, buffers, parameters and random numbers are as they were, see `AsFound`. Each run begins
    without .grad; hooks run; DistributedDataParallel reduces nothing.

    Args:
        make_loss: runs the forward and returns the loss, one element; it has to build the same graph each time.
        policies: the orders to try, as in `ts.backward`; by default bfs, dfs, "oldest" (first created, first run) and
            four random ones.
        model: names modules and parameters after this module, where the forward calls parts of it and never itself;
            several are one `nn.ModuleDict({"G": generator, "D": critic})`. None: after each outermost module that is
            called.
        progress: called before each run with what comes, such as `bfs (2 of 8)`. None: on a terminal and in a notebook
            a line says it, after two seconds.

    Known limitations: what only other orders show is not found: `both_ways` of `open_pairs` says how far the tried ones
    went. What is written past torch's operations (NumPy, extensions) is found by what comes of it, its writer is not.
    Of what runs inside of one task (a compiled region, a reentrant checkpoint) the task is named. Of subclasses of
    Tensor (DTensor) the rank's own part is compared.

    Raises:
        TypeError: `make_loss` can't be called, or returns no tensor; `policies` are none.
        ValueError: the loss has more than one element, or no memory; the forwards build different graphs; there is no
            policy, or an unknown one.
    """
    expect_make_loss(make_loss, "ts.find_order_dependence")
    expect_model(model)
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function that is told what runs next")
    others = _chosen(policies)
    world = AsFound(make_loss, "ts.find_order_dependence")
    with telling(progress, "trying orders") as say, world, nothing_reduced():
        say("a run that shows what is written")
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
        told = [*study.departures(origins, others), *(AtDeparture(task, "unsteady", (FIRST,)) for task in unsteady)]
    graph = first.graph.in_order(first.order)
    places = {task: place for place, task in enumerate(first.order)}
    told.sort(key=lambda each: (each.how == "rounding", places.get(each.task, len(places))))
    pairs = count_pairs(first.graph, [run.order for run in runs])
    gradients = sorted(study.gradients.values(), key=lambda each: (each.close, -each.share))
    departures = tuple(departure_of(graph, each) for each in told)
    leaves, unread = len(first.gradients), _unread(first)
    return OrderDependence((FIRST, *others), departures, tuple(gradients), leaves, *pairs, graph, unread)


keep_compiler_out(find_order_dependence)


def _chosen(policies: Sequence[AnyPolicy] | AnyPolicy) -> dict[str, Policy | Choice]:
    """By name those beside the first."""
    if isinstance(policies, str | Policy) or callable(policies):
        policies = (policies,)
    if not isinstance(policies, Iterable):
        raise TypeError(f"policies is a list of names, Policy objects or functions, not {policies!r}")
    chosen = {policy_name(policy): policy for policy in map(find_policy, policies)}
    chosen.pop(FIRST, None)
    if not chosen:
        raise ValueError(f"there is no policy to hold against {FIRST}, which runs anyway: policies= has no other")
    return chosen


class _Study:
    """Runs of one program, and what is found in them.

    Attributes:
        gradients: by leaf how far it is apart at most.
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
            _expect_same_graph(self._graph, run.graph, policy_name(policy))
        return run

    def compare(self, name: str, run: OrderRun, first: OrderRun) -> None:
        """Notes which leaves' gradients are others than under the first order, and lets this run's go."""
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
        """What a closer look says of each task, by the first order that shows more than rounding there.

        Args:
            origins: by order the tasks where it begins to differ.
        """
        told: dict[int, AtDeparture] = {}
        under: dict[int, list[str]] = {}
        for name, tasks in origins.items():
            for task in tasks:
                under.setdefault(task, []).append(name)
        plain = self._looked(find_policy(FIRST), under) if under else None
        for name, tasks in origins.items():
            unknown = [task for task in tasks if task not in told or told[task].how == "rounding"]
            if unknown and plain is not None:
                other = self._looked(chosen[name], unknown)
                told.update((task, tell(task, plain, other, name, tuple(under[task]))) for task in unknown)
        return list(told.values())

    def _looked(self, policy: Policy | Choice, tasks: Iterable[int]) -> OrderRun:
        run = self.run(policy, tasks)
        assert run is not None
        run.gradients.clear()
        return run


def _origins(first: OrderRun, run: OrderRun) -> list[int]:
    """The tasks at which two runs begin to differ: what is given to them is equal, and not what they take; or what they
    take is, and not what they give. What is in a leaf's .grad is not what its task gave where others add to it, too."""
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
    """How far they are apart, and whether torch.testing would take them for equal."""
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


def _expect_same_graph(first: Graph, graph: Graph, order: str) -> None:
    def signature(of: Graph) -> object:
        return [(task.name, task.inputs) for task in of.tasks], of.edges

    if graph is not first and signature(graph) != signature(first):
        raise ValueError(
            f"make_loss builds another graph each time, under {order} than under {FIRST}, so that its orders can't be "
            "held against each other. Fix what changes: the data, its sizes, random numbers of generators of its own"
        )
