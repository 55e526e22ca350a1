"""`ts.compare`: one program's memory and time under several policies, measured and predicted, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, get_args

from torch import Tensor, nn

from ...inspector.capture.build_graph import read_graph
from ...inspector.capture.capture import capture
from ...inspector.graph.graph import Edge, Graph
from ...inspector.hips.tape import HipsTape
from ...inspector.text.progress import telling
from ...inspector.validation import expect, expect_callable, expect_choice, expect_model, expect_number
from ..api.backward import backward
from ..api.make_loss import MakeLoss, expect_make_loss, loss_or_tape, real_loss_of
from ..api.restore_state import AsFound
from ..execution.accumulation_rule import PYTORCHS, Accumulate, Accumulation, GraphRule, Release
from ..memory.device_choice import devices_of
from ..memory.timeline import Timeline
from ..planning.policies import find_policy
from ..planning.policy_orders import bound
from ..planning.simulate import schedule
from ..recompute.apply_plan import apply_plan
from ..recompute.plan import RecomputePlan
from ..recompute.planned_recompute import PlannedRecompute
from ..schedule.dependencies import queue_lengths
from ..schedule.policy import AnyPolicy, Choice, Policy, is_dynamic, policy_name
from ..training.step import TrainingStep
from .comparison import GRAPH_KEPT, RECOMPUTED, Comparison, Row

if TYPE_CHECKING:
    from ..memory.task_memory import Footprints
    from ..planning.scheduling_problem import Problem
    from ..recording.run import Engine
    from ..schedule.device_queues import Queues

_Signature = tuple[tuple[object, ...], tuple[Edge, ...]]


def compare(
    make_loss: MakeLoss,
    policies: Sequence[AnyPolicy] | AnyPolicy = ("bfs", "dfs", "heap"),
    *,
    accumulate: Sequence[Accumulate] | Accumulate = "inplace",
    release: Sequence[Release] | Release = "eager",
    graph: Sequence[GraphRule] | GraphRule = "freed",
    recompute: Sequence[RecomputePlan | None] | RecomputePlan | None = None,
    repetitions: int = 3,
    queues: Queues = "one",
    progress: Callable[[str], object] | None = None,
    model: nn.Module | None = None,
    step: TrainingStep | None = None,
) -> Comparison:
    """Run forward and backward under each policy: once to measure and predict memory, then repeatedly for timing.

    Every run starts from the same state, which is restored afterwards: each .grad, random number generators, and the
    tensors that `make_loss` and its backward modify, such as a BatchNorm's running statistics (see `AsFound` for what
    cannot be restored). There are `2 + policies × (1 + repetitions)` runs: one to find modified tensors, one for the
    prediction, and for each policy one with memory recorded and `repetitions` without. For a program on several
    devices, the table shows the device with the highest peak; `Comparison.on(device)` shows another.

    Args:
        make_loss: a function that runs the forward and returns the loss, one element, or a tape (`ts.hips.tape`). It
            must build the same graph each time.
        policies: the policies, as in `ts.backward`; a single one is allowed.
        accumulate, release: rules as in `ts.backward`, one or several of each. There is a row for every policy under
            every rule, such as "heap, list, never released". With any rule other than PyTorch's, all rows run on the
            direct engine, to make their times comparable.
        graph: "freed", the default: nodes free their saved tensors as they run. "kept": they keep them until the
            backward has ended (`retain_graph=True`). For both, each row has one more, such as "heap, graph kept", and
            the table shows the average of memory beside the peak.
        recompute: a plan from `ts.plan_recompute`, or several. Each policy has a row without a plan, such as "heap",
            and one with each plan, "heap, recomputed". [plan] runs only with the plan; [None, plan] equals plan.
        repetitions: how often to time each row. The order of the policies changes between rounds.
        queues: the queues for the timed runs, as in `ts.backward`. Memory is always measured with one queue.
        progress: a function that is called before each run with a text such as `bfs, round 3 of 7`. None: a progress
            line is shown on a terminal and in a notebook after two seconds.
        model: the module that names modules and parameters, for a forward that calls only parts of it. Pass several
            models as one `nn.ModuleDict({"G": generator, "D": critic})`. None: names start at each outermost module.
        step: the training step that contains this forward and backward, from `ts.profile_step`, or the traced one of
            `ts.record_steps`. The table then also shows the step's peak under each policy.

    Raises:
        TypeError: if `make_loss` cannot be called or does not return a tensor, or `policies` are not policies.
        ValueError: if `repetitions` is below 1, a policy or rule is missing, unknown or repeated, the loss has more
            than one element, the forwards build different graphs, a plan is for another forward or repeated, or
            `graph` is "kept" and make_loss returns a tape, which keeps its graph in any case.
        NotImplementedError: if memory cannot be recorded on this device, or other rules are compared on a graph that
            the direct engine does not support or with a queue per device.
        PolicyError: if the ranks of a process group run different orders.
    """
    expect_make_loss(make_loss, "ts.compare")
    expect_model(model)
    beside = None if step is None else _beside(step)
    expect_choice(queues, ("one", "per device"), "queues")
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function of one text, called before each run")
    expect_number(repetitions, int, "repetitions", "the number of timed runs of each policy, an integer")
    for name, ways in (("accumulate", accumulate), ("release", release)):
        expect(ways, Iterable, name, "one way, or a list of them")
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, got {repetitions}")
    named = chosen_policies(policies)
    rules = [(rule, each) for each in chosen_graphs(graph) for rule in chosen_rules(accumulate, release)]
    plans = _chosen_plans(recompute)
    if _needs_direct(rules) and queues != "one":
        raise NotImplementedError(
            "other accumulation rules need the direct engine, which has one queue; pass queues='one'"
        )
    with telling(progress, "comparing", timed=True) as tell, AsFound(make_loss, "ts.compare") as world:
        found = _compared(world, world.make_loss, model, named, rules, plans, repetitions, queues, tell)
    return found if beside is None else replace(found, step=step)


def _beside(step: TrainingStep) -> tuple[int, int]:
    """Return the step's memory outside this backward. Raises as `compare` does."""
    expect(step, TrainingStep, "step", "a step such as ts.profile_step gives, or one of ts.record_steps")
    return step.beside_backward


