"""The state of a live session: where it stands, why, and what went wrong."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ...engine.execution.undo_history import History
from ...engine.recording.run import Engine
from ...engine.schedule.ready_queue import AnyTask, ReadyTask
from ...engine.session.breakpoints.breakpoints import Stop
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...inspector.graph.graph import Graph
from ...inspector.graph.source_lines import OWN_CODE, Source, innermost_user_line
from .page_data import Json


def why(error: BaseException) -> str:
    """The reason alone where it is one of our own, which are sentences without a type."""
    return str(error) if type(error) is ValueError else in_words(error)


def in_trouble(error: BaseException) -> str:
    """What was raised, and the user's line that did it, if one did."""
    line = _users_line(error)
    return in_words(error) + ("" if line is None else f"\nat {line.short}")


def in_words(error: BaseException) -> str:
    """What was raised."""
    return "".join(traceback.format_exception_only(error)).strip()


def _users_line(error: BaseException) -> Source | None:
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    return innermost_user_line(frame for frame in frames if not frame.filename.startswith(OWN_CODE))


Status = Literal["stopped", "running", "finished", "failed", "closed"]


@dataclass(frozen=True, slots=True)
class News:
    """How a live session is, and what has changed.

    Attributes:
        position: how many tasks have run.
        current: the id of the task that runs next; None: none is left, or the policy fails to choose.
        status: see `Deck.status`.
        trouble: why it failed, or why something that was asked for could not be, in words.
        stopped: the breakpoint or watchpoint at which it has stopped: `text`, `lines`, `task`, `number`, `why`.
        history: what going back costs: `bytes`, of these `gradient_bytes` and `saved_bytes`, and how far it can go:
            `reach`. None where no task can be taken back.
        forgotten: the ids of tasks of which what was recorded holds no more: they were taken back.
        records: what was recorded of tasks since the last news, by id. It is newer than what is forgotten.
        checks: what was found when tasks were checked since the last news, by id.
        live: the session's own schedule, where it is another than before: what has run, and what is planned.
        others: what other policies would do, and what branches did, where that is something else than before.
        branches: the ways in which the session went, where there are others than before.
        groups: which products could run as one, where that was looked for; see `group_content`.
        replayed: by id of a task that ran since the last news how many storages it made again, and the nanoseconds.
    """

    position: int
    current: int | None
    status: Status
    trouble: str = ""
    stopped: Json | None = None
    history: Json | None = None
    forgotten: tuple[int, ...] = ()
    records: Json = field(default_factory=dict)
    checks: Json = field(default_factory=dict)
    live: Json | None = None
    others: list[Json] | None = None
    branches: list[Json] | None = None
    groups: Json | None = None
    replayed: Json = field(default_factory=dict)


def stopped_content(stop: Stop) -> Json:
    """A stop in words, without the tensors of which it speaks."""
    return {
        "why": stop.why,
        "number": stop.number,
        "task": stop.task,
        "text": stop.text,
        "lines": list(stop.all_lines),
    }


def history_content(history: History, branches_bytes: int) -> Json:
    """What going back costs, with the gradients that are kept to compare branches."""
    gradient_bytes = history.gradient_bytes + branches_bytes
    saved_bytes = history.saved_bytes  # this is counted
    return {
        "bytes": gradient_bytes + saved_bytes,
        "gradient_bytes": gradient_bytes,
        "saved_bytes": saved_bytes,
        "reach": history.reach,
    }


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
