"""The live session behind a deck, with its breakpoints and watchpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ...engine.planning.policies import find_policy
from ...engine.recompute.plan_by_task import ReplayClock
from ...engine.schedule.policy import AnyPolicy
from ...engine.session.breakpoints.stop_list import Entry
from ...engine.session.compare_branches import BranchComparison
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...inspector.garbage_collector import collector_paused
from .groups_data import group_content, no_groups
from .live_driver import Driver
from .live_plan import LiveBranches, LivePlan
from .live_predictions import Foresight
from .live_report import LiveReport
from .live_runner import LiveEdits, LiveRunning
from .live_state import LiveStanding, News, in_trouble, why
from .page_data import Document, Json
from .recompute_data import MirrorContent

if TYPE_CHECKING:
    from ...engine.recompute.plan import RecomputePlan


class LiveStops:
    """The stops of a session, and among them those before one task, which the trait `breakpoints` has by its id.

    The session's stops are the truth. What is asked of them through the trait is noted at once, from whatever thread,
    and done in the driver's.
    """

    def __init__(self, session: Stepper | NativeSession) -> None:
        self._session = session
        self._asked: deque[tuple[Collection[int], Collection[int]]] = deque()
        self._places: dict[int, tuple[list[int], list[int]]] = {}

    @property
    def rows(self) -> list[Json]:
        """What the page is told of each."""
        rows = []
        for entry in self._session.stops:
            tasks, calls = self._tasks_and_calls(entry)
            facts = {"number": entry.number, "kind": entry.kind, "text": entry.text, "enabled": entry.enabled}
            rows.append(facts | {"hits": entry.hits, "tasks": tasks, "calls": calls})
        return rows

    @property
    def breakpoints(self) -> list[int]:
        """The ids of the tasks that have a breakpoint of their own which is enabled, as they are going to be."""
        found = {task_id: None for task_id in map(_own_task, self._enabled) if task_id is not None}
        for added, removed in list(self._asked):
            found.update(dict.fromkeys(added))
            for task_id in removed:
                found.pop(task_id, None)
        return list(found)

    def ask(self, added: Collection[int], removed: Collection[int]) -> None:
        """Notes that these tasks are to get a breakpoint, and that those are to lose theirs. For any thread."""
        self._asked.append((added, removed))

    def take(self) -> None:
        """Does what was asked for. One that is disabled is enabled again, and does not go with the others."""
        while self._asked:
            try:
                self._change(*self._asked[0])
            finally:
                self._asked.popleft()

    def _change(self, added: Collection[int], removed: Collection[int]) -> None:
        stops = self._session.stops
        enabled = set(map(_own_task, self._enabled))
        disabled = {_own_task(entry): entry.number for entry in stops if not entry.enabled}
        for task_id in added:
            if task_id in enabled:
                continue
            if task_id in disabled:
                stops.enable(disabled[task_id])
            else:
                self._session.break_at(task_id)
        for entry in self._enabled:
            if _own_task(entry) in removed:
                stops.delete(entry.number)

    @property
    def _enabled(self) -> list[Entry]:
        return [entry for entry in self._session.stops if entry.enabled]

    def _tasks_and_calls(self, entry: Entry) -> tuple[list[int], list[int]]:
        """Where it may stop, and of a breakpoint on modules the call of each: it stops at a call's first task alone."""
        if entry.tasks is None:
            return [], []
        if entry.number not in self._places:
            tasks = sorted(entry.tasks)
            calls = entry.calls if entry.kind == "break" else None
            self._places[entry.number] = tasks, [] if calls is None else [calls[task_id] for task_id in tasks]
        return self._places[entry.number]


def _own_task(entry: Entry) -> int | None:
    """The id of the task by which a breakpoint was asked for, if it was."""
    if entry.kind != "break" or entry.hit is not None or entry.tasks is None or len(entry.tasks) != 1:
        return None
    (task_id,) = entry.tasks
    return task_id if entry.text in (f"#{task_id}", f"task:{task_id}", str(task_id)) else None


T = TypeVar("T")


