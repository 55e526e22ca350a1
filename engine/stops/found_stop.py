"""The stop that the findings of watchpoints make: the first is it, others are mentioned, none is told twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from ...inspector.graph.graph import Edge
from .stopped import Stop
from .watchpoints import Watchpoint


class FoundStop:
    """What the watchpoints have found at the last task, or of earlier ones on accelerators since they last said so.

    Args:
        hint: what the first stop says at its end.

    Attributes:
        stop: what there is to say; None: nothing.
        ran: how many tasks were watched.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self.stop: Stop | None = None
        self.ran = 0
        self._told: dict[int, set[tuple[int, int]]] = {}  # by task: watchpoints that held of one of its outputs

    def next_task(self, task_id: int) -> None:
        """What the task before brought has been read."""
        self.stop = None
        self.ran += 1
        self._told.pop(task_id, None)

    def add(self, watchpoint: Watchpoint, stop: Stop) -> None:
        """Of several that one task brings the first is the stop; the others are mentioned."""
        if stop.task is not None:
            watchpoint.hit(stop.task)
        if self.stop is None:
            self.stop, self._hint = replace(stop, hint=self._hint), ""  # said once
        else:
            self.stop = replace(self.stop, lines=(*self.stop.lines, f"also {stop.text}"))

    def add_late(self, watchpoint: Watchpoint, task_id: int, text: str, known: Iterable[str], ran: int) -> None:
        """What was asked for when `ran` tasks had been watched is found now: once for all that was asked by then."""
        told = self.stop is not None and self.stop.task == task_id
        if ran <= watchpoint.muted_until and not told:
            watchpoint.hit(task_id)
            return
        watchpoint.muted_until = self.ran
        since = self.ran - ran
        lines = list(known)
        if since:
            lines.append(
                f"{since} task{'s have' if since > 1 else ' has'} run since: the accelerator was not waited for, and "
                "what the task saw is gone; watch(..., synchronize=True) stops in time and looks for the origin"
            )
        stop = Stop("watchpoint", watchpoint.number, task_id, text, tuple(lines), since=since)
        self.add(watchpoint, stop)

    def is_told(self, watchpoint: Watchpoint, task_id: int, number: int, givers: Iterable[Edge]) -> bool:
        """Whether the same has been told of one of these givers. Takes down that it holds of this output, too."""
        told = any((watchpoint.number, edge.output) in self._told.get(edge.task, ()) for edge in givers)
        self._told.setdefault(task_id, set()).add((watchpoint.number, number))
        return told

    def taken_back(self, task_ids: Collection[int]) -> None:
        """These tasks have not run after all."""
        self.stop = None
        for task_id in task_ids:
            self._told.pop(task_id, None)
