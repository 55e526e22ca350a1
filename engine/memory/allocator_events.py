"""What an allocator did: blocks born and freed, with marks between them that say what was going on."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import torch

from ...inspector.torch_private.allocators import start_allocation_events, stop_allocation_events

CPU = torch.device("cpu")

MARK_BYTES = 12_347
"""A size which nothing else has, as good as certainly; and of each mark the address is known, too."""


class AllocatorEvent(NamedTuple):
    """One event of an allocator: `nbytes` is negative for a block that was freed. Nanoseconds since 1970.

    Threads are numbers; where one alone is recorded, 0 will do.
    """

    ns: int
    address: int
    nbytes: int
    thread: int = 0


class Instant(NamedTuple):
    """When something happened in a thread: before the row of this index, and at these nanoseconds."""

    row: int
    ns: int
    thread: int = 0


@dataclass(frozen=True, slots=True)
class AllocatorRecording:
    """What was recorded.

    Attributes:
        rows: the events, in order, without the marks' own.
        marks: each mark, in order.
        tasks: when each task began, by the engine; empty unless asked for.
    """

    rows: list[AllocatorEvent]
    marks: list[Instant]
    tasks: list[Instant]

    def with_rows(self, added: Mapping[int, Sequence[AllocatorEvent]]) -> AllocatorRecording:
        """The same with more rows: those that stand right after the mark of each number."""
        rows: list[AllocatorEvent] = []
        marks: list[Instant] = []
        tasks: list[Instant] = []
        begun = deque(self.tasks)
        done = 0
        for number, mark in enumerate(self.marks):
            while begun and begun[0][:2] <= mark[:2]:
                first = begun.popleft()
                tasks.append(first._replace(row=len(rows) + first.row - done))
            rows.extend(self.rows[done : mark.row])
            done = mark.row
            marks.append(mark._replace(row=len(rows)))
            rows.extend(added.get(number, ()))
        tasks.extend(each._replace(row=len(rows) + each.row - done) for each in begun)
        return AllocatorRecording(rows + self.rows[done:], marks, tasks)

    def without(self, spans: Sequence[tuple[int, int]]) -> AllocatorRecording:
        """The same without the blocks born between these pairs of marks, by number, in the marks' thread."""
        if not spans:
            return self
        kept, new_row = self._kept(spans)
        return self._moved(kept, new_row)

    def without_blocks(self, addresses: Sequence[int]) -> AllocatorRecording:
        """The same without one block at each of these addresses in turn, all of which were freed at once."""
        kept: list[AllocatorEvent] = []
        new_row: list[int] = []
        expected = deque(addresses)
        freed = None
        for row in self.rows:
            new_row.append(len(kept))
            if expected and row.address == expected[0] and row.nbytes >= MARK_BYTES:
                freed = expected.popleft()
            elif row.address == freed and row.nbytes <= -MARK_BYTES:
                freed = None
            else:
                kept.append(row)
        new_row.append(len(kept))
        return self._moved(kept, new_row)

    def _moved(self, rows: list[AllocatorEvent], new_row: Sequence[int]) -> Self:
        """The same with these rows; of each there was, and of the end, its new number is given."""
        marks, tasks = ([each._replace(row=new_row[each.row]) for each in all_] for all_ in (self.marks, self.tasks))
        return replace(self, rows=rows, marks=marks, tasks=tasks)

    def _kept(self, spans: Sequence[tuple[int, int]]) -> tuple[list[AllocatorEvent], list[int]]:
        """The rows but for blocks born between these pairs of marks; and for each row, and the end, its new number."""
        kept: list[AllocatorEvent] = []
        new_row: list[int] = []
        others: set[int] = set()  # addresses
        of_thread: dict[int, deque[tuple[int, int]]] = {}
        for first, last in spans:
            begin, end = self.marks[first], self.marks[last]
            of_thread.setdefault(begin.thread, deque()).append((begin.row, end.row))
        none = deque[tuple[int, int]]()
        for number, row in enumerate(self.rows):
            new_row.append(len(kept))
            left = of_thread.get(row.thread, none)
            while left and left[0][1] <= number:
                left.popleft()
            if row.nbytes > 0 and left and left[0][0] <= number:
                others.add(row.address)
            elif row.nbytes < 0 and row.address in others:
                others.remove(row.address)
            else:
                kept.append(row)
        return kept, [*new_row, len(kept)]

    def split(self, number: int) -> tuple[AllocatorRecording, AllocatorRecording]:
        """What came before the mark of this number, and what came after; the mark is in neither."""
        row = self.marks[number].row
        begun = bisect_left(self.tasks, self.marks[number])
        first = AllocatorRecording(self.rows[:row], self.marks[:number], self.tasks[:begun])
        marks = [each._replace(row=each.row - row) for each in self.marks[number + 1 :]]
        tasks = [each._replace(row=each.row - row) for each in self.tasks[begun:]]
        return first, AllocatorRecording(self.rows[row:], marks, tasks)