_Rules = list[tuple[Accumulation, GraphRule]]


def _needs_direct(rules: _Rules) -> bool:
    """Return whether a rule is not one of PyTorch's own engine."""
    return any(rule != PYTORCHS for rule, _ in rules)


class _Chosen(NamedTuple):
    """The policy, rules and plan of one row."""

    policy: Policy | Choice
    rule: Accumulation
    graph: GraphRule
    plan: RecomputePlan | None
    forward: MakeLoss

    @property
    def retain_graph(self) -> bool | None:
        return True if self.graph == "kept" else None


class _Measured(NamedTuple):
    """The memory of one row on one device."""

    timeline: Timeline
    footprints: Footprints
    row: _Chosen


_ByDevice = dict[str, _Measured]
"""The memory of one row by device, the primary device first."""


class _DryRun(NamedTuple):
    """A peak predicted before any backward ran, and the reasons why it is an estimate."""

    peak_bytes: int
    estimates: tuple[str, ...]
    start_bytes: int

    @staticmethod
    def of(drawn: Graph, row: _Chosen, footprints: Footprints) -> _DryRun:
        """Predict the peak without keeping the graph."""
        from ..planning.simulate import simulate

        found = simulate(
            drawn,
            row.policy,
            footprints,
            retain_graph=row.retain_graph,
            accumulate=row.rule.accumulate,
            release=row.rule.release,
        )
        return _DryRun(found.peak_bytes, found.estimates, found.start_bytes)


