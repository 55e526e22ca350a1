"""When each task of a run started and ended, on one clock with its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..trace.run import Run
from ..trace.trace import Trace


@dataclass(frozen=True, slots=True)
class TaskClock:
    """When tasks ran, by place, nanoseconds since the first one started.

    Attributes:
        starts: of each task.
        ends: None for a task that was not seen to end.
        base_ns: what the memory's clock says at 0; None: it is not on this clock.
        began_ns: what `time.perf_counter_ns` said at 0; None: not known, as of a run from a file.
    """

    starts: Sequence[int]
    ends: Sequence[int | None]
    base_ns: int | None = None
    began_ns: int | None = None

    @staticmethod
    def of(run: Run) -> TaskClock | None:
        """That of the memory where it has one, else that of the trace; None where the run has neither."""
        timeline, trace = run.timeline, run.trace
        if timeline is not None and timeline.task_ns and timeline.order == run.order:
            base = timeline.task_ns[0]
            began = None if timeline.began_ns is None else timeline.began_ns + base
            if began is None and trace is not None and trace.order == run.order and run.order:
                began = _began(trace)
            starts = [ns - base for ns in timeline.task_ns[::2]]
            return TaskClock(starts, [ns - base for ns in timeline.task_ns[1::2]], base, began)
        return None if trace is None or trace.order != run.order else TaskClock.of_trace(trace)

    @staticmethod
    def of_trace(trace: Trace) -> TaskClock:
        """That of the trace."""
        started, ended = trace.columns.started_ns, trace.columns.ended_ns
        first = min((started[task] for task in trace.order), default=0)
        starts = [started[task] - first for task in trace.order]
        ends = [None if ended[task] < 0 else ended[task] - first for task in trace.order]
        return TaskClock(starts, ends, None, _began(trace))


def _began(trace: Trace) -> int | None:
    """When the first task started, of those that a trace has."""
    if trace.began_ns is None or not trace.order:
        return None
    return trace.began_ns + min(trace.columns.started_ns[task] for task in trace.order)
