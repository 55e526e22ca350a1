"""The state of a live session: status, errors, the last stop, and its breakpoints and watchpoints."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

from ...engine.execution.undo_history import History
from ...engine.recording.run import Engine
from ...engine.schedule.ready_queue import AnyTask, ReadyTask
from ...engine.session.breakpoints.breakpoints import Stop
from ...engine.session.breakpoints.stop_list import Entry
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...inspector.graph.graph import Graph
from ...inspector.graph.source_lines import OWN_CODE, innermost_user_line
from .page_data import Json


def why(error: BaseException) -> str:
    """Return the error as text, without its type if tapescope raised it."""
    return str(error) if type(error) is ValueError else in_words(error)


def in_trouble(error: BaseException) -> str:
    """Return the error as text, with the user's line that raised it, if any."""
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    line = innermost_user_line(frame for frame in frames if not frame.filename.startswith(OWN_CODE))
    return in_words(error) + ("" if line is None else f"\nat {line.short}")


def in_words(error: BaseException) -> str:
    """Return the error as text."""
    return "".join(traceback.format_exception_only(error)).strip()


Status = Literal["stopped", "running", "finished", "failed", "closed"]


class LiveStanding:
    """A session and its status, shared by the parts of a live session.

    Attributes:
        status: see `Deck.status`.
        trouble: the reason for a failure, as text.
        stopped: the reason why the last run stopped early, or None.
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
        """The tasks that have run, and the task that raised, if any."""
        trace = self.session.trace
        return self.session.order if trace is None else trace.order

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The tasks that have started, with their times; a task that runs again after undo has a new time."""
        trace = self.session.trace
        if trace is None:
            return [(task_id, 0) for task_id in self.session.order]
        return [(task_id, trace.columns.started_ns[task_id]) for task_id in trace.order]

    @property
    def history(self) -> History | None:
        """The history for undo; None if undo is not possible."""
        session = self.session
        return session.history if isinstance(session, Stepper) and session.over is None else None

    def id_of(self, task: AnyTask) -> int:
        return self.graph.task(task.task if isinstance(task, ReadyTask) else task).id

    def direct(self, why_not: str) -> Stepper:
        """Return the session for a feature of the direct engine.

        Args:
            why_not: the rest of the error's sentence after "PyTorch's engine".

        Raises:
            NotImplementedError: if the session uses PyTorch's engine.
        """
        if isinstance(self.session, Stepper):
            return self.session
        raise NotImplementedError(f'PyTorch\'s engine {why_not}; ts.debug(..., engine="direct") can')

    def rest(self) -> None:
        """Set the status after a run."""
        self.status = "finished" if self.has_ended else "stopped"

    def fail(self, error: BaseException) -> None:
        self.status, self.trouble = "failed", in_trouble(error)

    def release_stop(self) -> None:
        """Release the tensors of the last stop, which are available only as long as the session is open."""
        if self.stopped is not None:
            self.stopped = replace(self.stopped, tensors={})


class LiveStops:
    """The breakpoints and watchpoints of a session, and the trait `breakpoints`: ids of tasks with one of their own.

    The session's stops are the only record. A change of the trait is noted at once in whatever thread sets it, and
    applied in the driver's thread.
    """

    def __init__(self, session: Stepper | NativeSession) -> None:
        self._session = session
        self._changes: deque[tuple[Collection[int], Collection[int]]] = deque()
        self._places: dict[int, tuple[list[int], list[int]]] = {}

    @property
    def rows(self) -> list[Json]:
        """The stops as page data: text, hits, the tasks where each may stop, and the module calls of these tasks."""
        rows = []
        for entry in self._session.stops:
            if entry.tasks is not None and entry.number not in self._places:
                tasks = sorted(entry.tasks)
                # A breakpoint on a module stops only at the first task of each call.
                calls = entry.calls if entry.kind == "break" else None
                self._places[entry.number] = tasks, [] if calls is None else [calls[task_id] for task_id in tasks]
            tasks, at_calls = ([], []) if entry.tasks is None else self._places[entry.number]
            facts = {"number": entry.number, "kind": entry.kind, "text": entry.text, "enabled": entry.enabled}
            rows.append(facts | {"hits": entry.hits, "tasks": tasks, "calls": at_calls})
        return rows

    @property
    def breakpoints(self) -> list[int]:
        """The ids of the tasks with an enabled breakpoint of their own, after the changes noted by `ask`."""
        found = {task_id: None for task_id in map(_own_task, self._enabled) if task_id is not None}
        for added, removed in list(self._changes):
            found.update(dict.fromkeys(added))
            for task_id in removed:
                found.pop(task_id, None)
        return list(found)

    def ask(self, added: Collection[int], removed: Collection[int]) -> None:
        """Note that tasks get or lose a breakpoint. May be called from any thread."""
        self._changes.append((added, removed))

    def take(self) -> None:
        """Apply the changes noted by `ask`. A disabled breakpoint is enabled again; it is not deleted."""
        while self._changes:
            try:
                self._change(*self._changes[0])
            finally:
                self._changes.popleft()

    def _change(self, added: Collection[int], removed: Collection[int]) -> None:
        stops = self._session.stops
        enabled = set(map(_own_task, self._enabled))
        disabled = {_own_task(entry): entry.number for entry in stops if not entry.enabled}
        for task_id in added:
            if task_id in enabled:
                continue
            if task_id in disabled:
                stops.enable(disabled[task_id])
            else:
                self._session.break_at(task_id)
        for entry in self._enabled:
            if _own_task(entry) in removed:
                stops.delete(entry.number)

    @property
    def _enabled(self) -> list[Entry]:
        return [entry for entry in self._session.stops if entry.enabled]


def _own_task(entry: Entry) -> int | None:
    """Return the task's id for a breakpoint set on a single task by its id; None for others."""
    if entry.kind != "break" or entry.hit is not None or entry.tasks is None or len(entry.tasks) != 1:
        return None
    (task_id,) = entry.tasks
    return task_id if entry.text in (f"#{task_id}", f"task:{task_id}", str(task_id)) else None