class _Comparing:
    """The runs of one comparison, each of which starts from the same state.

    Attributes:
        is_tape: whether `make_loss` returns tapes of HIPS autograd, which the direct engine runs.
    """

    is_tape = False

    def __init__(
        self,
        world: AsFound,
        make_loss: MakeLoss,
        model: nn.Module | None,
        plans: Iterable[RecomputePlan | None],
        tell: Callable[[str], object],
    ) -> None:
        self._model = model
        self._world = world
        self._make_loss = make_loss
        self._plans = plans
        self._tell = tell
        self._leaves: list[Tensor] = []
        self._signature: _Signature = ((), ())

    def warm_up(
        self, chosen: Callable[[Problem], dict[str, _Chosen]]
    ) -> tuple[dict[str, _Chosen], dict[str, dict[str, _DryRun]]]:
        """Run a forward and its backward to find modified tensors, then a forward under each plan.

        Returns the rows by name, planned once for all runs, and their predictions by device.
        """
        from ..memory.dry_run import dry_run
        from ..planning.scheduling_problem import Problem

        self._tell("warming up")
        self._world.watch()
        with self._world.run():
            with capture(self._model, every_call=True):
                loss = loss_or_tape(self._make_loss())
            self.is_tape = isinstance(loss, HipsTape)
            drawn = read_graph(loss)
            self._leaves = list(drawn.leaves.values())
            self._signature = _signature(drawn)
            footprints = dry_run(drawn)
            found = chosen(Problem(drawn, footprints))
            if self.is_tape and any(row.graph == "kept" for row in found.values()):
                raise ValueError("a tape of HIPS autograd keeps its graph in any case; leave out graph=")
            elsewhere = [] if self.is_tape else [str(each) for each in devices_of(drawn)]
            predicted = {
                each.device: {
                    name: _DryRun.of(drawn, row, each)
                    for name, row in found.items()
                    if not is_dynamic(row.policy) and row.plan is None
                }
                for each in (footprints, *(dry_run(drawn, each) for each in elsewhere if each != footprints.device))
            }
            backward(loss)
        del loss, drawn, footprints
        for plan in self._plans:
            if plan is not None:
                with self._world.run(self._leaves):
                    # The first forward under a plan keeps all saved tensors, to verify the plan.
                    _run(self._make_loss, plan)
        return found, predicted

    def memory(self, name: str, row: _Chosen, engine: Engine) -> _ByDevice:
        """Measure the memory of a forward and its backward."""
        from ..api.profile import profile
        from ..api.time_backwards import as_asked

        self._tell(f"{name}, its memory")
        with self._world.run(self._leaves):
            run = profile(
                row.forward,
                row.policy,
                retain_graph=row.retain_graph,
                engine=engine,
                accumulate=row.rule.accumulate,
                release=row.rule.release,
                model=self._model,
            )
        run = as_asked(run, row.policy)
        _assert_same_graph(self._signature, run.graph, name)
        node_free = replace(run.graph, nodes=())
        return {
            device: _Measured(
                replace(timeline, graph=node_free), replace(run.footprints_by_device[device], graph=node_free), row
            )
            for device, timeline in run.timelines.items()
        }

    def time(self, name: str, row: _Chosen, order: Sequence[int], queues: Queues | None) -> int:
        """Time a backward in nanoseconds on PyTorch's engine with these queues; None: on the direct engine."""
        from ..api.time_backwards import time_backward, time_stepped

        check = partial(_assert_same_graph, self._signature, policy=name)
        with self._world.run(self._leaves):
            if queues is None:
                return time_stepped(row.forward, row.policy, row.rule, check, row.retain_graph)
            known = None if is_dynamic(row.policy) else order
            return time_backward(row.forward, row.policy, known, check, queues, row.retain_graph)


