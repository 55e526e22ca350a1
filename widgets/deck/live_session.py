"""The live session behind a deck: it runs tasks, takes them back, and edits what waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from ...engine.planning.policies import find_policy
from ...engine.recompute.plan_by_task import ReplayClock
from ...engine.schedule.policy import AnyPolicy
from ...engine.schedule.ready_queue import AnyTask
from ...engine.session.breakpoints.breakpoints import Stop
from ...engine.session.compare_branches import BranchComparison
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...engine.session.verbs import expect_count
from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.graph import Task
from .groups_data import group_content, no_groups
from .live_driver import Driver
from .live_plan import LiveBranches, LivePlan
from .live_predictions import Foresight
from .live_publisher import News, Publisher
from .live_state import LiveStanding, LiveStops, in_trouble, why
from .page_data import Document, Json
from .recompute_data import RecomputeContent

if TYPE_CHECKING:
    from ...engine.recompute.plan import RecomputePlan
    from ...engine.session.check_task import Check


T = TypeVar("T")


class LiveEdits:
    """Changes what waits for a task, and tells of it. Belongs in the driver's thread."""

    def __init__(self, at: LiveStanding, publisher: Publisher) -> None:
        self._at = at
        self._publisher = publisher

    def edit(self, change: Callable[[], object], task: AnyTask | None = None) -> None:
        """Changes what waits for a task, for the current one if none is given, and tells of it."""
        change()
        self.inspect(None if task is None else self._at.id_of(task))

    def edit_as_told(self, how: str, value: object) -> None:
        """Changes what waits for the current task, in the words of the page."""
        session = self._at.session
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
        session = self._at.direct("keeps no gradients that were replaced, so they can't be restored")
        self.edit(partial(session.restore, task), task)

    def inspect(self, task: int | None) -> None:
        """Tells of the gradients that wait for a task that has not run, the current one if none is given."""
        found = self._publisher.waiting(task)
        if found:
            self._publisher.tell(records=found)

    def check(self, task: AnyTask | None) -> Check:
        """Compares a task's backward with finite differences of its forward, and tells what was found."""
        found = self._at.session.check(task)
        said = {
            "ok": found.ok,
            "verdict": found.verdict,
            "lines": list(found.lines),
        }
        self._publisher.tell(checks={str(found.task): said})
        return found


_REPORT_EVERY_S = 0.1


