"""The deck: a backward that runs task by task, on the screen of a notebook."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from typing import Self

from .display import forget
from .editing import Editing
from .looking import Looking
from .stepping import Stepping
from .stopping import Stopping


class Deck(Looking, Stepping, Stopping, Editing):
    """A backward that you can look at: a session with the verbs of `Stepper`, shown as a widget.

    `ts.debug(loss)` makes one in a notebook. Buttons and Python calls drive the same session, and both see the result.
    Tasks run in a thread of the deck's own, one command after the other; a call waits for its own. An interrupt (the
    notebook's stop button) lets the task under way end and leaves the deck open.

    It is an ipywidgets widget. These traits can be observed and linked; those marked * can be set, too:

    position: how many tasks have run.
    current_task: the id of the task that runs next; None at the end, and where a user's policy fails to choose one.
    status: "stopped", "running", "finished", "failed" or "closed".
    policy*: the name of the policy that picks; setting it lets another one go on from here.
    selection*: the id of the task that is looked at, or None.
    breakpoints*: the ids of the tasks that have a breakpoint of their own. These and all others are in `stops`.
    why_stopped: why the last run ended before its end, in a sentence; "" where it did not. `stopped` has the rest.

    Observers are called in the deck's thread: there the deck can be looked at, stopped and closed, but runs nothing.

    Known limitations. Memory is predicted, not measured: `ts.profile` measures. With the native engine no task can be
    taken back, and the current task's gradients alone be seen and edited. A backward whose hooks use thread-local state
    of the user's sees the deck's thread. A user's policy is asked for whole orders ahead, to show them; one that draws
    lots shows what it drew.

    Args:
        session: of either engine, nothing run yet. The deck runs it from now on, and closes it.
        policy: its policy: a name, a `Policy` or a callable.
        title: what is run; by default the model's class.
        retain_graph, create_graph: as given to the backward, for the prediction of memory.
        recompute: the plan by which the forward was mirrored, whose predictions are shown.
    """

    def __repr__(self) -> str:
        return (
            f"<Deck of {self.graph.tasks[self.graph.roots[0].task].name} under {self.policy}, "
            f"{self.engine} engine: {self.position} of {len(self._live.plan.order)} tasks have run, {self.status}>"
        )

    def close(self) -> None:
        """Ends the session, lets the graph's nodes go, and takes the widget from the page.

        Waits for the task under way; where that can't be, in a hook or an observer, the session ends right after it.
        """
        if sys.is_finalizing() or not hasattr(self, "_live") or self.comm is None:
            super().close()
            return
        ended = self._leave()
        if not self._live.is_current_thread:
            ended.result()

    def _leave(self) -> Future[None]:
        forget(self)
        return self._live.close(super().close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close_unseen(self) -> None:
        self._leave()  # a handler of messages must not wait for a task
