"""Allocator events: blocks allocated and freed, with marks between them that tell what the program was doing."""

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
"""The size of the block that marks a position. Other blocks are unlikely to have it; marks' addresses are known."""


class AllocatorEvent(NamedTuple):
    """One event of an allocator, at a time in nanoseconds since 1970; `nbytes` is negative if a block was freed.

    Threads are numbered; 0 if only one thread is recorded.
    """

    ns: int
    address: int
    nbytes: int
    thread: int = 0


class Instant(NamedTuple):
    """The moment of something in a thread: the index of the next row, and the time in nanoseconds."""

    row: int
    ns: int
    thread: int = 0


@dataclass(frozen=True, slots=True)
class AllocatorRecording:
    """The events of an allocator, with marks.

    Attributes:
        rows: the events in order, without those of the marks.
        marks: the marks in order.
        tasks: the start of each task as the engine reported it; empty unless requested.
    """

    rows: list[AllocatorEvent]
    marks: list[Instant]
    tasks: list[Instant]

    def with_rows(self, added: Mapping[int, Sequence[AllocatorEvent]]) -> AllocatorRecording:
        """Return a copy with these rows added right after the mark of each number."""
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
        """Return a copy without the blocks allocated between these pairs of marks (by number) in the marks' thread."""
        if not spans:
            return self
        kept, new_row = self._kept(spans)
        return self._moved(kept, new_row)

    def without_blocks(self, addresses: Sequence[int]) -> AllocatorRecording:
        """Return a copy without the block at each of these addresses in turn, each of which was freed immediately."""
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
        """Return a copy with these rows; `new_row` maps each old row number, and the end, to its new number."""
        marks, tasks = ([each._replace(row=new_row[each.row]) for each in all_] for all_ in (self.marks, self.tasks))
        return replace(self, rows=rows, marks=marks, tasks=tasks)

    def _kept(self, spans: Sequence[tuple[int, int]]) -> tuple[list[AllocatorEvent], list[int]]:
        """Return the rows without blocks allocated between these pairs of marks, and the new number of each row and of
        the end."""
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
        """Return the parts before and after the mark of this number; the mark is in neither."""
        row = self.marks[number].row
        begun = bisect_left(self.tasks, self.marks[number])
        first = AllocatorRecording(self.rows[:row], self.marks[:number], self.tasks[:begun])
        marks = [each._replace(row=each.row - row) for each in self.marks[number + 1 :]]
        tasks = [each._replace(row=each.row - row) for each in self.tasks[begun:]]
        return first, AllocatorRecording(self.rows[row:], marks, tasks)


class Marks(Protocol):
    """A recorder that can place marks among the events of allocators."""

    def mark(self) -> None: ...


class ProfiledAllocators:
    """Recorder of all allocators that report to torch's profiler: the CPU's and those of accelerators.

    It records one thread and the tasks that the engine runs for it. A mark is a CPU block of an unusual size that is
    allocated and freed immediately. Its position among the events is exact, while a clock's time would not be. A mark
    costs about 1.5 microseconds. Threads that place marks do so one at a time.

    Known limitations: allocations of other threads are not recorded, nor is memory that does not come from torch's
    allocators (scratch memory of oneDNN and MKL). The profiler does not report the free of a CPU block that was
    allocated before the recording. A caching allocator reports its blocks, which are larger than the requested bytes.

    Args:
        tasks: whether to record when the engine begins each task, including tensor hooks. This times each operation
            and costs several times as much. Only with it are the events of the engine's own threads recorded, which
            run the tasks of accelerators.
    """

    def __init__(self, tasks: bool = False) -> None:
        self._tasks = tasks
        self._addresses: list[int] = []

    def start(self) -> None:
        """Begin to record. Raise RuntimeError if a profiler is already running."""
        start_allocation_events(self._tasks)

    def mark(self) -> None:
        self._addresses.append(torch.UntypedStorage(MARK_BYTES).data_ptr())  # type: ignore[no-untyped-call]

    def stop(self, devices: Collection[torch.device] = ()) -> dict[torch.device, AllocatorRecording]:
        """End the recording and return it by device. All recordings have the same marks and tasks.

        The devices are the CPU, `devices`, and all others that reported an event.
        """
        events = stop_allocation_events()
        reporting = {device for _, device, *_ in events.rows}
        found = {device: AllocatorRecording([], [], []) for device in {CPU, *devices, *reporting}}
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
                "another profiler may have been started or stopped meanwhile"
            )
        return found


class CpuAllocator:
    """Recorder of the CPU's allocator only; see `ProfiledAllocators`."""

    def __init__(self) -> None:
        self._all = ProfiledAllocators()

    def start(self) -> None:
        self._all.start()

    def mark(self) -> None:
        self._all.mark()

    def stop(self) -> AllocatorRecording:
        return self._all.stop()[CPU]