class LiveRunning:
    """Runs tasks and takes them back, and tells of it. Belongs in the driver's thread."""

    def __init__(self, at: LiveStanding, driver: Driver, plan: LivePlan, publisher: Publisher) -> None:
        self._at = at
        self._driver = driver
        self._plan = plan
        self._publisher = publisher

    def step(self, count: int = 1, task: AnyTask | None = None, device: str | torch.device | None = None) -> Task:
        """Runs so many tasks, or this one, or so many of this device. Returns the last. Stops early as `run` does.

        Raises:
            ValueError, NotImplementedError, RuntimeError: as `Stepper.step` and `NativeSession.step`.
        """
        expect_count(count)
        if device is not None:
            self._at.session.next_on(device)  # raises before anything runs
        return self._go(count, task, device=device)

    def run(self) -> None:
        """Runs to the next breakpoint, to what a watchpoint finds, to a stop that is asked for, or to the end."""
        if not (self._at.has_ended or self._driver.stop_asked):
            self._go()

    def run_to(self, task: AnyTask) -> None:
        """Runs what comes before a task.

        Raises:
            ValueError: it has run, or is not going to.
        """
        session, target = self._at.session, self._at.id_of(task)
        if target in set(session.order):
            raise ValueError(f"{self._at.graph.in_order(self._plan.order).describe(target)} has run already")
        if session.needed is not None and target not in session.needed:
            raise ValueError(f"{self._at.graph.describe(target)} is not going to run: inputs= makes it needless")
        if not (self._at.current == target or self._driver.stop_asked):
            self._go(until=lambda: self._at.current == target, before=target)

    def step_over(self, out: int = 0) -> None:
        """Runs until all tasks of the current task's innermost module call have run, or of the call `out` around it."""
        session = self._at.session
        left = None if self._at.current is None else session.tasks_to_leave(out)
        if left is None:
            self._go()
            return
        seen = len(session.order)

        def all_ran() -> bool:
            nonlocal seen
            ran = session.order[seen:]  # several, where they ran as one
            left.difference_update(ran)
            seen += len(ran)
            return not left

        self._go(until=all_ran)

    def goto(self, task: AnyTask | None, branch: int | None = None) -> None:
        """Goes to where a task is the current one, back or on; or to where a branch was left.

        Raises:
            NotImplementedError: PyTorch's engine can't take a task back.
        """
        if task is not None and branch is None and self._at.id_of(task) not in set(self._at.session.order):
            self.run_to(task)
        else:
            self.jump(lambda session: session.goto(None if task is None else self._at.id_of(task), branch=branch))

    def rewind(self, position: int) -> None:
        """Takes back what has run since so many tasks had run."""
        ran = len(self._at.session.order)
        count = ran - position
        if position < 0 or count < 0:
            raise ValueError(f"there is no position {position} to go back to: {ran} tasks have run")
        if count:
            self.jump(lambda session: session.back(count))

    def jump(self, leap: Callable[[Stepper], T]) -> T:
        """Takes tasks back, or runs others in their place: the session then stands elsewhere.

        Raises:
            NotImplementedError: it is a session of PyTorch's engine.
        """
        at = self._at
        session = at.direct("can't take back a task that has run (the page's arrow keys show earlier positions)")
        before = at.runs
        try:
            return leap(session)
        except BaseException as error:
            if session.over is not None and at.status != "closed":
                at.fail(error)
            raise
        finally:
            if session.over is not None or before != at.runs:
                at.stopped = None
                if session.over is None:
                    at.rest()
                self._publisher.tell_jump(before)

    def _go(
        self,
        count: int | None = None,
        task: AnyTask | None = None,
        until: Callable[[], bool] = lambda: False,
        device: str | torch.device | None = None,
        before: int | None = None,
    ) -> Task:
        """Runs tasks, the first of which may be given, until something stops it. Returns the last.

        Args:
            count: how many; None: all.
            until: whether to stop, asked after each step.
            device: runs the tasks of this one alone.
            before: the id of a task that is not to run as one with others.
        """
        at, session, publisher = self._at, self._at.session, self._publisher
        ran = 0
        told = time.monotonic()
        at.stopped = None
        try:
            if count != 1 and session.over is None:  # the first task may take its time
                at.status = "running"
                publisher.tell()
            while True:
                if before is None:
                    last = session.step(task if ran == 0 else None, device=device)
                else:
                    last = session._step(before=before)
                ran += 1
                publisher.note_replays(last)
                if session.over is not None:
                    break
                self._driver.give_way()  # a breakpoint may come while it runs
                at.stopped = session.stop_here(wait=ran == count)
                if at.stopped is not None or ran == count or at.has_ended:
                    break
                if until():
                    break
                if self._driver.stop_asked:
                    at.stopped = self._asked_to_stop()
                    break
                if time.monotonic() - told > _REPORT_EVERY_S:
                    publisher.tell_progress()
                    told = time.monotonic()
        except BaseException as error:
            self._note_failure(error)
            raise
        at.rest()
        publisher.tell_progress()
        return last

    def _note_failure(self, error: BaseException) -> None:
        at = self._at
        if at.status in ("failed", "closed"):
            return
        if at.session.over is None:
            at.rest()
        else:
            at.fail(error)
            at.let_tensors_go()
        self._publisher.tell_progress()

    def _asked_to_stop(self) -> Stop:
        at, current = self._at, self._at.current
        return Stop(
            "asked",
            None,
            current,
            "stopped, as asked"
            if current is None
            else f"stopped, as asked, before {at.graph.describe(current, len(at.session.order))}",
        )