class Marks(Protocol):
    """What takes marks among the events of allocators."""

    def mark(self) -> None: ...


class ProfiledAllocators:
    """Records the allocators that report to torch's profiler, the CPU's and those of accelerators, all at once.

    For one thread and the tasks which the engine runs for it. A mark is a block of an odd size on the CPU that is
    allocated and freed at once: it stands among the events where it was made, which no clock could tell as surely. One
    takes about 1.5 microseconds. Where several threads make marks they do so one after the other.

    Known limitations: what other threads allocate is not seen, nor memory that does not come from torch's allocators
    (scratch memory of oneDNN and MKL). A block of the CPU that was there before the recording is not seen to be freed.
    Of a caching allocator the blocks are told, which are larger than what was asked for.

    Args:
        tasks: note, too, when the engine begins each task, hooks of tensors included. This times each operation, and
            costs several times as much. What accelerators do in the engine's own threads is told with it alone.
    """

    def __init__(self, tasks: bool = False) -> None:
        self._tasks = tasks
        self._addresses: list[int] = []

    def start(self) -> None:
        """Begins to record. Raises RuntimeError if a profiler is at work already."""
        start_allocation_events(self._tasks)

    def mark(self) -> None:
        self._addresses.append(torch.UntypedStorage(MARK_BYTES).data_ptr())  # type: ignore[no-untyped-call]

    def stop(self, devices: Collection[torch.device] = ()) -> dict[torch.device, AllocatorRecording]:
        """Ends the recording; what was marked since `start` is found in it. All have the same marks and tasks.

        Of the CPU, of these devices, and of those of which an event was told.
        """
        events = stop_allocation_events()
        told = {device for _, device, *_ in events.rows}
        found = {device: AllocatorRecording([], [], []) for device in {CPU, *devices, *told}}
        recordings = list(found.values())
        expected = iter(self._addresses)
        address = next(expected, None)
        freed = None
        starts = iter([*events.tasks, None])
        start = next(starts)
        for ns, device, where, nbytes, thread in events.rows:
            while start is not None and ns >= start[0]:
                for each in recordings:
                    each.tasks.append(Instant(len(each.rows), *start))
                start = next(starts)
            if where == address and nbytes == MARK_BYTES and device == CPU:
                for each in recordings:
                    each.marks.append(Instant(len(each.rows), ns, thread))
                freed, address = address, next(expected, None)
            elif where == freed and nbytes == -MARK_BYTES and device == CPU:
                freed = None
            else:
                found[device].rows.append(AllocatorEvent(ns, where, nbytes, thread))
        if address is not None:
            raise RuntimeError(
                f"only {len(recordings[0].marks)} of {len(self._addresses)} marks are among the allocator's events: "
                "was another profiler started or stopped meanwhile?"
            )
        return found


class CpuAllocator:
    """Records the CPU's allocator alone; see `ProfiledAllocators`."""

    def __init__(self) -> None:
        self._all = ProfiledAllocators()

    def start(self) -> None:
        self._all.start()

    def mark(self) -> None:
        self._all.mark()

    def stop(self) -> AllocatorRecording:
        return self._all.stop()[CPU]
