"""What an allocator did: blocks born and freed, with marks between them that say what was going on."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch

from ...inspector.torch_internals.allocators import start_allocation_events, stop_allocation_events

CPU = torch.device("cpu")

MARK_BYTES = 12_347
"""A size which nothing else has, as good as certainly; and of each mark the address is known, too."""


class AllocatorEvent(NamedTuple):
    """One event of an allocator: `nbytes` is negative for a block that was freed. Nanoseconds since 1970."""

    ns: int
    address: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class AllocatorRecording:
    """What was recorded.

    Attributes:
        rows: the events, in order, without the marks' own.
        marks: for each mark, in order, the index of the first row after it, and its nanoseconds.
        tasks: the same of each task which the engine began; empty unless asked for.
    """

    rows: list[AllocatorEvent]
    marks: list[tuple[int, int]]
    tasks: list[tuple[int, int]]

    def with_rows(self, added: Mapping[int, Sequence[AllocatorEvent]]) -> AllocatorRecording:
        """The same with more rows: those that stand right after the mark of each number."""
        rows: list[AllocatorEvent] = []
        marks: list[tuple[int, int]] = []
        tasks = []
        begun = deque(self.tasks)
        done = 0
        for number, (row, ns) in enumerate(self.marks):
            while begun and begun[0] <= (row, ns):
                tasks.append((len(rows) + begun[0][0] - done, begun[0][1]))
                begun.popleft()
            rows.extend(self.rows[done:row])
            done = row
            marks.append((len(rows), ns))
            rows.extend(added.get(number, ()))
        tasks.extend((len(rows) + row - done, ns) for row, ns in begun)
        return AllocatorRecording(rows + self.rows[done:], marks, tasks)

    def without(self, spans: Sequence[tuple[int, int]]) -> AllocatorRecording:
        """The same without the blocks born between these pairs of marks, by number."""
        if not spans:
            return self
        kept, new_row = self._kept([(self.marks[first][0], self.marks[last][0]) for first, last in spans])
        marks = [(new_row[row], ns) for row, ns in self.marks]
        return replace(self, rows=kept, marks=marks, tasks=[(new_row[row], ns) for row, ns in self.tasks])

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
        marks = [(new_row[row], ns) for row, ns in self.marks]
        return replace(self, rows=kept, marks=marks, tasks=[(new_row[row], ns) for row, ns in self.tasks])

    def _kept(self, spans: Sequence[tuple[int, int]]) -> tuple[list[AllocatorEvent], list[int]]:
        """The rows but for blocks born between these pairs of rows; and for each row, and the end, its new number."""
        kept: list[AllocatorEvent] = []
        new_row: list[int] = []
        others: set[int] = set()  # addresses
        left = deque(spans)
        for number, row in enumerate(self.rows):
            new_row.append(len(kept))
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
        row, ns = self.marks[number]
        begun = bisect_left(self.tasks, (row, ns))
        first = AllocatorRecording(self.rows[:row], self.marks[:number], self.tasks[:begun])
        marks = [(each - row, when) for each, when in self.marks[number + 1 :]]
        tasks = [(each - row, when) for each, when in self.tasks[begun:]]
        return first, AllocatorRecording(self.rows[row:], marks, tasks)


class Marks(Protocol):
    """What takes marks among the events of allocators."""

    def mark(self) -> None: ...


class ProfiledAllocators:
    """Records the allocators that report to torch's profiler, the CPU's and those of accelerators, all at once.

    For one thread and the tasks which the engine runs for it. A mark is a block of an odd size on the CPU that is
    allocated and freed at once: it stands among the events where it was made, which no clock could tell as surely. One
    takes about 1.5 microseconds.

    Known limitations: what other threads allocate is not seen, nor memory that does not come from torch's allocators
    (scratch memory of oneDNN and MKL). A block of the CPU that was there before the recording is not seen to be freed.
    Of a caching allocator the blocks are told, which are larger than what was asked for.

    Args:
        tasks: note, too, when the engine begins each task, hooks of tensors included. This times each operation, and
            costs several times as much.
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
        told = {device for _, device, _, _ in events.rows}
        found = {device: AllocatorRecording([], [], []) for device in {CPU, *devices, *told}}
        recordings = list(found.values())
        expected = iter(self._addresses)
        address = next(expected, None)
        freed = None
        starts = iter([*events.tasks, None])
        start = next(starts)
        for ns, device, where, nbytes in events.rows:
            while start is not None and ns >= start:
                for each in recordings:
                    each.tasks.append((len(each.rows), start))
                start = next(starts)
            if where == address and nbytes == MARK_BYTES and device == CPU:
                for each in recordings:
                    each.marks.append((len(each.rows), ns))
                freed, address = address, next(expected, None)
            elif where == freed and nbytes == -MARK_BYTES and device == CPU:
                freed = None
            else:
                found[device].rows.append(AllocatorEvent(ns, where, nbytes))
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
