"""The publisher of a live session: what its page has, what is new, and the message that says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import takewhile
from threading import Lock
from typing import Any

from ...engine.recompute.plan_by_task import ReplayClock
from ...engine.recording.statistics import form_of, statistics
from ...engine.recording.task_records import RecordedGradient
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...inspector.graph.graph import Task
from .groups_data import with_batches
from .live_plan import LiveBranches, LivePlan
from .live_state import LiveStanding, Status, history_content, stopped_content
from .page_data import Document, Json, packed

_BY_TASK = {"kept": "by task"}
"""Of a field with entries by task, which are added to those that the page has."""
_IF_NEW = {"kept": "if new"}
"""Of a field that takes the place of what the page has, unless it is None."""


@dataclass(frozen=True, slots=True)
class News:
    """How a live session is, and what has changed. A field that the page's data keeps says how.

    Attributes:
        position: how many tasks have run.
        current: the id of the task that runs next; None: none is left, or the policy fails to choose.
        status: see `Deck.status`.
        trouble: why it failed, or why something that was asked for could not be, in words.
        stopped: the breakpoint or watchpoint at which it has stopped: `text`, `lines`, `task`, `number`, `why`.
        history: what going back costs: `bytes`, of these `gradient_bytes` and `saved_bytes`, and how far it can go:
            `reach`. None where no task can be taken back.
        forgotten: the ids of tasks of which what was recorded holds no more: they were taken back.
        records: what was recorded of tasks since the last news, by id. It is newer than what is forgotten.
        checks: what was found when tasks were checked since the last news, by id.
        live: the session's own schedule, where it is another than before: what has run, and what is planned.
        others: what other policies would do, and what branches did, where that is something else than before.
        branches: the ways in which the session went, where there are others than before.
        groups: which products could run as one, where that was looked for; see `group_content`.
        replayed: by id of a task that ran since the last news how many storages it made again, and the nanoseconds.
    """

    position: int
    current: int | None
    status: Status
    trouble: str = ""
    stopped: Json | None = None
    history: Json | None = None
    forgotten: tuple[int, ...] = ()
    records: Json = field(default_factory=dict, metadata=_BY_TASK)
    checks: Json = field(default_factory=dict, metadata=_BY_TASK)
    live: Json | None = None
    others: list[Json] | None = None
    branches: list[Json] | None = field(default=None, metadata=_IF_NEW)
    groups: Json | None = field(default=None, metadata=_IF_NEW)
    replayed: Json = field(default_factory=dict, metadata=_BY_TASK)


_KEPT = {each.name: each.metadata for each in fields(News) if each.metadata}


class Publisher:
    """Tells the page and the deck what is new. The page's data is the one copy of what the page has.

    Belongs in the driver's thread, but for `greet`.

    Args:
        document: the page's data.
        clock: what the session's tasks make again of storages that were let go.
        send: sends a message with its buffers to all pages.
        observe: is called with the news after they were sent.

    Attributes:
        told: the last news.
    """

    def __init__(
        self,
        at: LiveStanding,
        plan: LivePlan,
        branches: LiveBranches,
        document: Document,
        clock: ReplayClock,
        send: Callable[[Json, list[bytes]], None],
        observe: Callable[[News], None],
    ) -> None:
        self._at = at
        self._plan = plan
        self._branches = branches
        self._document = document
        self._clock = clock
        self._send_message = send
        self._observe = observe
        self._reported = 0
        self._batches_told = (0, 0)  # batches and fallbacks
        self._looked_at: set[int] = set()  # tasks that have not run, of which records tell what waits for them
        self._replayed: Json = {}  # since the last news
        self._forgotten: set[int] = set()  # ever
        self._lock = Lock()
        self.told = self._news()

    def tell(self, **changes: Any) -> None:
        """Tells how things are, with these fields of `News` that are new."""
        news = self._news(**changes)
        with self._lock:
            self._keep(news)
            self._send(news)
        self._observe(news)

    def greet(self, revision: int) -> None:
        """A page has opened: it hears how things are, and what it has missed since its document was packed."""
        with self._lock:
            content, told = self._document.content, self.told
            news = News(told.position, told.current, told.status, told.trouble, told.stopped, told.history)
            if content["revision"] != revision:
                live, *others = content["schedules"]
                kept = {name: content[name] for name in _KEPT if name in content}
                news = replace(news, forgotten=tuple(sorted(self._forgotten)), live=live, others=others, **kept)
            self._send(news)

    def _keep(self, news: News) -> None:
        """Adds the news to the page's data. Its revision comes last: a page packed before it asks for the rest."""
        content = self._document.content
        self._forgotten.update(news.forgotten)
        for task_id in news.forgotten:
            content["records"].pop(str(task_id), None)
        for name, rule in _KEPT.items():
            value = getattr(news, name)
            if rule == _BY_TASK:
                content.setdefault(name, {}).update(value)
            elif value is not None or name not in content:
                content[name] = value or []
        live, *others = content["schedules"]
        content["schedules"] = [news.live or live, *(others if news.others is None else news.others)]
        content["position"] = news.position
        self.told = news
        content["revision"] += 1

    def _send(self, news: News) -> None:
        content = {name: getattr(news, name) for name in News.__slots__}
        self._send_message({"kind": "news"}, [packed(content | {"metas": self._document.metas})])

    def _news(self, others: list[Json] | None = None, **changes: Any) -> News:
        at, history = self._at, self._at.history
        branches, left_others = self._branches.news()
        if others is None and left_others:
            others = self._plan.others()
        standing = {
            "position": len(at.session.order),
            "current": at.current,
            "status": at.status,
            "trouble": at.trouble,
            "stopped": None if at.stopped is None else stopped_content(at.stopped),
            "history": None if history is None else history_content(history, self._branches.gradient_bytes),
        }
        return News(**standing | {"others": others, "branches": branches} | changes)

    def tell_plan(self) -> None:
        """All schedules are others than before."""
        self.tell(live=self._plan.own_schedule(), others=self._plan.others())

    def tell_progress(self) -> None:
        """What has run since the last news; the plan is made again where something else ran than planned."""
        self.tell(**self._progress())

    def _progress(self) -> Json:
        trace, started, current = self._at.session.trace, self._at.started, self._at.current
        records = {} if trace is None else self._document.records(trace, range(self._reported, len(trace)))
        groups = self._groups_now()
        other = self._plan.follow(self._reported, current)
        live = self._plan.own_schedule() if other or groups is not None else None
        self._reported = len(started)
        self._looked_at.difference_update(started)
        replayed, self._replayed = self._replayed, {}
        return {"records": records | self.waiting(current), "live": live, "groups": groups, "replayed": replayed}

    def tell_jump(self, before: Sequence[tuple[int, int]]) -> None:
        """What has changed by going back, and on again maybe, from where this had run."""
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, self._at.runs, strict=False)))
        forgotten = {*(task_id for task_id, _ in before[common:]), *self._looked_at}
        self._looked_at.clear()
        self._reported = min(self._reported, common)
        self._plan.jumped()
        live = self._plan.own_schedule()
        progress = self._progress()
        self.tell(**progress | {"forgotten": tuple(sorted(forgotten)), "live": live, "others": self._plan.others()})

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
