"""The publisher of a live session: the page's data, changes to it, and the messages that send them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import takewhile
from threading import RLock
from typing import Any

from ...engine.recompute.plan_by_task import ReplayClock
from ...engine.recording.statistics import form_of, statistics
from ...engine.recording.task_records import RecordedGradient
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...inspector.graph.graph import Task
from .groups_data import with_batches
from .live_plan import LiveBranches, LivePlan
from .live_state import LiveStanding, Status
from .page_data import Document, Json, packed

_BY_TASK = {"kept": "by task"}
"""Metadata of a field with entries by task, which are added to the page's entries."""
_IF_NEW = {"kept": "if new"}
"""Metadata of a field that replaces the page's value, unless it is None."""


@dataclass(frozen=True, slots=True)
class News:
    """The state of a live session, and its changes. A field's metadata says how the page's data keeps it.

    Attributes:
        position: the number of tasks that have run.
        current: the id of the task that runs next; None if no task is left, or the policy fails to choose.
        status: see `Deck.status`.
        trouble: the reason for a failure, or for a refused command, as text.
        stopped: the breakpoint or watchpoint that stopped the run: `text`, `lines`, `task`, `number`, `why`.
        history: the memory held for undo: `bytes`, `gradient_bytes` and `saved_bytes`, and the number of tasks that can
            be undone: `reach`. None if undo is not possible.
        forgotten: the ids of undone tasks, whose records are invalid.
        records: records of tasks since the last news, by id. They are newer than `forgotten`.
        checks: results of checks since the last news, by task id.
        live: the session's own schedule if it has changed: finished and planned tasks.
        others: the schedules of other policies and of branches, if they have changed.
        branches: the branches of the session, if they have changed.
        groups: groups of products that could run as one, if they were searched; see `group_content`.
        replayed: for each task since the last news, by id, the number of recomputed storages, and nanoseconds.
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
    """Publishes changes to the page and the deck. The page's data is the only copy of the page's state.

    Runs in the driver's thread, except `greet` and `tell_running`.

    Args:
        document: the page's data.
        clock: counts the recomputed storages of the session's tasks.
        send: sends a message with its buffers to all pages.
        observe: called with the news after they were sent.

    Attributes:
        published: the last news.
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
        self._batches_published = (0, 0)  # batches and fallbacks
        self._looked_at: set[int] = set()  # tasks that have not run and whose input buffers were published
        self._replayed: Json = {}  # since the last update of the page
        self._forgotten: set[int] = set()  # ever
        self._lock = RLock()  # a front end may answer in the thread that sends
        self.published = self._news()

    def tell(self, **changes: Any) -> None:
        """Publish the current state, with these changed fields of `News`."""
        news = self._news(**changes)
        with self._lock:
            self._keep(news)
            self._send(news)
        self._observe(news)

    def tell_running(self) -> None:
        """Publish the number of tasks that have run, and the running task. Their records follow in `tell_progress`.

        The lock is held while observers are called, so that the driver's next news reach them afterwards.
        """
        with self._lock:
            last, order, plan = self.published, self._at.session.order, self._plan.order
            ran = len(order)
            if last.status != "running" or not last.position < ran < len(plan):
                return
            if [*order[last.position : ran]] != plan[last.position : ran]:
                return  # the driver publishes the new order after the task
            running = News(ran, plan[ran], last.status, last.trouble, history=last.history)
            self._keep(running)
            self._send(running)
            self._observe(running)

    def greet(self, revision: int) -> None:
        """Send a new page the current state, and the changes since its document was packed."""
        with self._lock:
            content, last = self._document.content, self.published
            news = News(last.position, last.current, last.status, last.trouble, last.stopped, last.history)
            if content["revision"] != revision:
                live, *others = content["schedules"]
                kept = {name: content[name] for name in _KEPT if name in content}
                news = replace(news, forgotten=tuple(sorted(self._forgotten)), live=live, others=others, **kept)
            self._send(news)

    def _keep(self, news: News) -> None:
        """Add the news to the page's data. The revision is set last, so that a page packed before requests the rest."""
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
        self.published = news
        content["revision"] += 1

    def _send(self, news: News) -> None:
        content = {name: getattr(news, name) for name in News.__slots__}
        self._send_message({"kind": "news"}, [packed(content | {"metas": self._document.metas})])

    def _news(self, others: list[Json] | None = None, **changes: Any) -> News:
        at, history = self._at, self._at.history
        branches, left_others = self._branches.news()
        if others is None and left_others:
            others = self._plan.others()
        standing: Json = {
            "position": len(at.session.order),
            "current": at.current,
            "status": at.status,
            "trouble": at.trouble,
            "stopped": None,
            "history": None,
        }
        if (stop := at.stopped) is not None:  # without its tensors
            facts = {"why": stop.why, "number": stop.number, "task": stop.task, "text": stop.text}
            standing["stopped"] = facts | {"lines": list(stop.all_lines)}
        if history is not None:
            gradient_bytes = history.gradient_bytes + self._branches.gradient_bytes
            saved_bytes = history.saved_bytes  # read once, because it is counted each time
            standing["history"] = {
                "bytes": gradient_bytes + saved_bytes,
                "gradient_bytes": gradient_bytes,
                "saved_bytes": saved_bytes,
                "reach": history.reach,
            }
        return News(**standing | {"others": others, "branches": branches} | changes)

    def tell_plan(self) -> None:
        """Publish all schedules, after they have changed."""
        self.tell(live=self._plan.own_schedule(), others=self._plan.others())

    def tell_progress(self) -> None:
        """Publish the tasks since the last news; updates the plan if another task than planned ran."""
        self.tell(**self._progress())

    def _progress(self) -> Json:
        session, started, current = self._at.session, self._at.started, self._at.current
        trace = session.trace
        records = {} if trace is None else self._document.records(trace, range(self._reported, len(trace)))
        groups: Json | None = None  # with those that have run as one, if there are more than published
        batches = session.batches if isinstance(session, Stepper) else None
        if batches is not None and (counts := (len(batches), len(batches.fallbacks))) != self._batches_published:
            self._batches_published = counts
            groups = with_batches(self._document.content["groups"], batches, self._at.graph)
        other = self._plan.follow(self._reported, current)
        live = self._plan.own_schedule() if other or groups is not None else None
        self._reported = len(started)
        self._looked_at.difference_update(started)
        replayed, self._replayed = self._replayed, {}
        return {"records": records | self.waiting(current), "live": live, "groups": groups, "replayed": replayed}

    def tell_jump(self, before: Sequence[tuple[int, int]]) -> None:
        """Publish the changes by undo, and by tasks run afterwards; `before` are the tasks that had run."""
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, self._at.runs, strict=False)))
        forgotten = {*(task_id for task_id, _ in before[common:]), *self._looked_at}
        self._looked_at.clear()
        self._reported = min(self._reported, common)
        self._plan.jumped()
        live = self._plan.own_schedule()
        progress = self._progress()
        self.tell(**progress | {"forgotten": tuple(sorted(forgotten)), "live": live, "others": self._plan.others()})

    def note_replays(self, task: Task) -> None:
        """Note the storages that a task recomputed."""
        if (made := self._clock.lap()) is not None:
            self._replayed[str(task.id)] = [made[0], round(1e9 * made[1])]

    def waiting(self, task: int | None) -> Json:
        """Return the statistics of a task's input buffer, by default the current task's, if it can be read."""
        session, current = self._at.session, self._at.current
        task = current if task is None else task
        trace = session.trace
        if task is None or current is None or trace is None or trace.level == "off":
            return {}
        if trace.columns.started_ns[self._at.graph.task(task).id] >= 0:
            return {}
        if isinstance(session, NativeSession) and (task != current or not session.order):
            return {}  # the engine shows only the input buffer of the task it has popped, and pops none before a step
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
