"""`th.compare`: one program's memory and time under several policies, measured and predicted, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from ...inspector.arguments import expect, expect_callable, expect_choice, expect_number
from ...inspector.capturing.capture import capture
from ...inspector.capturing.walk import graph
from ...inspector.graph.graph import Edge, Graph, Task
from ...inspector.shown import Theme, drawn, saved_page
from ..memory.accumulation import PYTORCHS, Accumulate, Accumulation, Release
from ..memory.not_counted import NotCounted, not_counted
from ..memory.timeline import Timeline
from ..mirroring.mirror import mirror
from ..mirroring.plan import MirrorPlan
from ..mirroring.planned_mirror import PlannedMirror
from ..orders.planning import bound
from ..orders.policies import find_policy
from ..orders.schedule import schedule
from ..programs.as_found import AsFound
from ..programs.backward import backward
from ..programs.make_loss import MakeLoss, expect_make_loss, loss_of
from ..queue.pending import queue_lengths
from ..queue.policy import AnyPolicy, Choice, Policy, is_dynamic, policy_name
from ..trace.peak import PeakReport, peak_report
from ..words.phrases import counted, joined, task_name
from ..words.sizes import size_text
from ..words.tables import ShownAsTable, row_called

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from ..memory.footprint import Footprints
    from ..sessions.native import Queues
    from ..trace.run import Engine

MIRRORED = ", mirrored"
"""What the names of rows end in whose forward ran by a plan; a number may follow."""

_WORTH_A_REASON = 0.01  # of a peak
_Signature = tuple[tuple[object, ...], tuple[Edge, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """What one policy did.

    Attributes:
        policy: its name, with the rule of accumulation where that is not PyTorch's: "heap", "heap, list"; with
            "mirrored" where the forward ran by a plan.
        timeline: the memory measured.
        times_ns: nanoseconds of each backward whose memory was not recorded, on fresh forwards, taken in turns with the
            other policies'; a number at the same place is of the same round.
        longest_queue: the most tasks that were ready at once.
        predicted: the memory simulated in this order from the run of the policy `calibrated_by`; None where there was
            no other run, or no prediction. Of a mirrored forward, and of the plain one where there is no other run,
            what the plan predicts for this order.
        planned_levels: the same of a plan that was loaded, which has no more than the highest level of each task.
        dry_run_bytes: the peak that was predicted before any backward had run; None where the order was not known.
        dry_run_estimates: why that is an estimate, as far as it is known.
        plan: by which the forward was mirrored; None: it was not.
    """

    policy: str
    timeline: Timeline
    times_ns: tuple[int, ...]
    longest_queue: int
    predicted: Timeline | None = None
    calibrated_by: str | None = None
    dry_run_bytes: int | None = None
    dry_run_estimates: tuple[str, ...] = ()
    plan: MirrorPlan | None = None
    planned_levels: tuple[int, ...] = ()

    @property
    def peak_bytes(self) -> int:
        return self.timeline.peak_bytes

    @property
    def elapsed_ns(self) -> float:
        """Nanoseconds of a backward: the median of its times."""
        return median(self.times_ns)

    @property
    def predicted_bytes(self) -> int | None:
        return max(self.planned_levels, default=None) if self.predicted is None else self.predicted.peak_bytes

    @property
    def predicted_levels(self) -> Sequence[int]:
        """The highest level while each task runs, predicted, by place; empty where nothing is."""
        return self.planned_levels if self.predicted is None else self.predicted.task_peaks


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place at which two orders differ, and the task which each runs there; None where it has ended."""

    place: int
    first: Task | None
    second: Task | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, eq=False)
