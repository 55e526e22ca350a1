"""`ts.plan_recompute`: chooses which saved tensors to drop, judged by the peak of the whole backward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Literal

from torch import Tensor, nn

from ...inspector.text.progress import ToldLine, line_shown, quiet
from ...inspector.text.sizes_and_counts import both_units, percent_text, size_text
from ...inspector.torch_private.compiled import keep_compiler_out
from ...inspector.torch_private.tensors import is_fake
from ...inspector.validation import expect_callable, expect_choice, expect_model
from ..api.make_loss import MakeLoss, expect_make_loss, nothing_sharded
from ..api.restore_state import AsFound
from ..memory.estimates import estimate_sentence
from ..memory.task_memory import Footprints
from ..planning.policies import PORTFOLIO, find_policy
from ..planning.simulate import schedule, simulate
from ..schedule.ddp_buckets import nothing_reduced
from ..schedule.policy import Choice, Policy, is_dynamic, policy_name
from .budget import Budget, Wanted, expect_seconds
from .no_plan_reasons import WORTH_IT, LeftAloneBecause, fused_kernels, mostly_fused, not_worth_it
from .plan import GraphOrder, PlanPrediction, RecomputePlan, graph_digest
from .planned_recompute import PlannedRecompute
from .predicted_memory import INSIDE, RecomputedMemory, recomputed_footprints
from .solvers import SOLVERS, FoundDrops, Goal
from .trial_runs import Extra, FakeRuns, Runs

Progress = Callable[[FoundDrops], object]
_AFTER_S = 0.5  # what takes no longer needs no line


@contextmanager
def progress_shown(asked: Progress | bool | None) -> Iterator[Progress | None]:
    """Whom to tell: who was asked for, or a line on stderr; None: only on a terminal or in a notebook."""
    if callable(asked) or asked is False:
        with quiet():  # what it calls are verbs with lines of their own
            yield asked or None
    else:
        with line_shown(_AFTER_S, always=bool(asked)) as line:
            yield None if line is None else (lambda found: _tell(line, found))


def _tell(line: ToldLine, found: FoundDrops) -> None:
    peak = size_text(found.levels.peak_bytes)
    line(f"planning recomputation: {found.evaluations:,} choices, lowest peak {peak}, {line.passed_s:.1f} s")


_CORRECTIONS = 3  # how often a plan is made again as it was measured to take too much time, or much less
_FULL = 0.9  # of the time that is allowed: a plan that takes more is not made again
_A_LITTLE_LESS = 0.97
_MOST_LIMITS = 3  # that are said
_BETTER = 0.005  # of the peak: what another order, or products, have to save on top


def plan_recompute(
    make_loss: MakeLoss,
    budget: Budget | None = None,
    *,
    overhead: float | None = None,
    solver: Literal["search", "greedy"] = "search",
    seconds: float = 5.0,
    policy: str | Policy = "heap",
    repetitions: int = 3,
    progress: Progress | bool | None = None,
    model: nn.Module | None = None,
) -> PlannedRecompute:
    """Plans which saved tensors a forward lets go of, to make them again in the backward: `with ts.recompute(plan):`.

    The forward is recorded and timed operation by operation, its backward measured once, and each choice judged by the
    peak of the whole backward that it would have, newly kept inputs and replays included. Matrix products and
    convolutions are made again only where the rest does not reach what is asked for, or leaves a higher peak. What does
    not come out the same to the bit when it is made again is not dropped. What `make_loss` and its backward change
    is put back: gradients, the tensors that they write, random numbers (see `AsFound`).

    On fake tensors (FakeTensorMode) of the CPU a plan is made without the memory: peaks are those of a dry run, times
    sums of those of single operators, each run alone on real tensors of its shapes, and `estimates` says so. The real
    model, recomputed by such a plan, tries it at its first forward as any.

    The prediction is for a backward as it is after `zero_grad()`, which sets each .grad to None, in the mode (train or
    eval) and with the sizes that `make_loss` has. Where gradients are there already, what is added to them is freed at
    once, and the peak is lower by that: plain and recomputed.

    Args:
        make_loss: runs the forward and returns the loss, one element. It is called some twenty times, and has to run
            the same operations on the same sizes each time: with one batch, not with the next of a loader. What it
            keeps in Python from call to call (attributes, closures, lists) is put back after each.
        budget: the peak that is wanted, at the lowest price: bytes, as a number or as "8GiB" (2³⁰) or "8GB" (10⁹), or
            a share of the peak without recomputation, 0.5 for half. None: the lowest peak that `overhead` pays for.
        overhead: how much longer a step may take, replays and recording, as a share: 0.06 for 6 %. None: 6 % without a
            budget, any time with one.
        solver: "greedy" chooses by the bytes that each choice keeps, as Echo does. "search" starts from its result and
            lowers the simulated peak.
        seconds: how long the solver may take. Interrupted, it gives the best so far.
        policy: in whose order the backward runs. "auto": the schedules are searched again for the recomputed backward,
            and `plan.policy` runs the best, if that is better than PyTorch's own.
        repetitions: how often forward and step are timed; the shortest times count.
        progress: is told now and then what has been found. True: a line on stderr says so; None: only where that is a
            terminal or a notebook's; False: nothing does.
        model: names modules and parameters after this module, where the forward calls parts of it and never itself;
            several are one `nn.ModuleDict({"G": generator, "D": critic})`. None: after each outermost module that is
            called.

    Raises:
        TypeError, ValueError: make_loss is no function, or gave no loss; a number is out of range; the solver is
            unknown; or the policy decides while the backward runs.
        NotImplementedError: the forward calls what torch.compile has compiled, or disables saved_tensors_hooks, as
            torch.func.grad does; or it runs on fake tensors of an accelerator.
        RuntimeError: the forward carries on what can't be put back, such as an iterator that it advances; and what
            forward and backward raise.
    """
    expect_make_loss(make_loss, "ts.plan_recompute")
    expect_model(model)
    asked = Wanted.of(budget, overhead)
    expect_choice(solver, tuple(SOLVERS), "solver")
    if progress is not None and not isinstance(progress, bool):
        expect_callable(progress, 1, "progress", "a function that is told what has been found, True, False or None")
    expect_seconds(seconds)
    chosen = None if policy == "auto" else find_policy(policy)
    if chosen is not None and is_dynamic(chosen):
        raise ValueError(f"policy {policy_name(chosen)} decides while the backward runs, so nothing is known of it yet")
    world = AsFound(make_loss, "ts.plan_recompute", refuses=True)
    with nothing_reduced(), nothing_sharded("ts.plan_recompute"), progress_shown(progress) as told, world:
        made = world.watch()
        if isinstance(made, Tensor) and is_fake(made):
            return _planned(FakeRuns(world, model), asked, solver, float(seconds), chosen, told)
        runs = Runs(repetitions, world, model)
        try:
            return _planned(runs, asked, solver, float(seconds), chosen, told)
        finally:
            runs.put_back()


keep_compiler_out(plan_recompute)


_Progress = Progress | None
_AnyRuns = Runs | FakeRuns


def _planned(
    runs: _AnyRuns,
    asked: Wanted,
    solver: str,
    seconds: float,
    policy: Policy | Choice | None,
    progress: _Progress,
) -> PlannedRecompute:
    footprints = runs.footprints
    order = schedule(footprints.graph, policy or "heap", footprints=footprints)
    order_name = "heap" if policy is None else policy_name(policy)
    memory = RecomputedMemory(runs.storages, simulate(footprints.graph, order, footprints))
    plain = memory.plain_peak_bytes
    goal = Goal(asked.extra_ns(runs.plain_ns), asked.peak_bytes(plain))
    nothing = _Tried(FoundDrops(frozenset(), memory.levels_if_dropped(()), 0, 0.0), Extra(0.0, 0.0), True)
    left_alone: str | None
    because: LeftAloneBecause | None
    if goal.peak_bytes is not None and plain <= goal.peak_bytes:
        tried = nothing
        because = "within budget"
        left_alone = f"Left alone: the peak is {size_text(plain)}, within the budget of {both_units(goal.peak_bytes)}."
    else:
        tried = _tried(runs, memory, asked, goal, solver, seconds, progress)
        because = left_alone = None
        if not tried.gains(plain):
            blamed = runs.checkpoints is not None or mostly_fused(runs.program)
            because, left_alone = not_worth_it(asked, runs.program, memory, runs.plain_ns, tried.ratio, blamed)
    if left_alone is not None:
        gone = replace(nothing.found, interrupted=tried.found.interrupted)
        tried = replace(nothing, found=gone, ratio=tried.ratio)
    found = tried.found
    if left_alone is None and policy is None:
        memory, order_name = _in_best_order(memory, found.dropped, footprints)
        found = replace(found, levels=memory.levels_if_dropped(found.dropped))
    met = tried.met and (goal.peak_bytes is None or found.levels.peak_bytes <= goal.peak_bytes)
    tried = replace(tried, found=found, met=met)
    return _result(runs, asked, goal, memory, tried, left_alone, because, order_name, solver)


@dataclass(frozen=True, slots=True)
class _Tried:
    """What a solver found, what it takes by what was measured, and whether that is no more than is allowed."""

    found: FoundDrops
    extra: Extra
    met: bool
    ratio: float = 1.0  # of what was measured to what was reckoned with

    def if_it_takes(self, ns: float, allowed: float) -> _Tried:
        """The same, where forward and backward take this much longer."""
        share = ns / self.extra.ns
        extra = Extra(share * self.extra.recording_ns, share * self.extra.replay_ns)
        return replace(self, extra=extra, met=ns <= allowed, ratio=ns / self.found.levels.replay_ns)

    def gains(self, plain: int) -> bool:
        return self.found.levels.peak_bytes <= (1 - WORTH_IT) * plain


def _tried(
    runs: _AnyRuns,
    memory: RecomputedMemory,
    asked: Wanted,
    goal: Goal,
    solver: str,
    seconds: float,
    progress: _Progress,
) -> _Tried:
    """The best plan that takes no more time than is allowed; if none does, the last.

    Where one takes more, or much less, the solver is asked again for as much more or less as it reckons with. How far
    that is off is averaged over all plans that were measured: one measurement is off by as much as a percent of a step.
    """
    tries: list[_Tried] = []
    ratios: list[float] = []  # of what was measured to what was reckoned with
    found = _solved(memory, goal, solver, seconds, None, progress)
    while True:
        tried = _Tried(found, Extra(0.0, 0.0), True)
        if not tried.gains(memory.plain_peak_bytes):
            best = _best(goal, [*tries, tried])
            return replace(best, ratio=fmean(ratios)) if ratios else best
        extra = runs.extra(RecomputePlan.of(runs.program, found.dropped))
        ratios.append(extra.ns / found.levels.replay_ns)
        ratio, allowed = fmean(ratios), asked.extra_ns(runs.plain_ns)
        tries.append(_Tried(found, extra, True))
        tries = [each.if_it_takes(ratio * each.found.levels.replay_ns, allowed) for each in tries]
        tried = tries[-1]
        reached = goal.peak_bytes is not None and found.levels.peak_bytes <= goal.peak_bytes
        full = allowed == math.inf or tried.extra.ns >= _FULL * allowed
        if found.interrupted or len(tries) > _CORRECTIONS or (tried.met and (reached or full)):
            return _best(goal, tries)
        goal = replace(goal, replay_ns=_A_LITTLE_LESS * allowed / ratio)
        found = _solved(memory, goal, solver, seconds / 2, found.dropped, progress)


def _best(goal: Goal, tries: Sequence[_Tried]) -> _Tried:
    """Of those that take no more time than is allowed the best; if none does, the last."""
    return min(
        (each for each in tries if each.met), key=lambda each: goal.rank(each.found.levels)[1:], default=tries[-1]
    )


def _solved(
    memory: RecomputedMemory, goal: Goal, solver: str, seconds: float, start: Iterable[int] | None, progress: _Progress
) -> FoundDrops:
    """Without products made again, if that reaches what is wanted, or comes as near."""
    solve = SOLVERS[solver]
    without = solve(memory, replace(goal, products=False), 0.4 * seconds, None, progress)
    if without.interrupted or (goal.peak_bytes is not None and goal.met(without.levels)):
        return without
    known = [each for each in (start, without.dropped) if each is not None]
    first = min(known, key=lambda each: goal.rank(memory.levels_if_dropped(each)))
    products = solve(memory, goal, 0.6 * seconds, first, progress)
    less = without.levels.peak_bytes - products.levels.peak_bytes
    better = products if less > _BETTER * memory.plain_peak_bytes else without
    return replace(
        better,
        evaluations=without.evaluations + products.evaluations,
        seconds=without.seconds + products.seconds,
        interrupted=products.interrupted,
    )


def _in_best_order(
    memory: RecomputedMemory, dropped: Iterable[int], footprints: Footprints
) -> tuple[RecomputedMemory, str]:
    """The orders of the portfolio, planned for the recomputed backward: the one with the lowest peak, and its name."""
    least = memory.levels_if_dropped(dropped).peak_bytes - _BETTER * memory.plain_peak_bytes
    best, name = memory, "heap"
    recomputed = recomputed_footprints(memory, dropped, footprints)
    for each in PORTFOLIO:
        order = schedule(footprints.graph, each, footprints=recomputed)
        other = RecomputedMemory(memory.storages, simulate(footprints.graph, order, footprints))
        peak = other.levels_if_dropped(dropped).peak_bytes
        if peak < least:
            best, name, least = other, each, float(peak)
    return best, name


def _result(
    runs: _AnyRuns,
    asked: Wanted,
    goal: Goal,
    memory: RecomputedMemory,
    tried: _Tried,
    left_alone: str | None,
    because: LeftAloneBecause | None,
    order_name: str,
    solver: str,
) -> PlannedRecompute:
    found, extra = tried.found, tried.extra
    timeline = memory.timeline(found.dropped)
    notes = list(_notes(runs, asked, goal, found, left_alone))
    if INSIDE in timeline.estimates:
        notes.append(f"An estimate: {INSIDE}.")
    if not found.dropped:
        extra = Extra(0.0, 0.0)
    predicted = PlanPrediction(
        tuple(memory.plain.task_peaks),
        tuple(found.levels.peaks),
        runs.plain_ns / 1e9,
        extra.replay_ns / 1e9,
        extra.recording_ns / 1e9,
    )
    plan = RecomputePlan.of(runs.program, found.dropped, predicted)
    if order_name != "heap":
        order = GraphOrder(order_name, memory.plain.order, graph_digest(memory.plain.graph))
        plan = replace(plan, planned_order=order)
    return PlannedRecompute(
        **{field.name: getattr(plan, field.name) for field in fields(RecomputePlan)},
        plain=memory.plain,
        timeline=timeline,
        left_alone=left_alone,
        left_alone_because=because,
        notes=tuple(notes),
        order=memory.plain.order,
        order_name=order_name,
        met=tried.met,
        solver=solver,
        evaluations=found.evaluations,
        seconds=found.seconds,
        program=runs.program,
        memory=memory,
        recording_ns=runs.recording_ns,
        ratio=tried.ratio,
        banned=runs.reasons,
        wanted=asked,
        estimates=runs.estimates,
    )


def _notes(runs: _AnyRuns, asked: Wanted, goal: Goal, found: FoundDrops, left_alone: str | None) -> Iterator[str]:
    peak = found.levels.peak_bytes
    if goal.peak_bytes is not None and peak > goal.peak_bytes:
        lowest = "; this is the lowest peak that was found" if left_alone is None else ""
        if lowest and asked.overhead < math.inf:
            lowest += f" for {percent_text(asked.overhead)} of a step's time"
        yield f"The budget of {both_units(goal.peak_bytes)} is not reached{lowest}."
    if found.interrupted:
        yield f"The search was interrupted after {found.seconds:.1f} s; this is the best until then."
    if runs.estimates:
        yield estimate_sentence(runs.estimates)
    if runs.banned is not None:
        yield runs.banned
    if runs.checkpoints is not None:
        yield runs.checkpoints
    fused = fused_kernels(runs.program)
    yield from fused
    obstacles: Counter[str] = Counter()
    for each in runs.program.saved:
        if each.obstacle is not None:
            obstacles[each.obstacle] += each.nbytes
    if left_alone is None and obstacles and not fused:
        reason, most = obstacles.most_common(1)[0]
        yield (
            f"Kept, since it can't be made again: {size_text(obstacles.total())} of what nodes save, "
            f"{size_text(most)} of it because {reason}."
        )
    yield from runs.program.notes
    yield from (f"An estimate: {limit}." for limit in runs.footprints.limits[:_MOST_LIMITS])
