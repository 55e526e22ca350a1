"""The verbs that go back, of a session of the direct engine."""

from __future__ import annotations

from ...front_door import verbs_end_where_called
from ...inspector.graph.graph import Task
from ..memory.footprint import Footprints
from ..queue.ready_queue import AnyTask
from ..tasks.history import BUDGET_BYTES, History
from .branch_comparison import BranchComparison
from .branches import Branch
from .rewinding import Rewinder
from .session_base import one_at_a_time
from .verbs import Verbs


@verbs_end_where_called
class GoesBack(Verbs):
    """The part of a `Stepper` that takes tasks back: hands each verb to its rewinder."""

    _rewinder: Rewinder

    @property
    def history(self) -> History | None:
        """What going back takes (`nbytes`), and how far one can go (`reach`); None where no history is kept."""
        return self._rewinder.history

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The ways in which the session went, the current one included. Empty without a history."""
        return self._rewinder.branches

    @one_at_a_time
    def keep_history(self, budget_bytes: int | str = BUDGET_BYTES) -> None:
        """From here on tasks can be taken back. Does nothing where they can already.

        Args:
            budget_bytes: for gradients, a number or "2GiB": beyond it the oldest are computed again when needed.
        """
        self._rewinder.keep(budget_bytes)

    @one_at_a_time
    def forget(self) -> None:
        """Lets go all that is kept for going back: from here on one can go back to here. Branches go, too."""
        self._rewinder.forget()

    @one_at_a_time
    def back(self, count: int = 1) -> Task | None:
        """Takes so many tasks back. Returns the current task.

        Gradients, .grad of leaves, the queue, the policy, the trace and torch's random numbers are then as they were,
        and so is what hooks and custom Functions keep in Python (`HookState`), and the buffers that a checkpointed
        region writes when it is computed again: each call of a hook finds what it found before. What was edited before
        the task that is now the current one stays edited (`restore` undoes that); later edits are undone. Callbacks for
        the end of the backward run at each end.

        Known limitations. What hooks and custom Functions did besides (printed, wrote) stays done, and is done again
        when their tasks run again.

        Raises:
            ValueError: not so many tasks can be taken back.
            RuntimeError: a .grad was changed by something else since, which would be lost; no history is kept, or the
                session is over.
        """
        return self._rewinder.back(count)

    @one_at_a_time
    def goto(self, task: AnyTask | None = None, *, branch: int | None = None) -> Task | None:
        """Goes to the moment before a task, back or on; or to the end of a branch, whose tasks run again from where it
        parted. Returns the current task. What was taken back of the current branch is kept until something else runs.

        Raises:
            ValueError: the task can't be reached: it is not going to run, or ran before the history begins; there is no
                such branch.
            RuntimeError: no history is kept, or the session is over.
        """
        if branch is not None:
            return self._rewinder.go_to_branch(branch)
        if task is None:
            raise ValueError("goto() where? Give a task, or branch=")
        return self._rewinder.go_to(self._task(task).id)

    @one_at_a_time
    def restore(self, task: AnyTask | None = None) -> None:
        """Puts the gradients that came to a task into its buffer again, the current task if none is given.

        Raises:
            ValueError: they were not edited.
            RuntimeError: no history is kept, or the session is over.
        """
        self._rewinder.restore(None if task is None else self._task(task).id)

    @one_at_a_time
    def compare_branches(self, footprints: Footprints | None = None) -> BranchComparison:
        """How the branches differ: in order, in the gradients of leaves, and in the memory that they would take.

        Args:
            footprints: what tasks allocate, where that is known; else each is asked, as `ts.simulate` does.
        """
        return self._rewinder.compare(footprints)
