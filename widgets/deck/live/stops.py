"""The breakpoints and watchpoints of a live session, as its deck's traits and its page have them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from ....engine.sessions.native_session import NativeSession
from ....engine.sessions.stepper import Stepper
from ....engine.stops.stops import Entry
from ..document import Json


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
