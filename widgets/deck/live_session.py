"""The live session behind a deck: runs tasks, undoes them, and edits input buffers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Event, current_thread
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
from ...inspector.threads import DaemonThread
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
    """Edits input buffers and publishes the changes. Runs in the driver's thread."""

    def __init__(self, at: LiveStanding, publisher: Publisher) -> None:
        self._at = at
        self._publisher = publisher

    def edit(self, change: Callable[[], object], task: AnyTask | None = None) -> None:
        """Edit a task's input buffer, by default the current task's, and publish it."""
        change()
        self.inspect(None if task is None else self._at.id_of(task))

    def edit_from_page(self, how: str, value: object) -> None:
        """Edit the current task's input buffer as a message of the page requests."""
        session = self._at.session
        if how == "restore":
            return self.restore(None)
        if how == "zero":
            return self.edit(session.zero)
        change = {"scale": session.scale, "clip": session.clip}.get(how)
        if change is None:
            raise ValueError(f"unknown edit {how!r}; expected one of zero, scale, clip, restore")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{how} takes a number, got {value!r}")
        return self.edit(partial(change, value))

    def restore(self, task: AnyTask | None) -> None:
        """Undo the edits of a task's input buffer."""
        session = self._at.direct("keeps no replaced gradients, so they cannot be restored")
        self.edit(partial(session.restore, task), task)

    def inspect(self, task: int | None) -> None:
        """Publish the gradients in a task's input buffer, by default the current task's."""
        found = self._publisher.waiting(task)
        if found:
            self._publisher.tell(records=found)

    def check(self, task: AnyTask | None) -> Check:
        """Check a task's backward against finite differences, and publish the result."""
        found = self._at.session.check(task)
        content = {"ok": found.ok, "warns": bool(found.warnings), "lines": list(found.lines)}
        self._publisher.tell(checks={str(found.task): content})
        return found


_REPORT_EVERY_S = 0.1


class LiveRunning:
    """Runs and undoes tasks, and publishes the changes. Runs in the driver's thread."""

    def __init__(self, at: LiveStanding, driver: Driver, plan: LivePlan, publisher: Publisher) -> None:
        self._at = at
        self._driver = driver
        self._plan = plan
        self._publisher = publisher
        self._reporter: DaemonThread | None = None

    @property
    def is_reporter(self) -> bool:
        """True in the thread that reports the running task while it runs."""
        return current_thread() is self._reporter

    def step(self, count: int = 1, task: AnyTask | None = None, device: str | torch.device | None = None) -> Task:
        """Run `count` tasks, this task, or `count` tasks of this device. Returns the last. Stops early as `run` does.

        Raises:
            ValueError, NotImplementedError, RuntimeError: as `Stepper.step` and `NativeSession.step`.
        """
        expect_count(count)
        if device is not None:
            self._at.session.next_on(device)  # raises before anything runs
        return self._go(count, task, device=device)

    def run(self) -> None:
        """Run to the next breakpoint or watchpoint, to a requested stop, or to the end."""
        if not (self._at.has_ended or self._driver.stop_asked):
            self._go()

    def run_to(self, task: AnyTask) -> None:
        """Run until a task is the current one.

        Raises:
            ValueError: the task has run, or will not run.
        """
        session, target = self._at.session, self._at.id_of(task)
        if target in set(session.order):
            raise ValueError(f"{self._at.graph.in_order(self._plan.order).describe(target)} has run already")
        if session.needed is not None and target not in session.needed:
            raise ValueError(f"{self._at.graph.describe(target)} will not run, because inputs= does not need it")
        if not (self._at.current == target or self._driver.stop_asked):
            self._go(until=lambda: self._at.current == target, before=target)

    def step_over(self, out: int = 0) -> None:
        """Run all tasks of the current task's innermost module call, or of the call `out` levels around it."""
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
        """Undo or run tasks until a task is the current one, or go to the end of a branch.

        Raises:
            NotImplementedError: PyTorch's engine cannot undo tasks.
        """
        if task is not None and branch is None and self._at.id_of(task) not in set(self._at.session.order):
            self.run_to(task)
        else:
            self.jump(lambda session: session.goto(None if task is None else self._at.id_of(task), branch=branch))

    def rewind(self, position: int) -> None:
        """Undo tasks until `position` tasks have run."""
        ran = len(self._at.session.order)
        count = ran - position
        if position < 0 or count < 0:
            raise ValueError(f"position must be from 0 to {ran}, the number of tasks that have run, got {position}")
        if count:
            self.jump(lambda session: session.back(count))

    def jump(self, leap: Callable[[Stepper], T]) -> T:
        """Undo tasks, or go to another branch, and publish the new state.

        Raises:
            NotImplementedError: the session uses PyTorch's engine.
        """
        at = self._at
        session = at.direct("cannot undo tasks (the page's arrow keys show earlier positions)")
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
        """Run tasks until something stops the run. Returns the last task.

        Args:
            count: the number of tasks; None: all.
            until: called after each step; true stops the run.
            device: runs only tasks of this device.
            before: the id of a task that must not run as part of a group.
        """
        at, session, publisher = self._at, self._at.session, self._publisher
        ran = 0
        reported = time.monotonic()
        at.stopped = None
        ended = Event()
        raised: list[Exception] = []
        try:
            if count != 1 and session.over is None:  # the first task may take its time
                at.status = "running"
                publisher.tell()
                reporting = partial(copy_context().run, self._report_until, ended, raised)
                self._reporter = DaemonThread(reporting, "tapescope deck's reports")
                self._reporter.start()
            while True:
                if before is None:
                    last = session.step(task if ran == 0 else None, device=device)
                else:
                    last = session._step(before=before)
                ran += 1
                publisher.note_replays(last)
                if raised:
                    raise raised[0]
                if session.over is not None:
                    break
                self._driver.give_way()  # breakpoints may be added while it runs
                at.stopped = session.stop_here(wait=ran == count)
                if at.stopped is not None or ran == count or at.has_ended:
                    break
                if until():
                    break
                if self._driver.stop_asked:
                    current = at.current
                    place = "" if current is None else f", before {at.graph.describe(current, len(session.order))}"
                    at.stopped = Stop("asked", None, current, f"stopped as requested{place}")
                    break
                if time.monotonic() - reported > _REPORT_EVERY_S:
                    publisher.tell_progress()
                    reported = time.monotonic()
        except BaseException as error:
            self._note_failure(error)
            raise
        finally:
            ended.set()
            if self._reporter is not None:
                # Limited, because an observer in it may wait for this thread.
                self._reporter.join(_REPORT_EVERY_S)
        at.rest()
        publisher.tell_progress()
        return last

    def _report_until(self, ended: Event, raised: list[Exception]) -> None:
        """Publish the running task while the driver's thread is inside it, because a slow task reports nothing itself.

        An observer's error is left in `raised`; the driver's thread raises it after the task.
        """
        while not (raised or ended.wait(_REPORT_EVERY_S)):
            try:
                self._publisher.tell_running()
            except Exception as error:
                raised.append(error)

    def _note_failure(self, error: BaseException) -> None:
        at = self._at
        if at.status in ("failed", "closed"):
            return
        if at.session.over is None:
            at.rest()
        else:
            at.fail(error)
            at.release_stop()
        self._publisher.tell_progress()