class Comparison(ShownAsTable):
    """One program under several policies. In a notebook the table shows itself.

    Attributes:
        graph: the graph, without its nodes: these would keep what a custom Function put on its `ctx`.
        rows: in the order in which the policies ran.
        before: what was there before the forwards, and is not counted.
    """

    graph: Graph
    rows: tuple[Row, ...]
    before: NotCounted | None = None

    words = ("policy", "peak in")

    def __getitem__(self, policy: str) -> Row:
        """The row of a policy.

        Raises:
            ValueError: it is not compared here.
        """
        return row_called(policy, ((row.policy, row) for row in self.rows), "is not compared here; compared are")

    @property
    def lowest(self) -> Row:
        """The row with the lowest peak, the first of several."""
        return min(self.rows, key=lambda row: row.peak_bytes)

    @property
    def highest(self) -> Row:
        """The row with the highest peak, the first of several."""
        return max(self.rows, key=lambda row: row.peak_bytes)

    @cached_property
    def _reports(self) -> dict[str, PeakReport]:
        return {}

    def peak(self, policy: str) -> PeakReport:
        """The peak under a policy, explained."""
        row = self[policy]
        if policy not in self._reports:
            others = {other.policy: other.peak_bytes for other in self.rows if other is not row}
            self._reports[policy] = peak_report(row.timeline, others, self.before)
        return self._reports[policy]

    def first_divergence(self, first: str, second: str) -> Divergence | None:
        """Where the orders of two policies part; None if they are the same."""
        orders = [self[policy].timeline.order for policy in (first, second)]
        longest = max(map(len, orders))
        for place in range(longest):
            ids = [order[place] if place < len(order) else None for order in orders]
            if ids[0] != ids[1]:
                tasks = [None if task is None else self.graph.tasks[task] for task in ids]
                does = [
                    f"{policy} has ended" if task is None else f"{policy} runs {self.graph.describe(task)}"
                    for policy, task in zip((first, second), tasks, strict=True)
                ]
                same = {0: "from the start", 1: "after the first task, which is the same"}
                until = same.get(place, f"after {place:,} tasks, which are the same")
                sentence = f"{first} and {second} part {until}: {does[0]}, {does[1]}."
                return Divergence(place, tasks[0], tasks[1], sentence)
        return None

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the table says, in words."""
        return (*self._of_peaks(), *self._of_forward(), *self._of_dry_run(), *self._of_mirrored())

    def _of_peaks(self) -> tuple[str, ...]:
        low, high = self.lowest, self.highest
        if low.peak_bytes == high.peak_bytes:
            one_rule = len({row.timeline.accumulation for row in self.rows}) == 1
            what = "The order makes" if one_rule else "Neither order nor rule makes a"
            return (f"{what} {'no ' if one_rule else ''}difference to the peak.",) if len(self.rows) > 1 else ()
        more, ratio = high.peak_bytes - low.peak_bytes, high.peak_bytes / max(low.peak_bytes, 1)
        share = f"{100 * (ratio - 1):.1f} %" if ratio >= 1.001 else "under 0.1 %"
        how = f"{ratio:.1f} times that of" if ratio >= 1.5 else f"{size_text(more)} ({share}) more than"
        parted = self.first_divergence(high.policy, low.policy)
        return (
            f"The peak of {high.policy} is {size_text(high.peak_bytes)}, {how} {low.policy}, "
            f"{size_text(low.peak_bytes)}.",
            *([parted.sentence] if parted else []),
        )

    def _of_forward(self) -> Iterator[str]:
        """A mirrored forward has a peak of its own."""
        for plan in dict.fromkeys(row.plan for row in self.rows):
            rows = [row for row in self.rows if row.plan is plan]
            forward = max(row.timeline.forward_peak_bytes or 0 for row in rows)
            if lower := [row.policy for row in rows if row.peak_bytes < forward]:
                under = "any of these policies" if len(lower) == len(self.rows) > 1 else joined(lower)
                yield (
                    f"The forward's own peak, {size_text(forward)}, is higher than that of the backward under {under}, "
                    "and no order changes it."
                )

    def _of_dry_run(self) -> Iterator[str]:
        off = [
            (abs(row.dry_run_bytes - row.peak_bytes) / row.peak_bytes, row)
            for row in self.rows
            if row.dry_run_bytes is not None and row.peak_bytes
        ]
        share, row = max(off, key=itemgetter(0), default=(0.0, None))
        if row is not None and share > _WORTH_A_REASON:
            why = "; ".join(row.dry_run_estimates) or "what kernels allocate for themselves is not in it"
            yield f"The dry run is off by {100 * share:.1f} % under {row.policy}: {why}."

    def _of_mirrored(self) -> Iterator[str]:
        for row in self.rows:
            if row.plan is not None and not row.plan.dropped:
                yield f"{row.policy}: its plan lets go of nothing."
            elif row.plan is not None:
                again = counted(len({each.made_by for each in row.plan.storages if each.is_dropped}), "operation")
                kept = f", {size_text(row.plan.newly_kept_bytes)} newly kept" if row.plan.newly_kept_bytes else ""
                yield (
                    f"{row.policy}: {size_text(row.plan.dropped_bytes)} of saved tensors are let go of{kept}, and the "
                    f"backward runs {again} again."
                )
        if any(row.plan is not None for row in self.rows):
            yield "Times are of the backward alone: those of a mirrored one have its replays, not what recording takes."

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per policy, for `pandas.DataFrame(comparison.records())`."""
        return [
            {
                "policy": row.policy,
                "peak_bytes": row.peak_bytes,
                "forward_peak_bytes": row.timeline.forward_peak_bytes,
                "predicted_bytes": row.predicted_bytes,
                "calibrated_by": row.calibrated_by,
                "dry_run_bytes": row.dry_run_bytes,
                "peak_place": row.timeline.peak_place,
                "peak_task": row.timeline.peak_task,
                "start_bytes": row.timeline.start_bytes,
                "end_bytes": row.timeline.end_bytes,
                "longest_queue": row.longest_queue,
                "elapsed_ns": row.elapsed_ns,
            }
            for row in self.rows
        ]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first."""
        headings = ["policy", "peak", "predicted", "dry run", "peak in", "longest queue", "time"]
        return [headings, *(list(self._cells(row)) for row in self.rows)]

    def _cells(self, row: Row) -> Iterator[str]:
        timeline = row.timeline
        yield row.policy
        yield size_text(row.peak_bytes)
        yield "–" if row.predicted_bytes is None else _against(row.predicted_bytes, row.peak_bytes)
        yield "–" if row.dry_run_bytes is None else _against(row.dry_run_bytes, row.peak_bytes)
        if timeline.peak_task is None:
            yield "before the first task"
        else:
            name = task_name(self.graph.tasks[timeline.peak_task])
            yield f"{timeline.peak_place + 1:,} of {len(timeline.order):,}, {name}"
        yield f"{row.longest_queue:,}"
        yield f"{row.elapsed_ns / 1e6:.1f} ms"

    def __repr__(self) -> str:
        peaks = ", ".join(f"{row.policy} {size_text(row.peak_bytes)}" for row in self.rows)
        return f"<Comparison of {len(self.graph):,} tasks: {peaks}>"

    def without(self, row: Row) -> Row | None:
        """The row of the same policy whose forward was not mirrored; None: there is none, or it is this one."""
        name = row.policy.rpartition(MIRRORED)[0]
        return next((other for other in self.rows if row.plan is not None and other.policy == name), None)

    def mirrored_figure(self, policy: str, theme: Theme = "light") -> go.Figure:
        """The level over the tasks of a mirrored row and of the one without, each measured and predicted.

        Needs plotly.

        Raises:
            ValueError: the policy is not compared here, or its forward was not mirrored.
        """
        return drawn("mirrored comparison as a figure", self, self[policy], theme)

    def figure(self, theme: Theme = "light") -> go.Figure:
        """The level over the tasks for each policy, the peaks marked. Needs plotly."""
        return drawn("levels as a figure", self.timelines, theme)

    def lifetimes_figure(self, policy: str, theme: Theme = "light", *, clock: bool = False) -> go.Figure:
        """One bar per storage, the largest by bytes × time first. Needs plotly.

        Args:
            policy: one of those compared.
            theme: "light" or "dark".
            clock: draw over milliseconds instead of over tasks.

        Raises:
            ValueError: the policy is not compared here, or no clock was recorded.
        """
        return drawn("lifetimes as a figure", self[policy].timeline, theme, clock=clock)

    @property
    def timelines(self) -> dict[str, Timeline]:
        """The memory measured, by policy."""
        return {row.policy: row.timeline for row in self.rows}

    def save_html(self, path: str | Path, title: str = "Memory by policy") -> Path:
        """Writes one page with the table, all figures and the peak of each policy explained.

        The page works offline, from file:// too (plotly.js, some 5 MB, is inside), and follows the reader's light or
        dark theme. Needs plotly.
        """
        return saved_page("comparison as a page", path, self, title)


def compare(
    make_loss: MakeLoss,
    policies: Sequence[AnyPolicy] | AnyPolicy = ("bfs", "dfs", "heap"),
    *,
    accumulate: Sequence[Accumulate] | Accumulate = "inplace",
    release: Sequence[Release] | Release = "eager",
    mirroring: Sequence[MirrorPlan | None] | MirrorPlan | None = None,
    repetitions: int = 3,
    queues: Queues = "one",
    progress: Callable[[str], object] | None = None,
) -> Comparison:
    """Runs forward and backward under each policy: once to record the memory, which is predicted too, then for time.

    Each run finds what the first one found, and all is afterwards as it was before: each .grad, random numbers, and
    the tensors that `make_loss` and its backward write, such as the running statistics of a BatchNorm (see `AsFound`
    for what can't be put back). There are `2 + policies × (1 + repetitions)` runs: one that shows what is written, one
    for the prediction, and for each policy one with memory recorded and `repetitions` without.

    Args:
        make_loss: runs the forward and returns the loss, one element; it has to build the same graph each time.
        policies: as in `th.backward`; one alone will do.
        accumulate, release: as in `th.backward`, one or several of each: a row for every policy under every rule, such
            as "heap, list, never released". With any other rule than PyTorch's all rows run on the direct engine, so
            that their times can be compared.
        mirroring: a plan of `th.plan_mirror`, or several: each policy has a row without, such as "heap", and one with
            each, "heap, mirrored". [plan]: only with it; [None, plan] is the same as plan.
        repetitions: how often each is timed. The order of the policies changes from round to round.
        queues: with which the times are taken, as in `th.backward`. Memory is always measured with one.
        progress: called before each run with what comes, such as `bfs, round 3 of 7`.

    Raises:
        TypeError: `make_loss` can't be called, or returns no tensor; or `policies` are none.
        ValueError: `repetitions` is below 1; there is no policy or rule, an unknown one, or one twice; the loss has
            more than one element; the forwards build different graphs; or a plan is for another forward, or there
            twice.
        NotImplementedError: this memory can't be recorded; or other rules are compared on a graph which the direct
            engine refuses, or with a queue per device.
        PolicyError: in a process group, where the other ranks don't run a policy's order, too.
    """
    expect_make_loss(make_loss)
    expect_choice(queues, ("one", "per device"), "queues")
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function that is told what runs next")
    tell = (lambda said: None) if progress is None else progress
    expect_number(repetitions, int, "repetitions", "how often each policy is timed, a whole number")
    for name, ways in (("accumulate", accumulate), ("release", release)):
        expect(ways, Iterable, name, "one way, or a list of them")
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, not {repetitions}")
    named = chosen_policies(policies)
    rules = _chosen_rules(accumulate, release)
    plans = _chosen_plans(mirroring)
    if rules != [PYTORCHS] and queues != "one":
        raise NotImplementedError("other rules of accumulation need the direct engine, which has one queue")
    with AsFound() as world:
        return _compared(world, make_loss, named, rules, plans, repetitions, queues, tell)


def _compared(
    world: AsFound,
    make_loss: MakeLoss,
    named: dict[str, Policy | Choice],
    rules: list[Accumulation],
    plans: dict[str, MirrorPlan | None],
    repetitions: int,
    queues: Queues,
    tell: Callable[[str], object],
) -> Comparison:
    from ..orders.problem import Problem
    from ..orders.simulate import simulate
    from ..prediction.dry_run import dry_run
    from ..programs.profile import profile
    from ..programs.timing import as_asked, time_backward, time_stepped, turns

    stepped = rules != [PYTORCHS]
    tell("warming up")
    world.watch(make_loss)
    with world.run():
        with capture():
            loss = loss_of(make_loss())
        drawn = graph(loss)
        leaves = list(drawn.leaves.values())
        signature = _signature(drawn)
        footprints = dry_run(drawn)
        problem = Problem(drawn, footprints)
        planned = {name: bound(policy, problem) for name, policy in named.items()}  # once for all runs
        chosen = {
            rule.of(name) + suffix: _Chosen(
                policy, rule, plan, make_loss if plan is None else partial(_run, make_loss, plan)
            )
            for name, policy in planned.items()
            for rule in rules
            for suffix, plan in plans.items()
        }
        dry = {
            name: simulate(drawn, policy, footprints, accumulate=rule.accumulate, release=rule.release)
            for name, (policy, rule, plan, _) in chosen.items()
            if not is_dynamic(policy) and plan is None
        }
        predicted = {name: (timeline.peak_bytes, timeline.estimates) for name, timeline in dry.items()}
        backward(loss)
    del loss, drawn, footprints, problem, dry
    for plan in plans.values():
        if plan is not None:
            with world.run(leaves):
                _run(make_loss, plan)  # the first forward under a plan keeps all, to verify it

    runs: dict[str, _Measured] = {}
    for name, (policy, rule, plan, forward) in chosen.items():
        tell(f"{name}, its memory")
        engine: Engine = "direct" if stepped else "native"
        with world.run(leaves):
            run = profile(forward, policy, engine=engine, accumulate=rule.accumulate, release=rule.release)
        run = as_asked(run, policy)
        _assert_same_graph(signature, run.graph, name)
        assert run.timeline is not None
        assert run.footprints is not None
        bare = replace(run.graph, nodes=())
        runs[name] = _Measured(replace(run.timeline, graph=bare), replace(run.footprints, graph=bare), plan)
        del run
    times: dict[str, list[int]] = {name: [] for name in chosen}
    for number, round_ in enumerate(turns(list(chosen.items()), repetitions)):
        for name, (policy, rule, _, forward) in round_:
            tell(f"{name}, round {number + 1:,} of {repetitions:,}")
            order = None if is_dynamic(policy) else runs[name].timeline.order
            check = partial(_assert_same_graph, signature, policy=name)
            with world.run(leaves):
                if stepped:
                    taken_ns = time_stepped(forward, policy, rule, check)
                else:
                    taken_ns = time_backward(forward, policy, order, check, queues)
                times[name].append(taken_ns)
    first = next(iter(runs.values()))
    rows = tuple(_rows(runs, predicted, times))
    return Comparison(first.timeline.graph, rows, not_counted(first.footprints))


class _Chosen(NamedTuple):
    policy: Policy | Choice
    rule: Accumulation
    plan: MirrorPlan | None
    forward: MakeLoss


class _Measured(NamedTuple):
    timeline: Timeline
    footprints: Footprints
    plan: MirrorPlan | None


def _run(make_loss: MakeLoss, plan: MirrorPlan) -> Tensor:
    """A forward by a plan."""
    with mirror(plan):
        return loss_of(make_loss())


def _chosen_plans(mirroring: Sequence[MirrorPlan | None] | MirrorPlan | None) -> dict[str, MirrorPlan | None]:
    """What stands behind the names of policies, and by which plan the forward runs. Raises what `compare` says."""
    if mirroring is None or isinstance(mirroring, MirrorPlan):
        found = [None] if mirroring is None else [None, mirroring]
    elif isinstance(mirroring, Sequence) and all(each is None or isinstance(each, MirrorPlan) for each in mirroring):
        found = list(mirroring)
    else:
        raise TypeError(f"mirroring is a plan, such as th.plan_mirror makes, or several, not {mirroring!r}")
    if not found:
        raise ValueError("there is nothing to compare: mirroring= is empty")
    if len(set(found)) < len(found):
        raise ValueError("a plan is there twice: mirroring= names each once, and None for no mirroring")
    many = sum(plan is not None for plan in found) > 1
    numbers = count(1)
    return {"" if plan is None else f"{MIRRORED} {next(numbers)}" if many else MIRRORED: plan for plan in found}


def chosen_policies(policies: Sequence[AnyPolicy] | AnyPolicy) -> dict[str, Policy | Choice]:
    """The policies by name. Raises what `compare` says."""
    if isinstance(policies, str | Policy) or callable(policies):
        policies = (policies,)
    if not isinstance(policies, Iterable):
        raise TypeError(f"policies is a list of names, Policy objects or functions, not {policies!r}")
    found = list(map(find_policy, policies))
    chosen = {policy_name(policy): policy for policy in found}
    if not chosen:
        raise ValueError("there is no policy to compare")
    if len(chosen) < len(found):
        names = ", ".join(map(policy_name, found))
        raise ValueError(
            f"there are two policies of one name: {names}; a function's is its __name__, which `def` gives, and a "
            "lambda has none of its own"
        )
    return chosen


def _chosen_rules(
    accumulate: Sequence[Accumulate] | Accumulate, release: Sequence[Release] | Release
) -> list[Accumulation]:
    """Every rule that these make. Raises what `compare` says."""
    sums: Sequence[Accumulate] = (accumulate,) if isinstance(accumulate, str) else accumulate
    ends: Sequence[Release] = (release,) if isinstance(release, str) else release
    found = [Accumulation(each, end) for end in ends for each in sums]
    if not found:
        raise ValueError("there is no rule of accumulation to compare: accumulate= or release= is empty")
    if len(set(found)) < len(found):
        raise ValueError(f"a rule is there twice: accumulate={', '.join(sums)}; release={', '.join(ends)}")
    return found


def _rows(
    runs: dict[str, _Measured], dry: dict[str, tuple[int, tuple[str, ...]]], times: dict[str, list[int]]
) -> Iterator[Row]:
    """Each policy's prediction comes from another one's run: the first, and for the first the second.

    That of a mirrored forward comes from its plan, if this is the order that was planned for; and so does that of a
    plain one where no other ran.
    """
    from ..orders.simulate import simulate

    plans = list(dict.fromkeys(run.plan for run in runs.values() if run.plan is not None))
    for name, (timeline, _, plan) in runs.items():
        by = next((other for other in runs if other != name and runs[other].plan is None), None)
        by = by if plan is None else None
        footprints = None if by is None else runs[by].footprints
        rule = timeline.accumulation
        predicted = None
        levels: tuple[int, ...] = ()
        if footprints is not None:
            predicted = simulate(
                footprints.graph, timeline.order, footprints, accumulate=rule.accumulate, release=rule.release
            )
        else:
            fitting = (each for each in plans if plan in (None, each) and rule == PYTORCHS and _is_for(each, timeline))
            if (planned := next(fitting, None)) is not None:
                by = "th.plan_mirror"
                if isinstance(planned, PlannedMirror):
                    predicted = planned.plain if plan is None else planned.timeline
                elif planned.predicted is not None:
                    levels = planned.predicted.plain_levels if plan is None else planned.predicted.levels
        longest = max(queue_lengths(timeline.graph, timeline.order), default=0)
        dry_bytes, estimates = dry.get(name, (None, ()))
        yield Row(name, timeline, tuple(times[name]), longest, predicted, by, dry_bytes, estimates, plan, levels)


def _is_for(plan: MirrorPlan, timeline: Timeline) -> bool:
    """Whether it predicts, and for this order."""
    if plan.predicted is None:
        return False
    order = schedule(timeline.graph, "heap") if plan.planned_order is None else plan.planned_order.tasks
    return tuple(order) == tuple(timeline.order) and len(order) == len(plan.predicted.levels)


def _signature(drawn: Graph) -> _Signature:
    from ..prediction.simulation import kind_of

    return tuple((kind_of(task), task.inputs) for task in drawn.tasks), drawn.edges


def _assert_same_graph(expected: _Signature, drawn: Graph, policy: str) -> None:
    tasks, edges = _signature(drawn)
    if (tasks, edges) == expected:
        return
    if len(tasks) != len(expected[0]):
        how = f"of {len(expected[0]):,} tasks at first, of {len(tasks):,} under {policy}"
    else:
        differing = [number for number, task in enumerate(tasks) if task != expected[0][number]]
        how = (
            f"under {policy}, {drawn.describe(differing[0])} is another task than at first"
            if differing
            else f"under {policy} its edges are others"
        )
    raise ValueError(
        f"make_loss builds another graph each time, so its policies can't be compared: {how}. Fix what changes: the "
        "data, its sizes, and random numbers of generators of its own"
    )


def _against(predicted: int, measured: int) -> str:
    if predicted == measured:
        return "exact"
    if not measured:
        return size_text(predicted)
    return f"{size_text(predicted)} ({100 * (predicted - measured) / measured:+.2f} %)"
