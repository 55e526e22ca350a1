"""Which part of an allocator's events belongs to which task."""

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
    """The part of the events which belongs to one task, as indices of rows of the backward.

    [begin, summed): the gradients in its lists are summed. [summed, start): hooks of its tensors and its node; empty
    where the recording does not tell when tasks begin, and these are the previous task's. [start, ended): the task and
    the hooks after it. [ended, end): what it saved is freed, its outputs go to the next tasks. Where devices have
    queues of their own others' rows stand between, see `Turns.places`. The rest are numbers of storages, -1 for unknown
    ones, when `start` and `ended` were, and the thread.
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
    """All of them, in the order in which they started.

    Attributes:
        places: where they ran in several threads, by row the place of the task to which it belongs: the last one that
            had begun in the row's own thread. -1: before all, `len(turns)`: after all. None: turns follow each other.
    """

    turns: list[Turn]
    places: list[int] | None

    @staticmethod
    def of(recording: AllocatorRecording, marks: Sequence[tuple[int, TaskMoment]], visits: Sequence[Visit]) -> Turns:
        """Reads them off a backward's marks, each of a task and a moment in its turn."""
        turns, over = _started(recording, marks, visits)
        if any(turn.thread != turns[0].thread for turn in turns):
            return _beside_each_other(turns, recording)
        _one_after_the_other(turns, recording, over)
        return Turns(turns, None)


def _started(
    recording: AllocatorRecording, marks: Sequence[tuple[int, TaskMoment]], visits: Sequence[Visit]
) -> tuple[list[Turn], int | None]:
    """The turns without their ends, and the row at which all was over, where that was told."""
    visit_of = {visit.task: visit for visit in visits}
    turns: list[Turn] = []
    running: dict[int, Turn] = {}
    begins: dict[TaskMoment, int] = {}  # of the task that was picked last
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
    """Each begins where the engine began it, and ends where the next one begins."""
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
    """Each has the rows of its own thread, until the thread's next one begins."""
    begun: dict[int, list[Instant]] = {}
    for task in recording.tasks:
        begun.setdefault(task.thread, []).append(task)
    for turn in turns:
        of_thread = begun.get(turn.thread, [])
        last = bisect_left(of_thread, turn.start_ns, key=attrgetter("ns")) - 1
        if last >= 0:  # it began there: others that did not start were another backward's
            turn.begin = turn.summed = min(turn.start, of_thread[last].row)
    rows = recording.rows
    first, end = min(turn.begin for turn in turns), _end_of_last(turns, rows)
    coming = deque(sorted(range(len(turns)), key=lambda place: turns[place].begin))
    runs: dict[int, int] = {}  # by thread the place of the last one that had begun
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
    """Where the last task's part ends: at the end backward() lets go of the roots' gradients, made before the first."""
    first, last = min(turn.begin for turn in turns), max(turn.ended for turn in turns)
    given = {row.address for row in rows[:first] if row.nbytes > 0}
    end = len(rows)
    while end > last and rows[end - 1].nbytes < 0 and rows[end - 1].address in given:
        end -= 1
    return end
