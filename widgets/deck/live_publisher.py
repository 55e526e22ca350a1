"""What a live session has to tell: how it stands, what has run since it last told, and what waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from ...engine.recompute.plan_by_task import ReplayClock
from ...engine.recording.statistics import form_of, statistics
from ...engine.recording.task_records import RecordedGradient
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...inspector.graph.graph import Task
from .groups_data import with_batches
from .live_plan import LiveBranches, LivePlan
from .live_state import LiveStanding, News, history_content, stopped_content
from .page_data import Document, Json


class LiveReport:
    """Knows what has been told, and puts what has not into `News`. Belongs in the driver's thread.

    Args:
        clock: what the session's tasks make again of storages that were let go.
        tell: is called with the news.
    """

    def __init__(
        self,
        at: LiveStanding,
        plan: LivePlan,
        branches: LiveBranches,
        document: Document,
        clock: ReplayClock,
        tell: Callable[[News], None],
    ) -> None:
        self._at = at
        self._plan = plan
        self._branches = branches
        self._document = document
        self._clock = clock
        self.tell = tell
        self._reported = 0
        self._batches_told = (0, 0)  # batches and fallbacks
        self._looked_at: set[int] = set()  # tasks that have not run, of which records tell what waits for them
        self._replayed: Json = {}  # since the last news

    def news(self, records: Json | None = None, live: Json | None = None, others: list[Json] | None = None) -> News:
        """How things are, with this that is new."""
        at, history = self._at, self._at.history
        branches, left_others = self._branches.news()
        if others is None and left_others:
            others = self._plan.others()
        return News(
            len(at.session.order),
            at.current,
            at.status,
            at.trouble,
            None if at.stopped is None else stopped_content(at.stopped),
            None if history is None else history_content(history, self._branches.gradient_bytes),
            records=records or {},
            live=live,
            others=others,
            branches=branches,
        )

    def planned_anew(self) -> News:
        """All schedules are others than before."""
        return self.news(live=self._plan.own_schedule(), others=self._plan.others())

    def progress(self) -> News:
        """What has run since the last news; the plan is made again where something else ran than planned."""
        trace, started, current = self._at.session.trace, self._at.started, self._at.current
        records = {} if trace is None else self._document.records(trace, range(self._reported, len(trace)))
        groups = self._groups_now()
        other = self._plan.follow(self._reported, current)
        live = self._plan.own_schedule() if other or groups is not None else None
        self._reported = len(started)
        self._looked_at.difference_update(started)
        replayed, self._replayed = self._replayed, {}
        return replace(self.news(records | self.waiting(current), live), groups=groups, replayed=replayed)

    def arrived(self, before: Sequence[tuple[int, int]]) -> News:
        """What has changed by going back, and on again maybe, from where this had run."""
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, self._at.runs, strict=False)))
        forgotten = {*(task_id for task_id, _ in before[common:]), *self._looked_at}
        self._looked_at.clear()
        self._reported = min(self._reported, common)
        self._plan.jumped()
        live = self._plan.own_schedule()
        return replace(self.progress(), forgotten=tuple(sorted(forgotten)), live=live, others=self._plan.others())

    def note_replays(self, task: Task) -> None:
        """A task has run."""
        if (made := self._clock.lap()) is not None:
            self._replayed[str(task.id)] = [made[0], round(1e9 * made[1])]

    def waiting(self, task: int | None) -> Json:
        """The statistics of a waiting task's input buffer, by default the current one's, where it can be looked at."""
        session, current = self._at.session, self._at.current
        task = current if task is None else task
        trace = session.trace
        if task is None or current is None or trace is None or trace.level == "off":
            return {}
        if trace.columns.started_ns[self._at.graph.task(task).id] >= 0:
            return {}
        if isinstance(session, NativeSession) and (task != current or not session.order):
            return {}  # the engine shows what waits for the task it has taken, and takes none before the first step
        found: list[RecordedGradient | None] = []
        for gradient in session.waiting(task):
            if gradient is None:
                found.append(None)
            else:
                form = form_of(gradient)
                found.append(RecordedGradient(form.meta, form.layout, statistics(gradient, trace.level)))
        self._looked_at.add(task)
        edited = any(edit.task == task for edit in trace.edits)
        return {str(task): self._document.record(found, edited=edited)}

    def _groups_now(self) -> Json | None:
        """The groups with what has run as one, where that is more than was told."""
        session = self._at.session
        batches = session.batches if isinstance(session, Stepper) else None
        told = (0, 0) if batches is None else (len(batches), len(batches.fallbacks))
        if batches is None or told == self._batches_told:
            return None
        self._batches_told = told
        return with_batches(self._document.content["groups"], batches, self._at.graph)
