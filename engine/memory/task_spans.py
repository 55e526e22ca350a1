"""The parts of an allocator's events that belong to each task."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from .allocator_events import AllocatorEvent, AllocatorRecording, Instant
from .task_boundaries import TaskMoment, Visit


@dataclass(slots=True)
class Turn:
    """The part of the events that belongs to one task, as indices of rows of the backward.

    [begin, summed): the gradients in its lists are summed. [summed, start): hooks of its tensors and its node; empty if
    the recording does not have the start of tasks, and then the hooks belong to the previous task. [start, ended): the
    task and the hooks after it. [ended, end): its saved tensors are freed and its outputs reach the next tasks. If
    devices have separate queues, other tasks' rows are in between, see `Turns.places`. The other fields are the numbers
    of storages (-1 if unknown), the times of `start` and `ended`, and the thread.
    """

    visit: Visit
    begin: int
    summed: int
    start: int
    start_ns: int
    thread: int
    ended: int = 0
    ended_ns: int = 0
    end: int = 0
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    grad: int = -1


@dataclass(frozen=True, slots=True)
class Turns:
    """All turns, in the order in which they started.

    Attributes:
        places: if they ran in several threads, the place of each row's task, which is the last one begun in the row's
            thread: -1 before the first, `len(turns)` after the last. None if turns follow each other.
    """

    turns: list[Turn]
    places: list[int] | None

    @staticmethod
    def of(recording: AllocatorRecording, marks: Sequence[tuple[int, TaskMoment]], visits: Sequence[Visit]) -> Turns:
        """Return the turns found from a backward's marks, each with a task and a moment in its turn."""
        turns, over = _started(recording, marks, visits)
        if any(turn.thread != turns[0].thread for turn in turns):
            return _beside_each_other(turns, recording)
        _one_after_the_other(turns, recording, over)
        return Turns(turns, None)


def _started(
    recording: AllocatorRecording, marks: Sequence[tuple[int, TaskMoment]], visits: Sequence[Visit]
) -> tuple[list[Turn], int | None]:
    """Return the turns without their ends, and the row at which the backward ended, if it was recorded."""
    visit_of = {visit.task: visit for visit in visits}
    turns: list[Turn] = []
    running: dict[int, Turn] = {}
    begins: dict[TaskMoment, int] = {}  # of the task chosen last
    over = None
    for mark, (task, moment) in zip(recording.marks, marks, strict=True):
        row = mark.row
        if moment is TaskMoment.ENDED:
            turn = running.pop(task)
            turn.ended, turn.ended_ns = row, mark.ns
        elif moment is TaskMoment.OVER:
            over = row
        elif moment is TaskMoment.BEGUN or moment is TaskMoment.SUMMED:
            begins[moment] = row
        elif moment is TaskMoment.STARTED and task in visit_of:
            begin = begins.pop(TaskMoment.BEGUN, row)
            summed = begins.pop(TaskMoment.SUMMED, begin)
            turns.append(Turn(visit_of[task], begin, summed, row, mark.ns, mark.thread))
            running[task] = turns[-1]
    return turns, over


def _one_after_the_other(turns: Sequence[Turn], recording: AllocatorRecording, over: int | None) -> None:
    """Set the bounds of turns in one thread: each begins where the engine began it, and ends where the next one
    begins."""
    ended_ns = 0
    for turn in turns:
        begun = bisect_left(recording.tasks, ended_ns, key=attrgetter("ns"))
        if begun < len(recording.tasks):
            turn.begin = turn.summed = min(turn.start, recording.tasks[begun].row)
        ended_ns = turn.ended_ns
    for turn, following in pairwise(turns):
        turn.end = following.begin
    if turns:
        turns[-1].end = _end_of_last(turns, recording.rows) if over is None else over


def _beside_each_other(turns: list[Turn], recording: AllocatorRecording) -> Turns:
    """Set the bounds of turns in several threads: each has its thread's rows until the thread's next turn begins."""
    begun: dict[int, list[Instant]] = {}
    for task in recording.tasks:
        begun.setdefault(task.thread, []).append(task)
    for turn in turns:
        of_thread = begun.get(turn.thread, [])
        last = bisect_left(of_thread, turn.start_ns, key=attrgetter("ns")) - 1
        if last >= 0:  # it began there; tasks that never started belong to another backward
            turn.begin = turn.summed = min(turn.start, of_thread[last].row)
    rows = recording.rows
    first, end = min(turn.begin for turn in turns), _end_of_last(turns, rows)
    coming = deque(sorted(range(len(turns)), key=lambda place: turns[place].begin))
    runs: dict[int, int] = {}  # by thread: the place of the last task begun
    places = [-1] * first
    latest = -1
    for number in range(first, end):
        while coming and turns[coming[0]].begin <= number:
            latest = coming.popleft()
            runs[turns[latest].thread] = latest
        place = runs.get(rows[number].thread, latest)
        turns[place].end = number + 1
        places.append(place)
    for turn in turns:
        turn.end = max(turn.end, turn.ended)
    return Turns(turns, places + [len(turns)] * (len(rows) - end))


def _end_of_last(turns: Sequence[Turn], rows: Sequence[AllocatorEvent]) -> int:
    """Return the row at which the last task's part ends, before backward() frees the roots' gradients at its end."""
    first, last = min(turn.begin for turn in turns), max(turn.ended for turn in turns)
    given = {row.address for row in rows[:first] if row.nbytes > 0}
    end = len(rows)
    while end > last and rows[end - 1].nbytes < 0 and rows[end - 1].address in given:
        end -= 1
    return end
