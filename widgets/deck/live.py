"""A session as a deck needs it: it runs in the driver's thread, keeps the plan, and tells what has happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

import torch

from ...engine.memory.timeline import Timeline
from ...engine.mirroring.saves import ReplayClock
from ...engine.orders.policies import POLICIES, TABS, find_policy
from ...engine.queue.policy import AnyPolicy, Choice, Policy, policy_name
from ...engine.queue.ready_queue import AnyTask, ReadyTask
from ...engine.sessions.branch_comparison import BranchComparison
from ...engine.sessions.native_session import NativeSession
from ...engine.sessions.stepper import Stepper
from ...engine.sessions.verbs import expect_count
from ...engine.stops.breakpoints import Breakpoint
from ...engine.stops.stopped import Stop
from ...engine.tasks.history import History
from ...engine.trace.run import Engine
from ...engine.trace.statistics import form_of, statistics
from ...engine.trace.trace import RecordedGradient
from ...inspector.graph.collector import collector_paused
from ...inspector.graph.graph import Graph, Task
from .document import Document, Json
from .driver import Driver
from .foresight import Foresight
from .group_content import group_content, with_batches
from .live_branches import LiveBranches
from .live_stops import LiveStops
from .mirror_content import MirrorContent
from .news import News, Status, history_content, stopped_content
from .prediction import Prediction
from .stop_words import place, watched
from .terms import Terms
from .trouble import in_trouble
from .typed_tasks import is_typed_task, typed_task

if TYPE_CHECKING:
    from ...engine.checking.check_task import Check
    from ...engine.mirroring.plan import MirrorPlan
    from ...engine.stops.watchpoints import Watchpoint

T = TypeVar("T")

_REPORT_EVERY_S = 0.1


class Live:
    """Runs a session task by task. All but `stop`, `change` and `close` belong in the driver's thread.

    Args:
        session: of either engine, nothing run yet.
        policy: its policy.
        title: what is run.
        retain_graph, create_graph: as given to the backward.
        tell: is called with `News`, in the driver's thread.
        mirroring: the plan by which the forward was mirrored.

    Attributes:
        stopped: why the last run ended early; None where it did not.
        stops: the session's breakpoints and watchpoints.
        branches: the ways in which it went.
    """

    def __init__(
        self,
        session: Stepper | NativeSession,
        policy: AnyPolicy,
        title: str,
        retain_graph: bool,
        create_graph: bool,
        tell: Callable[[News], None],
        mirroring: MirrorPlan | None = None,
    ) -> None:
        self.session = session
        self.driver = Driver()
        self.status: Status = "stopped"
        self.trouble = ""
        self.stopped: Stop | None = None
        self._terms = Terms(session.picks)
        self._known: dict[str, Policy | Choice] = {name: POLICIES[name] for name in TABS}
        self._know(find_policy(policy))
        self._tell = tell
        self._reported = 0
        self._told = (0, 0)  # batches and fallbacks
        self._looked_at: set[int] = set()  # tasks that have not run, of which records tell what waits for them
        self.stops = LiveStops(session)
        with collector_paused():
            mirrored = MirrorContent(self.graph, mirroring, not (retain_graph or create_graph))
            self._clock = ReplayClock(self.graph)
        self._replayed: Json = {}  # since the last news
        self.foresight = Foresight(session, retain_graph, create_graph, mirrored)
        self.branches = LiveBranches(session, self.foresight)
        with collector_paused():
            self.plan = self._planned()
            self.document = Document(self.graph, title, self.engine, mirrored)
            self.document.content["keeps_graph"] = retain_graph
            self.document.content["queues"] = session.queues
            self.document.content["schedules"] = [self._own_schedule(), *(self._others() if self.is_small else ())]
            if self.is_small:  # before a task runs: then its factors are gone
                with suppress(Exception):  # who asks for them is told why there are none
                    self.document.content["groups"] = group_content(self.graph)

    @property
    def graph(self) -> Graph:
        """The graph that is run; without its nodes once the session is over."""
        return self.session.graph

    @property
    def engine(self) -> Engine:
        return "direct" if isinstance(self.session, Stepper) else "native"

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
        self._tell(self.news(others=self._others()))

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
            self._tell(self.news(live=self._own_schedule(), others=self._others()))

    def find_groups(self) -> None:
        """Tells which products could run as one, where that was not looked for yet: large graphs take a while."""
        if self.document.content["groups"] is None:
            self._tell(replace(self.news(), groups=group_content(self.graph)))

    def step(self, count: int = 1, task: AnyTask | None = None, device: str | torch.device | None = None) -> Task:
        """Runs so many tasks, or this one, or so many of this device. Returns the last. Stops early as `run` does.

        Raises:
            ValueError, NotImplementedError, RuntimeError: as `Stepper.step` and `NativeSession.step`.
        """
        expect_count(count)
        if device is not None:
            self.session.next_on(device)  # raises before anything runs
        return self._go(count, task, device=device)

    def run(self) -> None:
        """Runs to the next breakpoint, to what a watchpoint finds, to a stop that is asked for, or to the end."""
        if not (self._has_ended or self.driver.stop_asked):
            self._go()

    def run_to(self, task: AnyTask) -> None:
        """Runs what comes before a task.

        Raises:
            ValueError: it has run, or is not going to.
        """
        target = self._id(task)
        needed = self.session.needed
        if target in set(self.session.order):
            raise ValueError(f"{self.graph.in_order(self.plan).describe(target)} has run already")
        if needed is not None and target not in needed:
            raise ValueError(f"{self.graph.describe(target)} is not going to run: inputs= makes it needless")
        if not (self._current() == target or self.driver.stop_asked):
            self._go(until=lambda last, current: current == target)

    def step_over(self, out: int = 0) -> None:
        """Runs until all tasks of the current task's innermost module call have run, or of the call `out` around it."""
        left = None if self._current() is None else self.session.tasks_to_leave(out)
        if left is None:
            self._go()
        else:

            def all_ran(last: Task, current: int | None) -> bool:
                left.discard(last.id)
                return not left

            self._go(until=all_ran)

    def goto(self, task: AnyTask | None, branch: int | None = None) -> None:
        """Goes to where a task is the current one, back or on; or to where a branch was left.

        Raises:
            NotImplementedError: PyTorch's engine can't take a task back.
        """
        if task is not None and branch is None and self._id(task) not in set(self.session.order):
            self.run_to(task)
        else:
            self.jump(lambda session: session.goto(None if task is None else self._id(task), branch=branch))

    def rewind(self, position: int) -> None:
        """Takes back what has run since so many tasks had run."""
        count = len(self.session.order) - position
        if position < 0 or count < 0:
            raise ValueError(f"there is no position {position} to go back to: {len(self.session.order)} tasks have run")
        if count:
            self.jump(lambda session: session.back(count))

    def compare(self, policies: Sequence[AnyPolicy]) -> Prediction:
        """The memory from the start on under each policy.

        Raises:
            ValueError: it was not predicted; or the order of one of them is only known while the backward runs.
        """
        if not policies:
            raise ValueError("compare which policies? Give at least one")
        return self.foresight.compare([self.find(policy) for policy in policies])

    def timelines(self) -> dict[str, Timeline]:
        """Memory by policy: in the live order first, then what the known policies would need. Empty: not predicted."""
        return self.foresight.timelines(self._terms.name)

    def attempt(self, command: Callable[[], object]) -> None:
        """Runs a command where nobody waits for what it raises: it is told."""
        try:
            command()
        except Exception as error:
            if self.status != "failed":
                self._tell(replace(self.news(), trouble=in_trouble(error)))

    def stop(self) -> None:
        """Makes what is under way end before the next task. May be called from anywhere."""
        self.driver.stop()

    def find(self, policy: AnyPolicy) -> Policy | Choice:
        """The policy that is meant: one that this session has had may be given by its name, too.

        Raises:
            ValueError, TypeError: as `find_policy`.
        """
        known = self._known.get(policy) if isinstance(policy, str) else None
        return known or find_policy(policy)

    def switch(self, policy: AnyPolicy) -> None:
        """From here on this policy picks."""
        chosen = self.find(policy)
        if chosen is self._terms.policy and self.session.over is None:
            return
        if isinstance(chosen, Policy) and chosen.plan is not None and not self.foresight.is_known:
            raise ValueError(self.foresight.unknown(chosen))
        self.session.policy = chosen
        self._know(chosen)
        self._terms.switch(len(self._started()), self.session.picks)
        self.plan = self._planned()
        self._tell(self.news(live=self._own_schedule(), others=self._others()))

    def edit(self, change: Callable[[], object], task: AnyTask | None = None) -> None:
        """Changes what waits for a task, for the current one if none is given, and tells of it."""
        change()
        self.inspect(None if task is None else self._id(task))

    def edit_as_told(self, how: str, value: object) -> None:
        """Changes what waits for the current task, in the words of the page."""
        session = self.session
        if how == "restore":
            return self.restore(None)
        if how == "zero":
            return self.edit(session.zero)
        change = {"scale": session.scale, "clip": session.clip}.get(how)
        if change is None:
            raise ValueError(f"there is no way to edit called {how!r}; there are zero, scale, clip and restore")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{how} takes a number, not {value!r}")
        return self.edit(partial(change, value))

    def restore(self, task: AnyTask | None) -> None:
        """Undoes edits of what waits for a task."""
        session = self._stepper("keeps no gradients that were replaced, so they can't be restored")
        self.edit(partial(session.restore, task), task)

    def compare_branches(self) -> BranchComparison:
        """How the branches differ."""
        return self.foresight.compare_branches(self._stepper("goes one way, so there are no branches to compare"))

    def _stepper(self, why_not: str) -> Stepper:
        """The session, for what only the direct engine can do."""
        if isinstance(self.session, Stepper):
            return self.session
        raise NotImplementedError(f'PyTorch\'s engine {why_not}; th.debug(..., engine="direct") can')

    def inspect(self, task: int | None) -> None:
        """Tells of the gradients that wait for a task that has not run, the current one if none is given."""
        found = self._waiting(task)
        if found:
            self._tell(self.news(records=found))

    def check(self, task: AnyTask | None) -> Check:
        """Compares a task's backward with finite differences of its forward, and tells what was found."""
        found = self.session.check(task)
        said = {
            "ok": found.ok,
            "verdict": found.verdict,
            "lines": list(found.lines),
        }
        self._tell(replace(self.news(), checks={str(found.task): said}))
        return found

    def break_where(self, text: str) -> Breakpoint:
        """Makes a breakpoint where a person has typed."""
        if is_typed_task(text):
            return self.session.break_at(typed_task(text, self.graph, self.plan))
        return self.session.break_at(place(text))

    def watch_for(self, text: str) -> Watchpoint:
        """Makes a watchpoint of what a person has typed."""
        conditions, at = watched(text)
        return self.session.watch(*conditions, at=at)

    def change_stops(self, change: Callable[[], T]) -> T:
        """Changes breakpoints or watchpoints, and tells of it."""
        try:
            return change()
        finally:
            self._tell(self.news())

    def jump(self, leap: Callable[[Stepper], T]) -> T:
        """Takes tasks back, or runs others in their place: the session then stands elsewhere.

        Raises:
            NotImplementedError: it is a session of PyTorch's engine.
        """
        session = self._stepper("can't take back a task that has run (the page's arrow keys show earlier positions)")
        before = self._runs()
        try:
            return leap(session)
        except BaseException as error:
            if session.over is not None and self.status != "closed":
                self.status, self.trouble = "failed", in_trouble(error)
            raise
        finally:
            if session.over is not None or before != self._runs():
                self.stopped = None
                if session.over is None:
                    self.status = "finished" if self._has_ended else "stopped"
                self._tell(self._arrived(before))

    def close(self, then: Callable[[], object]) -> Future[None]:
        """Ends the session after the task under way, lets the graph's nodes go, and then calls `then`.

        May be called from anywhere. What waits to begin does not begin any more.
        """
        return self.driver.finish(lambda: self._end(then))

    def _end(self, then: Callable[[], object]) -> None:
        self.session.close()
        self.foresight.let_go()
        self.branches.forget()
        self._let_tensors_go()
        self.status = "closed"
        try:
            self._tell(self.news())
        finally:
            then()

    def _go(
        self,
        count: int | None = None,
        task: AnyTask | None = None,
        until: Callable[[Task, int | None], bool] = lambda last, current: False,
        device: str | torch.device | None = None,
    ) -> Task:
        """Runs tasks, the first of which may be given, until something stops it. Returns the last.

        Args:
            count: how many; None: all.
            until: whether to stop, from the task that ran last and the id of the current one.
            device: runs the tasks of this one alone.
        """
        session = self.session
        ran = 0
        told = time.monotonic()
        self.stopped = None
        try:
            if count != 1 and session.over is None:  # the first task may take its time
                self.status = "running"
                self._tell(self.news())
            while True:
                last = session.step(task if ran == 0 else None, device=device)
                ran += 1
                self._note_replays(last)
                if session.over is not None:
                    break
                self.driver.give_way()  # a breakpoint may come while it runs
                self.stopped = session.stop_here(wait=ran == count)
                if self.stopped is not None or ran == count or self._has_ended:
                    break
                if until(last, self._current()):
                    break
                if self.driver.stop_asked:
                    self.stopped = self._asked_to_stop()
                    break
                if time.monotonic() - told > _REPORT_EVERY_S:
                    self._tell(self._progress())
                    told = time.monotonic()
        except BaseException as error:
            self._note_failure(error)
            raise
        self.status = "finished" if self._has_ended else "stopped"
        self._tell(self._progress())
        return last

    def _note_replays(self, task: Task) -> None:
        if (made := self._clock.lap()) is not None:
            self._replayed[str(task.id)] = [made[0], round(1e9 * made[1])]

    def _note_failure(self, error: BaseException) -> None:
        if self.status in ("failed", "closed"):
            return
        if self.session.over is None:
            self.status = "finished" if self._has_ended else "stopped"
        else:
            self.status, self.trouble = "failed", in_trouble(error)
            self._let_tensors_go()
        self._tell(self._progress())

    def _let_tensors_go(self) -> None:
        """What the last stop spoke of may be looked at as long as the session goes on, and keeps nothing alive then."""
        if self.stopped is not None:
            self.stopped = replace(self.stopped, tensors={})

    def _asked_to_stop(self) -> Stop:
        current = self._current()
        return Stop(
            "asked",
            None,
            current,
            "stopped, as asked"
            if current is None
            else f"stopped, as asked, before {self.graph.describe(current, len(self.session.order))}",
        )

    @property
    def _has_ended(self) -> bool:
        return self.session.over is None and not self.session.left

    def _id(self, task: AnyTask) -> int:
        return self.graph.task(task.task if isinstance(task, ReadyTask) else task).id

    def _current(self) -> int | None:
        try:
            current = None if self.session.over is not None else self.session.current
        except Exception:  # a user's policy fails to choose: the next step says how
            return None
        return None if current is None else current.id

    def _know(self, policy: Policy | Choice) -> None:
        self._known.setdefault(policy_name(policy), policy)

    def _planned(self) -> list[int]:
        """What has run, and the order from here on. A policy that decides as it runs has none: shown is PyTorch's."""
        session, current = self.session, self._current()
        ran = [*self._started(), *([] if current is None else [current])]
        if isinstance(session, NativeSession) and list(session.planned[: len(ran)]) == ran:
            return list(session.planned)  # a user's policy asked again might say something else
        if isinstance(session, Stepper) and session.batches is not None and session.over is None:
            with suppress(Exception):  # a user's policy fails to choose: it may do better when its turn comes
                return session.planned
        return self.foresight.completed(self._terms.policy, ran)

    def _started(self) -> Sequence[int]:
        """What has run, and the task that raised, if one did."""
        trace = self.session.trace
        return self.session.order if trace is None else trace.order

    def _own_schedule(self) -> Json:
        trace = self.session.trace
        by_hand = () if trace is None else trace.by_hand
        own = self.foresight.own_schedule(self._terms.policy, self.plan, by_hand)
        if batches := None if trace is None else trace.batches.steps:
            own["batches"] = batches
        return self._terms.named(own)

    def _others(self) -> list[Json]:
        """What the other policies that are known would do from the start, and what the branches that were left did."""
        return [*self.foresight.others(self._known, self._terms.name), *self.branches.schedules]

    def news(self, records: Json | None = None, live: Json | None = None, others: list[Json] | None = None) -> News:
        """How things are, with this that is new."""
        history = self.history
        branches, left_others = self.branches.news()
        if others is None and left_others:
            others = self._others()
        return News(
            len(self.session.order),
            self._current(),
            self.status,
            self.trouble,
            None if self.stopped is None else stopped_content(self.stopped),
            None if history is None else history_content(history, self.branches.gradient_bytes),
            records=records or {},
            live=live,
            others=others,
            branches=branches,
        )

    @property
    def history(self) -> History | None:
        """What going back costs; None where no task can be taken back."""
        session = self.session
        return session.history if isinstance(session, Stepper) and session.over is None else None

    def _progress(self) -> News:
        """What has run since the last news; the plan is made again where something else ran than planned."""
        trace, started, current = self.session.trace, self._started(), self._current()
        records = {} if trace is None else self.document.records(trace, range(self._reported, len(trace)))
        foreseen = [*started[self._reported :], *([] if current is None else [current])]
        groups = self._groups_now()
        other = foreseen != self.plan[self._reported : self._reported + len(foreseen)]
        if other:
            self.plan = self._planned()
        live = self._own_schedule() if other or groups is not None else None
        self._reported = len(started)
        self._looked_at.difference_update(started)
        replayed, self._replayed = self._replayed, {}
        return replace(self.news(records | self._waiting(current), live), groups=groups, replayed=replayed)

    def _groups_now(self) -> Json | None:
        """The groups with what has run as one, where that is more than was told."""
        batches = self.session.batches if isinstance(self.session, Stepper) else None
        told = (0, 0) if batches is None else (len(batches), len(batches.fallbacks))
        if batches is None or told == self._told:
            return None
        self._told = told
        return with_batches(self.document.content["groups"], batches, self.graph)

    def _runs(self) -> list[tuple[int, int]]:
        """The tasks that have started, and when: one that runs again after going back does so at another time."""
        trace = self.session.trace
        if trace is None:
            return [(task_id, 0) for task_id in self.session.order]
        return [(task_id, trace.columns.started_ns[task_id]) for task_id in trace.order]

    def _arrived(self, before: Sequence[tuple[int, int]]) -> News:
        """What has changed by going back, and on again maybe, from where this had run."""
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, self._runs(), strict=False)))
        forgotten = {*(task_id for task_id, _ in before[common:]), *self._looked_at}
        self._looked_at.clear()
        self._reported = min(self._reported, common)
        branch = self.branches.current
        if branch is not None:
            self._terms.become(branch.terms)
        self.plan = self._planned()
        live = self._own_schedule()
        return replace(self._progress(), forgotten=tuple(sorted(forgotten)), live=live, others=self._others())

    def _waiting(self, task: int | None) -> Json:
        """The statistics of a waiting task's input buffer, where it can be looked at."""
        session = self.session
        current = self._current()
        task = current if task is None else task
        trace = session.trace
        if task is None or current is None or trace is None or trace.level == "off":
            return {}
        if trace.columns.started_ns[self.graph.task(task).id] >= 0:
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
        return {str(task): self.document.record(found, edited=edited)}