class Live:
    """A session with all that a deck knows of it. All but `stop` and `close` belong in the driver's thread.

    Args:
        session: of either engine, nothing run yet.
        policy: its policy.
        title: what is run.
        retain_graph, create_graph: as given to the backward.
        tell: is called with `News`, in the driver's thread.
        recompute: the plan by which the forward was mirrored.

    Attributes:
        driver: what runs commands, one after the other.
        at: where the session stands.
        stops: its breakpoints and watchpoints.
        foresight: what is known of the memory ahead.
        branches: the ways in which it went.
        plan: the order of all tasks, and which policy picks.
        report: what it has to tell.
        running: runs tasks and takes them back.
        edits: changes what waits.
        document: the page's data.
    """

    def __init__(
        self,
        session: Stepper | NativeSession,
        policy: AnyPolicy,
        title: str,
        retain_graph: bool,
        create_graph: bool,
        tell: Callable[[News], None],
        recompute: RecomputePlan | None = None,
    ) -> None:
        self.session = session
        self.driver = Driver()
        self.at = at = LiveStanding(session)
        first = find_policy(policy)
        self.stops = LiveStops(session)
        with collector_paused():
            mirrored = MirrorContent(session.graph, recompute, not (retain_graph or create_graph))
            clock = ReplayClock(session.graph)
        self.foresight = Foresight(session, retain_graph, create_graph, mirrored)
        self.branches = LiveBranches(session, self.foresight)
        with collector_paused():
            self.plan = plan = LivePlan(at, self.foresight, self.branches, first)
            self.document = Document(session.graph, title, at.engine, mirrored)
            self.document.content["keeps_graph"] = retain_graph
            self.document.content["queues"] = session.queues
            self.document.content["schedules"] = [plan.own_schedule(), *(plan.others() if self.is_small else ())]
            if self.is_small:  # before a task runs: then its factors are gone
                with suppress(Exception):  # who asks for them is told why there are none
                    self.document.content["groups"] = group_content(session.graph)
        self.report = LiveReport(at, plan, self.branches, self.document, clock, tell)
        self.running = LiveRunning(at, self.driver, plan, self.report)
        self.edits = LiveEdits(at, self.report)

    @property
    def is_small(self) -> bool:
        return self.foresight.is_small

    @property
    def is_current_thread(self) -> bool:
        """Whether this is the thread that runs the session, or its hooks: to wait there for a command never ends."""
        session = self.session
        return self.driver.is_current_thread or (isinstance(session, NativeSession) and session.runs_in_this_thread)

    def foresee(self) -> None:
        """Tells the other policies' schedules, which for a large graph take a while."""
        self.report.tell(self.report.news(others=self.plan.others()))

    def predict(self) -> None:
        """Asks each task once what it would allocate. Does nothing where that is known.

        Raises:
            ValueError: that can't be, since a task has run, or since the backward gets a graph of its own.
        """
        if self.foresight.is_known:
            return
        try:
            self.foresight.ask_tasks()
        finally:
            self.foresight.forget()
            self.branches.forget()
            self.report.tell(self.report.planned_anew())

    def find_groups(self) -> None:
        """Tells which products could run as one, where that was not looked for yet: large graphs take a while.

        A page that asks waits for an answer: where there are none, it gets the reason in their place.
        """
        if self.document.content["groups"] is None:
            over = self.session.over
            try:
                found = group_content(self.session.graph) if over is None else _not_found(over)
            except Exception as error:
                self._tell_groups(no_groups(f"Groups can't be found: {why(error)}"))
                raise
            self._tell_groups(found)

    def _tell_groups(self, groups: Json) -> None:
        self.report.tell(replace(self.report.news(), groups=groups))

    def switch(self, policy: AnyPolicy) -> None:
        """From here on this policy picks."""
        if self.plan.switch(policy):
            self.report.tell(self.report.planned_anew())

    def compare_branches(self) -> BranchComparison:
        """How the branches differ."""
        return self.foresight.compare_branches(self.at.direct("goes one way, so there are no branches to compare"))

    def change_stops(self, change: Callable[[], T]) -> T:
        """Changes breakpoints or watchpoints, and tells of it."""
        try:
            return change()
        finally:
            self.report.tell(self.report.news())

    def attempt(self, command: Callable[[], object]) -> None:
        """Runs a command where nobody waits for what it raises: it is told."""
        try:
            command()
        except Exception as error:
            if self.at.status != "failed":
                self.report.tell(replace(self.report.news(), trouble=in_trouble(error)))

    def stop(self) -> None:
        """Makes what is under way end before the next task. May be called from anywhere."""
        self.driver.stop()

    def close(self, then: Callable[[], object]) -> Future[None]:
        """Ends the session after the task under way, lets the graph's nodes go, and then calls `then`.

        May be called from anywhere. What waits to begin does not begin any more.
        """
        return self.driver.finish(lambda: self._end(then))

    def _end(self, then: Callable[[], object]) -> None:
        self.session.close()
        self.foresight.let_go()
        self.branches.forget()
        self.at.let_tensors_go()
        self.at.status = "closed"
        news = self.report.news()
        if self.document.content["groups"] is None:  # a page that has asked gets no other answer
            news = replace(news, groups=_not_found("closed"))
        try:
            self.report.tell(news)
        finally:
            then()


def _not_found(over: str) -> Json:
    """Return what stands in place of groups that nobody looked for before the session was `over`."""
    return no_groups(
        f"The session is over ({over}): the factors of its products are gone, and groups were not looked for before. "
        "ts.find_batches(loss) finds them on a fresh forward."
    )