def _compared(
    world: AsFound,
    make_loss: MakeLoss,
    model: nn.Module | None,
    named: dict[str, Policy | Choice],
    rules: _Rules,
    plans: dict[str, RecomputePlan | None],
    repetitions: int,
    queues: Queues,
    tell: Callable[[str], object],
) -> Comparison:
    from ..api.time_backwards import turns

    def rows_of(problem: Problem) -> dict[str, _Chosen]:
        planned = {name: bound(policy, problem) for name, policy in named.items()}
        forwards = {plan: make_loss if plan is None else partial(_run, make_loss, plan) for plan in plans.values()}
        return {
            rule.of(name) + (GRAPH_KEPT if graph == "kept" else "") + suffix: _Chosen(
                policy, rule, graph, plan, forwards[plan]
            )
            for name, policy in planned.items()
            for rule, graph in rules
            for suffix, plan in plans.items()
        }

    comparing = _Comparing(world, make_loss, model, plans.values(), tell)
    chosen, predicted = comparing.warm_up(rows_of)
    stepped = comparing.is_tape or _needs_direct(rules)
    runs = {name: comparing.memory(name, row, "direct" if stepped else "native") for name, row in chosen.items()}
    times: dict[str, list[int]] = {name: [] for name in chosen}
    for number, round_ in enumerate(turns(list(chosen.items()), repetitions)):
        for name, row in round_:
            tell(f"{name}, round {number + 1:,} of {repetitions:,}")
            order = next(iter(runs[name].values())).timeline.order
            times[name].append(comparing.time(name, row, order, None if stepped else queues))
    highest = max((next(iter(each.values())).timeline for each in runs.values()), key=lambda each: each.peak_bytes)
    found: list[Comparison] = []
    for device in sorted(next(iter(runs.values())), key=lambda each: each == highest.device):  # this is the last
        there = {name: each[device] for name, each in runs.items()}
        rows = tuple(_rows(there, predicted.get(device, {}), times))
        found.append(Comparison(highest.graph, rows, tuple(found) if device == highest.device else ()))
    return found[-1]


def _run(make_loss: MakeLoss, plan: RecomputePlan) -> Tensor:
    """Run a forward under a plan."""
    with apply_plan(plan):
        return real_loss_of(make_loss())


def _chosen_plans(recompute: Sequence[RecomputePlan | None] | RecomputePlan | None) -> dict[str, RecomputePlan | None]:
    """Return the plans by the suffix that they add to a policy's name; raise as `compare` documents."""
    if recompute is None or isinstance(recompute, RecomputePlan):
        found = [None] if recompute is None else [None, recompute]
    elif isinstance(recompute, Sequence) and all(each is None or isinstance(each, RecomputePlan) for each in recompute):
        found = list(recompute)
    else:
        raise TypeError(f"recompute must be a plan from ts.plan_recompute, or several, got {recompute!r}")
    if not found:
        raise ValueError("recompute is empty; expected a plan, or None for no recomputation")
    if len(set(found)) < len(found):
        raise ValueError("recompute contains an entry twice; pass each plan once, and None for no recomputation")
    many = sum(plan is not None for plan in found) > 1
    numbers = count(1)
    return {"" if plan is None else f"{RECOMPUTED} {next(numbers)}" if many else RECOMPUTED: plan for plan in found}


def chosen_policies(policies: Sequence[AnyPolicy] | AnyPolicy) -> dict[str, Policy | Choice]:
    """Return the policies by name. Raises as `compare` does."""
    if isinstance(policies, str | Policy) or callable(policies):
        policies = (policies,)
    if not isinstance(policies, Iterable):
        raise TypeError(f"policies must be a list of names, Policy objects or functions, got {policies!r}")
    found = list(map(find_policy, policies))
    chosen = {policy_name(policy): policy for policy in found}
    if not chosen:
        raise ValueError("policies must not be empty")
    if len(chosen) < len(found):
        names = ", ".join(map(policy_name, found))
        raise ValueError(
            f"two policies have the same name: {names}. A function's name is its __name__; use `def` instead of a "
            "lambda, whose name is always <lambda>"
        )
    return chosen


def chosen_graphs(graph: Sequence[GraphRule] | GraphRule) -> list[GraphRule]:
    """Return the graph rules as a list. Raises ValueError if one is unknown or repeated, or none is passed."""
    expect(graph, Iterable, "graph", '"freed", "kept", or a list of them')
    found: list[GraphRule] = [graph] if isinstance(graph, str) else list(graph)
    for each in found:
        expect_choice(each, get_args(GraphRule), "graph")
    if not found:
        raise ValueError('graph must not be empty; expected "freed", "kept", or both')
    if len(set(found)) < len(found):
        raise ValueError(f"a graph rule is repeated: {', '.join(found)}")
    return found


