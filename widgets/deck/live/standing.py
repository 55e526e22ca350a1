"""Where a live session stands, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....engine.queue.ready_queue import AnyTask, ReadyTask
from ....engine.sessions.native_session import NativeSession
from ....engine.sessions.stepper import Stepper
from ....engine.stops.stopped import Stop
from ....engine.tasks.history import History
from ....engine.trace.run import Engine
from ....inspector.graph.graph import Graph
from .news import Status
from .trouble import in_trouble


class LiveStanding:
    """A session, and what the parts of a live one all ask of it.

    Attributes:
        status: see `Deck.status`.
        trouble: why it failed, in words.
        stopped: why the last run ended early; None where it did not.
    """

    def __init__(self, session: Stepper | NativeSession) -> None:
        self.session = session
        self.status: Status = "stopped"
        self.trouble = ""
        self.stopped: Stop | None = None

    @property
    def graph(self) -> Graph:
        """The graph that is run; without its nodes once the session is over."""
        return self.session.graph

    @property
    def engine(self) -> Engine:
        return "direct" if isinstance(self.session, Stepper) else "native"

    @property
    def has_ended(self) -> bool:
        return self.session.over is None and not self.session.left

    @property
    def current(self) -> int | None:
        """The id of the task that runs next."""
        try:
            current = None if self.session.over is not None else self.session.current
        except Exception:  # a user's policy fails to choose: the next step says how
            return None
        return None if current is None else current.id

    @property
    def started(self) -> Sequence[int]:
        """What has run, and the task that raised, if one did."""
        trace = self.session.trace
        return self.session.order if trace is None else trace.order

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The tasks that have started, and when: one that runs again after going back does so at another time."""
        trace = self.session.trace
        if trace is None:
            return [(task_id, 0) for task_id in self.session.order]
        return [(task_id, trace.columns.started_ns[task_id]) for task_id in trace.order]

    @property
    def history(self) -> History | None:
        """What going back costs; None where no task can be taken back."""
        session = self.session
        return session.history if isinstance(session, Stepper) and session.over is None else None

    def id_of(self, task: AnyTask) -> int:
        return self.graph.task(task.task if isinstance(task, ReadyTask) else task).id

    def direct(self, why_not: str) -> Stepper:
        """The session, for what only the direct engine can do.

        Raises:
            NotImplementedError: it is a session of PyTorch's engine.
        """
        if isinstance(self.session, Stepper):
            return self.session
        raise NotImplementedError(f'PyTorch\'s engine {why_not}; ts.debug(..., engine="direct") can')

    def rest(self) -> None:
        """Nothing runs any more."""
        self.status = "finished" if self.has_ended else "stopped"

    def fail(self, error: BaseException) -> None:
        self.status, self.trouble = "failed", in_trouble(error)

    def let_tensors_go(self) -> None:
        """What the last stop spoke of may be looked at as long as the session goes on, and keeps nothing alive then."""
        if self.stopped is not None:
            self.stopped = replace(self.stopped, tensors={})
