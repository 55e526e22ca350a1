"""What only the direct engine can do, as a session of PyTorch's engine refuses it: going back."""

from __future__ import annotations

from typing import Never

from ...front_door import verbs_end_where_called
from ...inspector.graph.graph import Task
from ..queue.ready_queue import AnyTask
from .verbs import Verbs

NO_HISTORY = "PyTorch's engine can't take back a task that has run, so it has no history; use engine=\"direct\""


@verbs_end_where_called
class OneWay(Verbs):
    """The part of a `NativeSession` that stands where a `Stepper` goes back. `goto` can go on."""

    @property
    def history(self) -> Never:
        """Raises NotImplementedError, as all that goes back."""
        raise NotImplementedError(NO_HISTORY)

    @property
    def branches(self) -> tuple[()]:
        """None, as where a `Stepper` keeps no history."""
        return ()

    def keep_history(self, budget_bytes: int | str = 0) -> Never:
        """Refused: PyTorch's own engine takes no task back. Raises NotImplementedError."""
        raise NotImplementedError(NO_HISTORY)

    def forget(self) -> Never:
        """Refused, as `keep_history`."""
        raise NotImplementedError(NO_HISTORY)

    def back(self, count: int = 1) -> Never:
        """Refused, as `keep_history`."""
        raise NotImplementedError(NO_HISTORY)

    def goto(self, task: AnyTask | None = None, *, branch: int | None = None) -> Task | None:
        """Goes on to the moment before a task, as `run_to` does. Returns the current task.

        Raises:
            NotImplementedError: the task has run, or it is a branch.
            ValueError: the task is not going to run.
        """
        if branch is None and task is None:
            raise ValueError("goto() where? Give a task")
        if branch is not None or task is None or self._task(task).id in self.order:
            raise NotImplementedError(NO_HISTORY)
        return self.run_to(task)

    def restore(self, task: AnyTask | None = None) -> Never:
        """Refused: PyTorch's own engine keeps no gradients that were replaced. Raises NotImplementedError."""
        raise NotImplementedError(
            "PyTorch's engine keeps no gradients that were replaced, so they can't be restored; use engine=\"direct\""
        )

    def compare_branches(self) -> Never:
        """Refused, as `keep_history`."""
        raise NotImplementedError(NO_HISTORY)
