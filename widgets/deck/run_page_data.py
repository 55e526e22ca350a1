"""A recorded backward as a page's data, with its devices over time, and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import add, sub
from pathlib import Path
from typing import TYPE_CHECKING

from ...engine.memory.task_memory import Footprints
from ...engine.memory.timeline import Timeline
from ...engine.planning.policies import CLASSIC, POLICIES, TABS
from ...engine.planning.simulate import schedule, simulate
from ...engine.recording.run import Run
from ...engine.schedule.dependencies import Pending
from ...engine.schedule.policy import Policy
from ...engine.studies.gantt import Gantt
from ...engine.studies.makespan import makespan
from .groups_data import with_batches
from .page_data import Document, Json, lane_levels, saved_content, schedule_content, title_of
from .recompute_data import RecomputeContent
from .save_deck import save_page

if TYPE_CHECKING:
    from ...engine.recompute.plan import RecomputePlan


def still_content(gantt: Gantt) -> list[Json]:
    """Return the longest idle time of each device that is caused by the order, as text; empty if it is short.

    `device` is its number among the page's devices, which are sorted by name.
    """
    idle = gantt.starved
    if idle is None:
        return []
    device = sorted(gantt.rows).index(idle.device)
    return [{"device": device, "from": idle.start_ns, "to": idle.end_ns, "text": gantt.starved_text}]


Other = tuple[str, list[int], Timeline | None]
"""A policy's name, its order, and the memory of the order if it is known."""

_NOT_MEASURED = (
    "The memory of this run was not measured: ts.profile(make_loss) and ts.backward(..., memory=True) measure it."
)
_STEPPED = 1.05  # largest ratio of the clocks of a trace and of its run


def clock_content(gantt: Gantt) -> Json:
    """Return each task's start, duration and ready time by place, and `still_content`."""
    bars = [gantt.bars[task_id] for task_id in gantt.order]
    return {
        "start": [bar.start_ns for bar in bars],
        "duration": [bar.elapsed_ns for bar in bars],
        "ready": [bar.ready_ns for bar in bars],
        "still": still_content(gantt),
    }


_NOT_PREDICTED = "The memory under this policy is not known, because the memory of this run was not measured."


def save_run(
    run: Run, path: str | Path, title: str = "", source: str = "", recompute: RecomputePlan | None = None
) -> Path:
    """Write a run as one page that plays without a kernel or a network connection; see `save_page`."""
    document = run_document(run, title, recompute=recompute)
    return save_page(document.packed(), Path(path), document.content["title"], source)


def run_document(
    run: Run, title: str = "", others: Iterable[Other] | None = None, recompute: RecomputePlan | None = None
) -> Document:
    """Return a run as page data: its order, its records, and the orders of other policies.

    Args:
        others: the result of `other_policies`, if it is known.
        recompute: the plan that the forward ran under.

    Raises:
        TypeError, ValueError: `recompute` is not a plan, or belongs to another graph.
    """
    graph, timeline = run.graph, run.timeline
    node_free = replace(graph, nodes=())
    # After the run, only the plan knows the dropped tensors.
    recomputed = RecomputeContent(graph if recompute is None else node_free, recompute)
    document = Document(graph, title or title_of(graph), run.engine, RecomputeContent(node_free))
    content = document.content
    # Without saved tensors, the nodes are freed, or a backward has freed their tensors.
    if timeline is not None and not content["saved"]["task"]:
        content["saved"] = saved_content(document, timeline)
    content["saved"] = document.with_dropped(content["saved"], recomputed)
    schedules = [_own_schedule(run), *_others(run, other_policies(run) if others is None else others)]
    content["schedules"] = [recomputed.with_plan(each, run.accumulation) for each in schedules]
    if run.batches is not None:
        content["groups"] = with_batches(None, run.batches, graph)
    content["phases"] = list(_phases(run, schedules[0]["clock"]))
    content["position"] = len(run.order)
    content["keeps_graph"] = graph.is_tape  # nodes of a tape keep their arrays
    if run.trace is not None:
        content["records"] = document.records(run.trace, range(len(run.trace)))
        content["queues"] = "per device" if _side_by_side(run) else "one"
    return document


def _own_schedule(run: Run) -> Json:
    by_hand = () if run.trace is None else run.trace.by_hand
    known = POLICIES.get(run.policy)
    policy = Policy(run.policy, known.title if known else "the order of the run", key=lambda task, arrival: (arrival,))
    order = [*run.order, *_left(run)]
    own = schedule_content(
        run.graph, policy, order, by_hand=by_hand, timeline=run.timeline, note=_NOT_MEASURED, clock=_clock(run)
    )
    if levels := lane_levels(run.graph, run.timelines):
        own["lane_levels"] = levels
    if run.batches:
        own["batches"] = run.batches.steps
    if run.policy not in CLASSIC and run.trace is not None:
        labels = [""] * len(run.graph)
        for arrival, task_id in enumerate(run.trace.columns.arrivals):
            labels[task_id] = run.trace.label(arrival)
        own["keys"] = labels
    return own


