"""`ts.plan_recompute`: choosing the saved tensors to drop by the peak of the whole backward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Literal

from torch import Tensor, nn

from ...inspector.text.progress import UpdatingLine, line_shown, quiet
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
from .no_plan_reasons import WORTH_IT, LeftAloneBecause, fused_kernels, not_worth_it
from .plan import GraphOrder, PlanPrediction, RecomputePlan, graph_digest
from .planned_recompute import PlannedRecompute
from .predicted_memory import INSIDE, RecomputedMemory, recomputed_footprints
from .solvers import SOLVERS, FoundDrops, Goal
from .trial_runs import Extra, FakeRuns, Runs

Progress = Callable[[FoundDrops], object]
_AFTER_S = 0.5  # a shorter search shows no progress line


@contextmanager
def progress_shown(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """Yield the progress callback: the caller's, or one that updates a line on stderr; None for no progress.

    Args:
        progress: a callback; True for a line, False for none; None for a line only on a terminal or in a notebook.
    """
    if callable(progress) or progress is False:
        with quiet():  # the functions called inside would also show progress lines
            yield progress or None
    else:
        with line_shown(_AFTER_S, always=bool(progress)) as line:
            yield None if line is None else (lambda found: _tell(line, found))


def _tell(line: UpdatingLine, found: FoundDrops) -> None:
    peak = size_text(found.levels.peak_bytes)
    line(f"planning recomputation: {found.evaluations:,} choices, lowest peak {peak}, {line.passed_s:.1f} s")


_CORRECTIONS = 3  # further plans if the measured time is above the limit, or far below it
_FULL = 0.9  # of the allowed time: a plan that uses more of it is not improved further
_A_LITTLE_LESS = 0.97  # of the allowed time, for the next plan
_MOST_LIMITS = 3  # limits of the prediction that are listed
_BETTER = 0.005  # of the peak: the least that another order, or recomputing products, has to save


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
    """Plan which saved tensors a forward drops and the backward recomputes: `with ts.recompute(plan):`.

    The forward is recorded and timed operation by operation, and its backward is measured once. Each choice is judged
    by the predicted peak of the whole backward, which includes newly kept inputs and recomputation. Matrix products and
    convolutions are recomputed only if the budget cannot be reached without them, or if they lower the peak further.
    Tensors whose recomputed bits differ are not dropped. All side effects of `make_loss` and its backward are undone:
    gradients, written tensors, random numbers (see `AsFound`).

    On fake CPU tensors (FakeTensorMode) a plan needs no memory. Peaks then come from a dry run, and times are sums over
    single operators, each run alone on real tensors of its shapes; `estimates` lists this. Such a plan is verified in
    the first forward of the real model, like any plan.

    The prediction is for a backward after `zero_grad()`, which sets each .grad to None, and for the mode (train or
    eval) and the sizes of `make_loss`. If gradients exist already, new ones are freed as soon as they are added, and
    the peak is lower with and without the plan.

    Args:
        make_loss: runs the forward and returns the loss, a tensor with one element. It is called some twenty times and
            must run the same operations on the same sizes each time: on one batch, not on the next batch of a loader.
            Python state that it changes (attributes, closures, lists) is restored after each call.
        budget: the peak to reach at the lowest cost: bytes, as a number or a size such as "8GiB" (2³⁰) or "8GB" (10⁹),
            or a share of the peak without recomputation, such as 0.5. None for the lowest peak within `overhead`.
        overhead: share by which a step may take longer, for recomputation and recording: 0.06 for 6 %. None for 6 %
            without a budget, and for no limit with one.
        solver: "greedy" chooses by the bytes kept, as Echo does. "search" starts from the greedy result and lowers the
            predicted peak.
        seconds: time limit of the solver. If interrupted, it returns the best choice so far.
        policy: the order of the backward. "auto" also searches for the best schedule with recomputation; `plan.policy`
            runs it if it is better than PyTorch's own order.
        repetitions: number of timings of the forward and of the step; the shortest times count.
        progress: a callback that is called with the best choice from time to time. True for a line on stderr, None for
            a line only on a terminal or in a notebook, False for no progress.
        model: the module to name modules and parameters after, if the forward calls parts of it but never the module
            itself; for several use `nn.ModuleDict({"G": generator, "D": critic})`. None names them after each outermost
            module that is called.

    Raises:
        TypeError, ValueError: if make_loss is not a function or returns no loss, a number is out of range, the solver
            is unknown, or the policy decides while the backward runs.
        NotImplementedError: if the forward calls compiled code, disables saved_tensors_hooks (as torch.func.grad does),
            or runs on fake tensors of an accelerator.
        RuntimeError: if the forward changes state that cannot be restored, such as an iterator that it advances. Errors
            of the forward and backward pass through.
    """
    expect_make_loss(make_loss, "ts.plan_recompute")
    expect_model(model)
    wanted = Wanted.of(budget, overhead)
    expect_choice(solver, tuple(SOLVERS), "solver")
    if progress is not None and not isinstance(progress, bool):
        expect_callable(
            progress, 1, "progress", "a function that is called with the best choice so far, True, False or None"
        )
    expect_seconds(seconds)
    chosen = None if policy == "auto" else find_policy(policy)
    if chosen is not None and is_dynamic(chosen):
        raise ValueError(
            f"policy {policy_name(chosen)} decides while the backward runs, so its order cannot be planned for"
        )
    world = AsFound(make_loss, "ts.plan_recompute", refuses=True)
    with nothing_reduced(), nothing_sharded("ts.plan_recompute"), progress_shown(progress) as callback, world:
        made = world.watch()
        if isinstance(made, Tensor) and is_fake(made):
            return _planned(FakeRuns(world, model), wanted, solver, float(seconds), chosen, callback)
        runs = Runs(repetitions, world, model)
        try:
            return _planned(runs, wanted, solver, float(seconds), chosen, callback)
        finally:
            runs.put_back()


keep_compiler_out(plan_recompute)


_Progress = Progress | None
_AnyRuns = Runs | FakeRuns


def _planned(
    runs: _AnyRuns,
    wanted: Wanted,
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
    goal = Goal(wanted.extra_ns(runs.plain_ns), wanted.peak_bytes(plain))
    nothing = _Tried(FoundDrops(frozenset(), memory.levels_if_dropped(()), 0, 0.0), Extra(0.0, 0.0), True)
    left_alone: str | None
    because: LeftAloneBecause | None
    if goal.peak_bytes is not None and plain <= goal.peak_bytes:
        tried = nothing
        because = "within budget"
        left_alone = (
            f"Nothing is dropped: the peak of {size_text(plain)} is within the budget of {both_units(goal.peak_bytes)}."
        )
    else:
        tried = _tried(runs, memory, wanted, goal, solver, seconds, progress)
        because = left_alone = None
        if not tried.gains(plain):
            # Checkpoints are to blame, or fused kernels if more than half of the saved bytes belong to them.
            saved = runs.program.saved
            fused_bytes = sum(each.nbytes for each in saved if each.is_fused)
            blamed = runs.checkpoints is not None or 2 * fused_bytes > sum(each.nbytes for each in saved)
            because, left_alone = not_worth_it(wanted, runs.program, memory, runs.plain_ns, tried.ratio, blamed)
    if left_alone is not None:
        gone = replace(nothing.found, interrupted=tried.found.interrupted)
        tried = replace(nothing, found=gone, ratio=tried.ratio)
    found = tried.found
    if left_alone is None and policy is None:
        memory, order_name = _in_best_order(memory, found.dropped, footprints)
        found = replace(found, levels=memory.levels_if_dropped(found.dropped))
    met = tried.met and (goal.peak_bytes is None or found.levels.peak_bytes <= goal.peak_bytes)
    tried = replace(tried, found=found, met=met)
    return _result(runs, wanted, goal, memory, tried, left_alone, because, order_name, solver)


@dataclass(frozen=True, slots=True)
class _Tried:
    """A choice of a solver, its measured extra time, and whether that is within the limit."""

    found: FoundDrops
    extra: Extra
    met: bool
    ratio: float = 1.0  # measured time divided by estimated time

    def with_extra_time(self, ns: float, allowed: float) -> _Tried:
        """Return the same choice with `ns` of extra time for forward and backward."""
        share = ns / self.extra.ns
        extra = Extra(share * self.extra.recording_ns, share * self.extra.replay_ns)
        return replace(self, extra=extra, met=ns <= allowed, ratio=ns / self.found.levels.replay_ns)

    def gains(self, plain: int) -> bool:
        return self.found.levels.peak_bytes <= (1 - WORTH_IT) * plain


def _tried(
    runs: _AnyRuns,
    memory: RecomputedMemory,
    wanted: Wanted,
    goal: Goal,
    solver: str,
    seconds: float,
    progress: _Progress,
) -> _Tried:
    """Return the best choice within the allowed time, or the last one if none is.

    If the measured time of a choice is above the limit or far below it, the solver runs again with a corrected limit.
    The correction is averaged over all measured choices, because one measurement is off by up to a percent of a step.
    """
    tries: list[_Tried] = []
    ratios: list[float] = []  # measured time divided by estimated time
    found = _solved(memory, goal, solver, seconds, None, progress)
    while True:
        tried = _Tried(found, Extra(0.0, 0.0), True)
        if not tried.gains(memory.plain_peak_bytes):
            best = _best(goal, [*tries, tried])
            return replace(best, ratio=fmean(ratios)) if ratios else best
        extra = runs.extra(RecomputePlan.of(runs.program, found.dropped))
        ratios.append(extra.ns / found.levels.replay_ns)
        ratio, allowed = fmean(ratios), wanted.extra_ns(runs.plain_ns)
        tries.append(_Tried(found, extra, True))
        tries = [each.with_extra_time(ratio * each.found.levels.replay_ns, allowed) for each in tries]
        tried = tries[-1]
        reached = goal.peak_bytes is not None and found.levels.peak_bytes <= goal.peak_bytes
        full = allowed == math.inf or tried.extra.ns >= _FULL * allowed
        if found.interrupted or len(tries) > _CORRECTIONS or (tried.met and (reached or full)):
            return _best(goal, tries)
        goal = replace(goal, replay_ns=_A_LITTLE_LESS * allowed / ratio)
        found = _solved(memory, goal, solver, seconds / 2, found.dropped, progress)


def _best(goal: Goal, tries: Sequence[_Tried]) -> _Tried:
    """Return the best choice within the allowed time, or the last one if none is."""
    return min(
        (each for each in tries if each.met), key=lambda each: goal.rank(each.found.levels)[1:], default=tries[-1]
    )


def _solved(
    memory: RecomputedMemory, goal: Goal, solver: str, seconds: float, start: Iterable[int] | None, progress: _Progress
) -> FoundDrops:
    """Return a choice. It recomputes matrix products only if that clearly lowers the peak."""
    solve = SOLVERS[solver]
    # Products take most of the time, so the search first tries to do without them.
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
    """Return the memory in the portfolio's best order for the backward with recomputation, and the order's name."""
    # Another order needs ts.backward instead of loss.backward(), so it has to save enough to be worth that.
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
    wanted: Wanted,
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
    notes = list(_notes(runs, wanted, goal, found, left_alone))
    if INSIDE in timeline.estimates:
        notes.append(f"The peak is an estimate: {INSIDE}.")
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
        wanted=wanted,
        estimates=runs.estimates,
    )


def _notes(runs: _AnyRuns, wanted: Wanted, goal: Goal, found: FoundDrops, left_alone: str | None) -> Iterator[str]:
    peak = found.levels.peak_bytes
    if goal.peak_bytes is not None and peak > goal.peak_bytes:
        lowest = "; this is the lowest peak found" if left_alone is None else ""
        if lowest and wanted.overhead < math.inf:
            lowest += f" within {percent_text(wanted.overhead)} of a step's time"
        above = size_text(peak - goal.peak_bytes)  # rounded, the two peaks could look equal
        yield f"The peak is {above} above the budget of {both_units(goal.peak_bytes)}{lowest}."
    if found.interrupted:
        yield f"The search was interrupted after {found.seconds:.1f} s; this is the best plan until then."
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
            f"{size_text(obstacles.total())} of the saved tensors are kept because they cannot be recomputed, "
            f"{size_text(most)} of it since {reason}."
        )
    yield from runs.program.notes
    yield from (f"The peak is an estimate: {limit}." for limit in runs.footprints.limits[:_MOST_LIMITS])
