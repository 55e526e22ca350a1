"""What a live session does with the gradients that wait: looks at them, changes them, and checks their task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ....engine.queue.ready_queue import AnyTask
from .report import LiveReport
from .standing import LiveStanding

if TYPE_CHECKING:
    from ....engine.checking.check_task import Check


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