def _phases(run: Run, clock: Json | None) -> Iterator[Json]:
    """Yield the recorded phases with their durations: forward, backward."""
    timeline = run.timeline
    if timeline is not None and not timeline.before and timeline.starts[0]:
        forward = timeline.forward_ns
        yield {"name": "forward", "elapsed_ns": forward[-1] if forward else None}
    ended = 0 if clock is None else max(map(add, clock["start"], clock["duration"]))
    yield {"name": "backward", "elapsed_ns": ended or run.elapsed_ns or None}


def _clock(run: Run) -> Json | None:
    """Return the times of tasks; None if they were not recorded."""
    timeline, trace = run.timeline, run.trace
    if timeline is not None and timeline.task_ns and timeline.order == run.order:
        starts, ends = list(timeline.task_ns[::2]), list(timeline.task_ns[1::2])
    elif trace is not None:
        starts = [trace.columns.started_ns[task_id] for task_id in run.order]
        ends = [trace.columns.ended_ns[task_id] for task_id in run.order]
    else:
        return None
    durations = list(map(sub, ends, starts))
    if not durations or min(starts) < 0 or min(durations) < 0:
        return None
    if max(ends) - min(starts) > _STEPPED * run.elapsed_ns:  # the backward was stopped between tasks
        starts = list(accumulate(durations[:-1], initial=0))
    first = min(starts)  # with two threads, the first record may have the later time
    starts = [start - first for start in starts]
    clock: Json = {"start": starts, "duration": durations}
    if _side_by_side(run):
        ends = list(map(add, starts, durations))
        clock["still"] = still_content(Gantt.of(run.graph, run.policy, run.order, starts, ends))
    return clock


def _side_by_side(run: Run) -> bool:
    """Return whether each device had its own queue and thread."""
    return run.trace is not None and len(set(run.trace.columns.thread)) > 1


def _left(run: Run) -> list[int]:
    """Return the tasks that an unfinished session would have run next; empty if `inputs=` excludes tasks."""
    trace, ran = run.trace, len(run.order)
    if trace is None or run.timeline is not None or not trace.queue(len(trace)):
        return []
    if run.planned[:ran] == run.order and len(run.planned) > ran:
        return list(run.planned[ran:])
    pending = Pending(run.graph)
    arrived = set(pending.start())
    for task_id in run.order:
        arrived.update(pending.run(task_id))
    if not arrived <= set(trace.columns.arrivals):  # some tasks were not needed
        return []
    last = trace.terms[-1].policy
    return schedule(run.graph, last if last in CLASSIC else "heap", None, run.order)[ran:]


def _others(run: Run, others: Iterable[Other]) -> list[Json]:
    found = []
    for name, order, timeline in others:
        clock = clock_content(makespan(run.graph, name, run)) if _simulates(run, name) else None
        policy = POLICIES[name]
        content = schedule_content(run.graph, policy, order, timeline=timeline, note=_NOT_PREDICTED, clock=clock)
        elsewhere = [each for _, each in run.elsewhere if each is not None]
        if timeline is not None and elsewhere:
            timelines = [timeline, *(_predicted(run, order, each) for each in elsewhere)]
            content["lane_levels"] = lane_levels(run.graph, {each.device: each for each in timelines})
        found.append(content)
    return found


def _simulates(run: Run, policy: str) -> bool:
    """Return whether the run's devices can be simulated under another policy with the measured times."""
    return _side_by_side(run) and len(run.order) == len(run.graph) and POLICIES[policy].plan is None


def _predicted(run: Run, order: Sequence[int], footprints: Footprints) -> Timeline:
    rule = run.accumulation
    return simulate(footprints.graph, order, footprints, accumulate=rule.accumulate, release=rule.release)


def other_policies(run: Run) -> Iterator[Other]:
    """Yield the names, orders and predicted memory of other known policies for the run's graph."""
    runs = {*run.order, *_left(run)}
    needed = None if len(runs) == len(run.graph) else runs
    footprints = run.footprints
    for name in TABS:
        if name != run.policy and (footprints is not None or POLICIES[name].plan is None):
            if _simulates(run, name):
                order = list(makespan(run.graph, name, run).order)
            else:
                order = schedule(run.graph, name, needed, footprints=footprints)
            yield name, order, None if footprints is None else _predicted(run, order, footprints)
