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
from ...inspector.graph.source_lines import OWN_CODE, Source, innermost_user_line
from .page_data import Json


def why(error: BaseException) -> str:
    """Return the error as text, without its type if tapescope raised it."""
    return str(error) if type(error) is ValueError else in_words(error)


def in_trouble(error: BaseException) -> str:
    """Return the error as text, with the user's line that raised it, if any."""
    line = _users_line(error)
    return in_words(error) + ("" if line is None else f"\nat {line.short}")


def in_words(error: BaseException) -> str:
    """Return the error as text."""
    return "".join(traceback.format_exception_only(error)).strip()


def _users_line(error: BaseException) -> Source | None:
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    return innermost_user_line(frame for frame in frames if not frame.filename.startswith(OWN_CODE))


Status = Literal["stopped", "running", "finished", "failed", "closed"]


def stopped_content(stop: Stop) -> Json:
    """Return a stop as text, without its tensors."""
    return {
        "why": stop.why,
        "number": stop.number,
        "task": stop.task,
        "text": stop.text,
        "lines": list(stop.all_lines),
    }


def history_content(history: History, branches_bytes: int) -> Json:
    """Return the memory held for undo, including gradients kept to compare branches."""
    gradient_bytes = history.gradient_bytes + branches_bytes
    saved_bytes = history.saved_bytes  # this is counted
    return {
        "bytes": gradient_bytes + saved_bytes,
        "gradient_bytes": gradient_bytes,
        "saved_bytes": saved_bytes,
        "reach": history.reach,
    }


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

        Raises:
            NotImplementedError: the session uses PyTorch's engine.
        """
        if isinstance(self.session, Stepper):
            return self.session
        raise NotImplementedError(f'PyTorch\'s engine {why_not}; ts.debug(..., engine="direct") can')

    def rest(self) -> None:
        """Set the status after a run."""
        self.status = "finished" if self.has_ended else "stopped"

    def fail(self, error: BaseException) -> None:
        self.status, self.trouble = "failed", in_trouble(error)

    def let_tensors_go(self) -> None:
        """Release the tensors of the last stop, which are available only as long as the session is open."""
        if self.stopped is not None:
            self.stopped = replace(self.stopped, tensors={})


class LiveStops:
    """The stops of a session, and among them those before one task, which the trait `breakpoints` has by its id.

    The session's stops are the truth. What is asked of them through the trait is noted at once, from whatever thread,
    and done in the driver's.
    """

    def __init__(self, session: Stepper | NativeSession) -> None:
        self._session = session
        self._asked: deque[tuple[Collection[int], Collection[int]]] = deque()
        self._places: dict[int, tuple[list[int], list[int]]] = {}

    @property
    def rows(self) -> list[Json]:
        """What the page is told of each."""
        rows = []
        for entry in self._session.stops:
            tasks, calls = self._tasks_and_calls(entry)
            facts = {"number": entry.number, "kind": entry.kind, "text": entry.text, "enabled": entry.enabled}
            rows.append(facts | {"hits": entry.hits, "tasks": tasks, "calls": calls})
        return rows

    @property
    def breakpoints(self) -> list[int]:
        """The ids of the tasks that have a breakpoint of their own which is enabled, as they are going to be."""
        found = {task_id: None for task_id in map(_own_task, self._enabled) if task_id is not None}
        for added, removed in list(self._asked):
            found.update(dict.fromkeys(added))
            for task_id in removed:
                found.pop(task_id, None)
        return list(found)

    def ask(self, added: Collection[int], removed: Collection[int]) -> None:
        """Notes that these tasks are to get a breakpoint, and that those are to lose theirs. For any thread."""
        self._asked.append((added, removed))

    def take(self) -> None:
        """Does what was asked for. One that is disabled is enabled again, and does not go with the others."""
        while self._asked:
            try:
                self._change(*self._asked[0])
            finally:
                self._asked.popleft()

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

    def _tasks_and_calls(self, entry: Entry) -> tuple[list[int], list[int]]:
        """Where it may stop, and of a breakpoint on modules the call of each: it stops at a call's first task alone."""
        if entry.tasks is None:
            return [], []
        if entry.number not in self._places:
            tasks = sorted(entry.tasks)
            calls = entry.calls if entry.kind == "break" else None
            self._places[entry.number] = tasks, [] if calls is None else [calls[task_id] for task_id in tasks]
        return self._places[entry.number]


def _own_task(entry: Entry) -> int | None:
    """The id of the task by which a breakpoint was asked for, if it was."""
    if entry.kind != "break" or entry.hit is not None or entry.tasks is None or len(entry.tasks) != 1:
        return None
    (task_id,) = entry.tasks
    return task_id if entry.text in (f"#{task_id}", f"task:{task_id}", str(task_id)) else None
