"""Runs a live session task by task until something stops it, and edits waiting gradients."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from ...engine.schedule.ready_queue import AnyTask
from ...engine.session.breakpoints.breakpoints import Stop
from ...engine.session.direct_session import Stepper
from ...engine.session.verbs import expect_count
from ...inspector.graph.graph import Task
from .live_driver import Driver
from .live_plan import LivePlan
from .live_report import LiveReport
from .live_state import LiveStanding

if TYPE_CHECKING:
    from ...engine.session.check_task import Check


class LiveEdits:
    """Changes what waits for a task, and tells of it. Belongs in the driver's thread."""

    def __init__(self, at: LiveStanding, report: LiveReport) -> None:
        self._at = at
        self._report = report

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
        found = self._report.waiting(task)
        if found:
            self._report.tell(self._report.news(records=found))

    def check(self, task: AnyTask | None) -> Check:
        """Compares a task's backward with finite differences of its forward, and tells what was found."""
        found = self._at.session.check(task)
        said = {
            "ok": found.ok,
            "verdict": found.verdict,
            "lines": list(found.lines),
        }
        self._report.tell(replace(self._report.news(), checks={str(found.task): said}))
        return found


T = TypeVar("T")

_REPORT_EVERY_S = 0.1


class LiveRunning:
    """Runs tasks and takes them back, and tells of it. Belongs in the driver's thread."""

    def __init__(self, at: LiveStanding, driver: Driver, plan: LivePlan, report: LiveReport) -> None:
        self._at = at
        self._driver = driver
        self._plan = plan
        self._report = report

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
                self._report.tell(self._report.arrived(before))

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
        at, session, report = self._at, self._at.session, self._report
        ran = 0
        told = time.monotonic()
        at.stopped = None
        try:
            if count != 1 and session.over is None:  # the first task may take its time
                at.status = "running"
                report.tell(report.news())
            while True:
                if before is None:
                    last = session.step(task if ran == 0 else None, device=device)
                else:
                    last = session._step(before=before)
                ran += 1
                report.note_replays(last)
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
                    report.tell(report.progress())
                    told = time.monotonic()
        except BaseException as error:
            self._note_failure(error)
            raise
        at.rest()
        report.tell(report.progress())
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
        self._report.tell(self._report.progress())

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