def chosen_rules(
    accumulate: Sequence[Accumulate] | Accumulate, release: Sequence[Release] | Release
) -> list[Accumulation]:
    """Return every combination of rules. Raises ValueError as `compare` does."""
    sums: Sequence[Accumulate] = (accumulate,) if isinstance(accumulate, str) else accumulate
    ends: Sequence[Release] = (release,) if isinstance(release, str) else release
    found = [Accumulation(each, end) for end in ends for each in sums]
    if not found:
        raise ValueError("accumulate and release must not be empty")
    if len(set(found)) < len(found):
        raise ValueError(f"a rule is repeated: accumulate={', '.join(sums)}; release={', '.join(ends)}")
    return found


def _rows(runs: dict[str, _Measured], dry: dict[str, _DryRun], times: dict[str, list[int]]) -> Iterator[Row]:
    """Predict each policy from another policy's run: the first one's, and for the first the second one's. Runs that
    freed their graph come before others.

    A forward under a plan is predicted by its plan if the order is the planned one. A plain forward is too if no other
    policy ran. A plan's prediction assumes leaves without a .grad.
    """
    from ..planning.simulate import simulate

    plans = list(dict.fromkeys(run.row.plan for run in runs.values() if run.row.plan is not None))
    for name, (timeline, own, row) in runs.items():
        plan = row.plan
        others = [other for other in runs if plan is None and other != name and runs[other].row.plan is None]
        # A run that retained its graph does not show which saved tensors a freed graph would free.
        by = min(others, key=lambda other: runs[other].row.graph == "kept", default=None)
        footprints = None if by is None else runs[by].footprints
        rule = timeline.accumulation
        predicted = None
        levels: tuple[int, ...] = ()
        if footprints is not None:
            predicted = simulate(
                footprints.graph,
                timeline.order,
                footprints,
                retain_graph=None if footprints.keep_graph == own.keep_graph else own.keep_graph,
                accumulate=rule.accumulate,
                release=rule.release,
            )
        elif row.graph == "freed" and not any(leaf.has_grad for leaf in own.leaves.values()):
            fitting = (each for each in plans if plan in (None, each) and rule == PYTORCHS and _is_for(each, timeline))
            if (planned := next(fitting, None)) is not None:
                by = "ts.plan_recompute"
                if isinstance(planned, PlannedRecompute):
                    predicted = planned.plain if plan is None else planned.timeline
                elif planned.predicted is not None:
                    levels = planned.predicted.plain_levels if plan is None else planned.predicted.levels
        longest = max(queue_lengths(timeline.graph, timeline.order), default=0)
        dry_bytes, estimates, start = dry.get(name, (None, (), None))
        kept = row.graph == "kept"
        measured = timeline, tuple(times[name]), longest, predicted, by
        yield Row(name, *measured, dry_bytes, estimates, plan, levels, start, kept)


def _is_for(plan: RecomputePlan, timeline: Timeline) -> bool:
    """Return whether a plan has a prediction for this order."""
    if plan.predicted is None:
        return False
    order = schedule(timeline.graph, "heap") if plan.planned_order is None else plan.planned_order.tasks
    return tuple(order) == tuple(timeline.order) and len(order) == len(plan.predicted.levels)


def _signature(drawn: Graph) -> _Signature:
    from ..memory.task_memory import kind_of

    return tuple((kind_of(task), task.inputs) for task in drawn.tasks), drawn.edges


def _assert_same_graph(expected: _Signature, drawn: Graph, policy: str) -> None:
    tasks, edges = _signature(drawn)
    if (tasks, edges) == expected:
        return
    if len(tasks) != len(expected[0]):
        how = f"{len(expected[0]):,} tasks at first, {len(tasks):,} under {policy}"
    else:
        differing = [number for number, task in enumerate(tasks) if task != expected[0][number]]
        how = (
            f"under {policy}, {drawn.describe(differing[0])} is a different task than in the first run"
            if differing
            else f"under {policy} its edges differ"
        )
    raise ValueError(
        f"make_loss builds a different graph each time, so policies cannot be compared: {how}. Make it repeatable: use "
        "the same data and sizes, and seed its own random generators"
    )