class Live:
    """A deck's session with its plan, predictions, branches and page data. All methods but `close` run in the driver's
    thread.

    Args:
        session: a session of either engine that has not run yet.
        policy: its policy.
        title: a title.
        retain_graph, create_graph: as passed to the backward.
        send: sends a message with its buffers to all pages.
        observe: called with `News` after they were sent, in the driver's thread.
        recompute: the plan that the forward ran under.

    Attributes:
        driver: runs commands, one after the other.
        at: the state of the session.
        stops: its breakpoints and watchpoints.
        foresight: predicted memory and schedules.
        branches: its branches.
        plan: the order of all tasks, and the policy.
        publisher: publishes changes.
        running: runs and undoes tasks.
        edits: edits input buffers.
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
            self.document.content["schedules"] = [
                plan.own_schedule(),
                *(plan.others() if self.foresight.is_small else ()),
            ]
            if self.foresight.is_small:  # before the first task, because a task frees the factors of its product
                with suppress(Exception):  # find_groups() gives the reason when the page requests them
                    self.document.content["groups"] = group_content(session.graph)
        self.publisher = Publisher(at, plan, self.branches, self.document, clock, send, observe)
        self.running = LiveRunning(at, self.driver, plan, self.publisher)
        self.edits = LiveEdits(at, self.publisher)

    @property
    def is_current_thread(self) -> bool:
        """True in the threads that run the session, its hooks and its observers, where waiting would never end."""
        session = self.session
        is_hook = isinstance(session, NativeSession) and session.runs_in_this_thread
        return self.driver.is_current_thread or self.running.is_reporter or is_hook

    def predict(self) -> None:
        """Predict the memory by a dry run, unless it is already known.

        Raises:
            ValueError: a task has already run, or the backward creates a graph.
        """
        if self.foresight.is_known:
            return
        try:
            self.foresight.make_dry_run()
        finally:
            self.foresight.forget()
            self.branches.forget()
            self.publisher.tell_plan()

    def find_groups(self) -> None:
        """Find groups of products that could run as one, unless already done, and publish them.

        The page waits for an answer, so it gets the reason if there are none.
        """
        if self.document.content["groups"] is None:
            over = self.session.over
            try:
                found = group_content(self.session.graph) if over is None else _not_found(over)
            except Exception as error:
                self.publisher.tell(groups=no_groups(f"Groups cannot be found: {why(error)}"))
                raise
            self.publisher.tell(groups=found)

    def switch(self, policy: AnyPolicy) -> None:
        """Continue with this policy."""
        if self.plan.switch(policy):
            self.publisher.tell_plan()

    def compare_branches(self) -> BranchComparison:
        """Compare the branches, with the predicted memory of each from the start."""
        session = self.at.direct("cannot undo tasks, so there are no branches to compare")
        return session.compare_branches(self.foresight.footprints)

    def change_stops(self, change: Callable[[], T]) -> T:
        """Change breakpoints or watchpoints, and publish them."""
        try:
            return change()
        finally:
            self.publisher.tell()

    def attempt(self, command: Callable[[], object]) -> None:
        """Run a command whose result nobody waits for; an error is published."""
        try:
            command()
        except Exception as error:
            if self.at.status != "failed":
                self.publisher.tell(trouble=in_trouble(error))

    def close(self, then: Callable[[], object]) -> Future[None]:
        """End the session after the running task, release the graph's nodes, and then call `then`.

        May be called from any thread. Queued commands are dropped.
        """
        return self.driver.finish(lambda: self._end(then))

    def _end(self, then: Callable[[], object]) -> None:
        self.session.close()
        self.foresight.release()
        self.branches.forget()
        self.at.release_stop()
        self.at.status = "closed"
        unknown = self.document.content["groups"] is None  # a page may be waiting for them
        try:
            self.publisher.tell(groups=_not_found("closed") if unknown else None)
        finally:
            then()


def _not_found(over: str) -> Json:
    """Return the data for missing groups that were not searched before the session was `over`."""
    return no_groups(
        f"The session is over ({over}) and its products' factors are freed, so groups cannot be found any more. "
        "ts.find_batches(loss) finds them on a new forward."
    )