class Live:
    """A session with all that a deck knows of it. All but `stop` and `close` belong in the driver's thread.

    Args:
        session: of either engine, nothing run yet.
        policy: its policy.
        title: what is run.
        retain_graph, create_graph: as given to the backward.
        send: sends a message with its buffers to all pages.
        observe: is called with `News` after they were sent, in the driver's thread.
        recompute: the plan that the forward ran under.

    Attributes:
        driver: what runs commands, one after the other.
        at: where the session stands.
        stops: its breakpoints and watchpoints.
        foresight: what is known of the memory ahead.
        branches: the ways in which it went.
        plan: the order of all tasks, and which policy picks.
        publisher: tells what is new.
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
        send: Callable[[Json, list[bytes]], None],
        observe: Callable[[News], None],
        recompute: RecomputePlan | None = None,
    ) -> None:
        self.session = session
        self.driver = Driver()
        self.at = at = LiveStanding(session)
        first = find_policy(policy)
        self.stops = LiveStops(session)
        with collector_paused():
            recomputed = RecomputeContent(session.graph, recompute, not (retain_graph or create_graph))
            clock = ReplayClock(session.graph)
        self.foresight = Foresight(session, retain_graph, create_graph, recomputed)
        self.branches = LiveBranches(session, self.foresight)
        with collector_paused():
            self.plan = plan = LivePlan(at, self.foresight, self.branches, first)
            self.document = Document(session.graph, title, at.engine, recomputed)
            self.document.content["keeps_graph"] = retain_graph
            self.document.content["queues"] = session.queues
            self.document.content["schedules"] = [plan.own_schedule(), *(plan.others() if self.is_small else ())]
            if self.is_small:  # before a task runs: then its factors are gone
                with suppress(Exception):  # who asks for them is told why there are none
                    self.document.content["groups"] = group_content(session.graph)
        self.publisher = Publisher(at, plan, self.branches, self.document, clock, send, observe)
        self.running = LiveRunning(at, self.driver, plan, self.publisher)
        self.edits = LiveEdits(at, self.publisher)

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
        self.publisher.tell(others=self.plan.others())

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
            self.publisher.tell_plan()

    def find_groups(self) -> None:
        """Tells which products could run as one, where that was not looked for yet: large graphs take a while.

        A page that asks waits for an answer: where there are none, it gets the reason in their place.
        """
        if self.document.content["groups"] is None:
            over = self.session.over
            try:
                found = group_content(self.session.graph) if over is None else _not_found(over)
            except Exception as error:
                self.publisher.tell(groups=no_groups(f"Groups can't be found: {why(error)}"))
                raise
            self.publisher.tell(groups=found)

    def switch(self, policy: AnyPolicy) -> None:
        """From here on this policy picks."""
        if self.plan.switch(policy):
            self.publisher.tell_plan()

    def compare_branches(self) -> BranchComparison:
        """How the branches differ."""
        return self.foresight.compare_branches(self.at.direct("goes one way, so there are no branches to compare"))

    def change_stops(self, change: Callable[[], T]) -> T:
        """Changes breakpoints or watchpoints, and tells of it."""
        try:
            return change()
        finally:
            self.publisher.tell()

    def attempt(self, command: Callable[[], object]) -> None:
        """Runs a command where nobody waits for what it raises: it is told."""
        try:
            command()
        except Exception as error:
            if self.at.status != "failed":
                self.publisher.tell(trouble=in_trouble(error))

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
        unknown = self.document.content["groups"] is None  # a page that has asked gets no other answer
        try:
            self.publisher.tell(groups=_not_found("closed") if unknown else None)
        finally:
            then()


def _not_found(over: str) -> Json:
    """Return what stands in place of groups that nobody looked for before the session was `over`."""
    return no_groups(
        f"The session is over ({over}): the factors of its products are gone, and groups were not looked for before. "
        "ts.find_batches(loss) finds them on a fresh forward."
    )
