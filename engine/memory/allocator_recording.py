"""Records allocators during a measurement: torch's profiler events, and the CUDA caching allocator's history."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch

from ...inspector.torch_private.allocators import end_recordings, start_cuda_history, stop_cuda_history
from .allocator_events import CPU, MARK_BYTES, AllocatorEvent, AllocatorRecording, Instant, ProfiledAllocators
from .device_choice import measurable
from .task_boundaries import TaskMoment
from .timeline import BlockLevels

_MOST = 20_000_000  # entries of the history, of some 200 bytes each
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class Reserved(NamedTuple):
    """How many bytes the allocator held of the device from here on, in use or not. `row` is that of the next event."""

    row: int
    ns: int
    nbytes: int


class Failure(NamedTuple):
    """The allocator could not get so many bytes: a task that ran out of memory. `free_bytes` is what CUDA had left."""

    row: int
    ns: int
    nbytes: int
    free_bytes: int


class Level(NamedTuple):
    """How high the allocator's own numbers have been since the mark before, for all that is on the device.

    `requested` is what was asked for; `allocated` is that in blocks, as torch.cuda.memory_allocated() says; `reserved`
    is what the allocator held of the device, as torch.cuda.memory_reserved() says.
    """

    requested: int
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class CudaRecording(AllocatorRecording):
    """What was recorded. `nbytes` of rows is as requested, not as rounded up to blocks.

    Attributes:
        reserved: over time, the first as the recording began.
        failures: where memory ran out. The allocator frees what it can and tries again, so it need not have raised.
        levels: the allocator's own numbers at the last marks, from the one on which was the first to note them, and as
            the recording ended. Empty: not noted.
        peak_before: what torch.cuda.max_memory_allocated() said before it was reset for the levels.
    """

    reserved: list[Reserved]
    failures: list[Failure]
    levels: list[Level]
    peak_before: int

    @property
    def peak_allocated(self) -> int:
        """What torch.cuda.max_memory_allocated() would say at the end if it had not been reset for the levels."""
        return max([self.peak_before, *(level.allocated for level in self.levels)])

    def without(self, spans: Sequence[tuple[int, int]]) -> CudaRecording:
        """See `AllocatorRecording.without`. What the allocator reserved for these blocks it goes on holding."""
        if not spans:
            return self
        _, new_row = self._kept(spans)
        found = AllocatorRecording.without(self, spans)
        assert isinstance(found, CudaRecording)
        reserved = [each._replace(row=new_row[each.row]) for each in self.reserved]
        failures = [each._replace(row=new_row[each.row]) for each in self.failures]
        return replace(found, reserved=reserved, failures=failures)

    def split(self, number: int) -> tuple[CudaRecording, CudaRecording]:
        """See `AllocatorRecording.split`. What the mark noted, as how it was until then, is in the first part."""
        first, second = AllocatorRecording.split(self, number)
        row, ns, _ = self.marks[number]
        held = [each for each in self.reserved if each.ns <= ns]
        failed = bisect_right(self.failures, ns, key=lambda failure: failure.ns)
        noted = max(0, len(self.levels) - len(second.marks) - 1)
        before = CudaRecording(
            first.rows, first.marks, first.tasks, held, self.failures[:failed], self.levels[:noted], self.peak_before
        )
        after = CudaRecording(
            second.rows,
            second.marks,
            second.tasks,
            [Reserved(0, ns, each.nbytes) for each in held[-1:]]
            + [each._replace(row=each.row - row) for each in self.reserved[len(held) :]],
            [each._replace(row=each.row - row) for each in self.failures[failed:]],
            self.levels[noted:],
            before.peak_allocated,
        )
        return before, after


def blocks_of(recording: AllocatorRecording, marks: Sequence[tuple[int, int]]) -> BlockLevels | None:
    """By place the highest levels from the start of a task to the start of the next one; None if none were noted.

    `marks`: for each mark of the recording, in order, its task and the moment in its turn.
    """
    if not isinstance(recording, CudaRecording) or not recording.levels:
        return None
    columns = array("q"), array("q"), array("q")
    peak_before = recording.peak_before
    opens = TaskMoment.BEGUN if any(moment == TaskMoment.BEGUN for _, moment in marks) else TaskMoment.STARTED
    for level, (_, moment) in zip(recording.levels, [*marks, (-1, TaskMoment.ENDED)], strict=True):
        if moment is TaskMoment.BACK:  # so high it was with what is not counted
            continue
        for column, nbytes in zip(columns, level, strict=True):
            if column:
                column[-1] = max(column[-1], nbytes)
        if not columns[0]:
            peak_before = max(peak_before, level.allocated)
        if moment == opens:
            for column in columns:
                column.append(0)
    return BlockLevels(*columns, peak_before)


class CudaAllocator:
    """Records the allocator of one CUDA device, whichever thread and stream uses it.

    A mark is a block of an odd size that is allocated and freed at once; it stands in the history where it was made.
    The host allocates and frees in the order of the program, ahead of the device, so nothing has to wait for it.

    A block counts until its last tensor is gone (`free_requested`). One that another stream still uses
    (`Tensor.record_stream`) is not free for others until later, which the levels do not show.

    Known limitations: memory that does not come from this allocator (of cuBLAS without workspaces from torch, of NCCL,
    of CUDA itself) is not seen. A mark can make the allocator reserve one more segment of 2 MiB, and can raise the
    device's peak counter by its own 12,800 bytes. Which hooks of tensors ran before a task is not told
    (`AllocatorRecording.tasks` is empty).

    Args:
        device: a CUDA device; None is the current one.

    Attributes:
        device: with its number.
        marks: the addresses of the marks.
    """

    def __init__(self, device: torch.device | int | str | None = None) -> None:
        wanted = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
        if wanted.type != "cuda":
            raise ValueError(f"CudaAllocator records a CUDA device, not {wanted}")
        self._number = torch.cuda.current_device() if wanted.index is None else wanted.index
        self.device = torch.device("cuda", self._number)
        self.marks: list[int] = []
        self._levels: list[Level] | None = None
        self._peak_before = 0

    def start(self) -> None:
        """Begins to record. Raises RuntimeError if the user records the history already."""
        start_cuda_history(_MOST)
        self._reserved_before = torch.cuda.memory_reserved(self.device)

    def note_levels(self) -> None:
        """From now on, at each mark and at the end, the allocator's own numbers are noted: how high they have been.

        They are exact, and of blocks as these are. **This resets the device's peak counters at each mark**: afterwards
        torch.cuda.max_memory_allocated() and its like know of nothing before the last one.
        `CudaRecording.peak_allocated` says what the first of these would have said; what max_memory_reserved() and the
        other peaks of torch.cuda.memory_stats() would have said is lost.
        """
        self._levels = []
        self._peak_before = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)

    def mark(self) -> None:
        self._note()
        block = torch.UntypedStorage(MARK_BYTES, device=self.device)  # type: ignore[no-untyped-call]
        self.marks.append(block.data_ptr())
        del block
        if self._levels is not None:
            torch.cuda.reset_peak_memory_stats(self.device)  # after the mark, which is no part of the peak

    def _note(self) -> None:
        if self._levels is not None:
            self._levels.append(_level(torch.cuda.memory.memory_stats_as_nested_dict(self.device)))

    def stop(self) -> CudaRecording:
        """Ends the recording; what was marked since `start` is found in it."""
        self._note()
        entries = stop_cuda_history(self._number)
        if len(entries) >= _MOST:
            raise RuntimeError(
                f"the CUDA allocator did more than the {_MOST:,} things of which its history has room: record less"
            )
        return read_history(entries, self.marks, self._reserved_before, self._levels or (), self._peak_before)


def _level(numbers: Mapping[str, Any]) -> Level:
    """From torch.cuda.memory_stats_as_nested_dict(), which costs a part of memory_stats()."""
    requested, allocated, reserved = (
        numbers[f"{name}_bytes"]["all"]["peak"] for name in ("requested", "allocated", "reserved")
    )
    return Level(requested, allocated, reserved)


def read_history(
    entries: Sequence[Mapping[str, Any]],
    marks: Sequence[int],
    reserved_before: int = 0,
    levels: Sequence[Level] = (),
    peak_before: int = 0,
) -> CudaRecording:
    """A device's history as a recording.

    Args:
        entries: of torch.cuda.memory._snapshot()["device_traces"][device], oldest first; `size` is in bytes as
            requested, `time_us` in microseconds since 1970 (c10/cuda/CUDACachingAllocator.cpp, record_trace).
        marks: the addresses of the marks, in order.
        reserved_before: what the allocator held as the history began.
        levels, peak_before: see `CudaRecording`.

    Raises:
        RuntimeError: not all of the marks are in the history.
    """
    rows: list[AllocatorEvent] = []
    found: list[Instant] = []
    reserved: list[Reserved] = []
    failures: list[Failure] = []
    expected = iter(marks)
    address = next(expected, None)
    freed = None
    held = reserved_before
    for entry in entries:
        action, nbytes, ns = entry["action"], entry["size"], entry["time_us"] * 1000
        if not reserved:
            reserved.append(Reserved(0, ns, held))
        if action == "alloc":
            if entry["addr"] == address and nbytes == MARK_BYTES:
                found.append(Instant(len(rows), ns))
                freed, address = address, next(expected, None)
            else:
                rows.append(AllocatorEvent(ns, entry["addr"], nbytes))
        elif action == "free_requested":
            if entry["addr"] == freed and nbytes == MARK_BYTES:
                freed = None
            else:
                rows.append(AllocatorEvent(ns, entry["addr"], -nbytes))
        elif action in _RESERVED:
            held += _RESERVED[action] * nbytes
            reserved.append(Reserved(len(rows), ns, held))
        elif action == "oom":
            failures.append(Failure(len(rows), ns, nbytes, entry["device_free"]))
    if address is not None:
        raise RuntimeError(
            f"only {len(found)} of {len(marks)} marks are in the CUDA allocator's history: was it started or ended by "
            "somebody else meanwhile?"
        )
    return CudaRecording(rows, found, [], reserved, failures, list(levels), peak_before)


class RecordedAllocators:
    """Records several allocators at once, with the same marks in each.

    Of one CUDA device the history tells the bytes as they were asked for; of all others the profiler tells of blocks.
    Where the history turns out to be of a device that is not alone of its kind, the profiler's word counts for all.

    Args:
        history: records one CUDA device, or nothing does.
        profiled: whether others are recorded.
    """

    def __init__(self, history: CudaAllocator | None, profiled: bool) -> None:
        self.history = history
        self._profiled = ProfiledAllocators() if profiled else None
        self._started: list[CudaAllocator | ProfiledAllocators] = []
        self._dropped: CudaAllocator | None = None

    @classmethod
    def of_all(cls) -> Self:
        """Of all devices that may turn out to be a program's; the history is of CUDA's current one."""
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        history = CudaAllocator(measurable(torch.device("cuda"))) if in_use else None
        return cls(history, profiled=True)

    def start(self, tasks: bool = False) -> None:
        """Begins to record. Raises RuntimeError if somebody records already. `tasks` as in `ProfiledAllocators`."""
        if self._profiled is not None and tasks:
            self._profiled = ProfiledAllocators(tasks)
        for each in (self._profiled, self.history):
            if each is not None:
                each.start()
                self._started.append(each)

    def keep(self, devices: Collection[torch.device], threads: bool = False) -> None:
        """From now on these alone count. `threads`: whether it has to be told in which thread something happens."""
        if self.history is not None and (
            threads or [each for each in devices if each.type == self.history.device.type] != [self.history.device]
        ):
            self._stop(self.history)
            self._dropped, self.history = self.history, None
        if self._profiled is not None and self.history is not None and set(devices) == {self.history.device}:
            self._stop(self._profiled)
            self._profiled = None

    def tells_of_older(self, device: torch.device) -> bool:
        """Whether the end of blocks is told of that were there before the recording."""
        return device != CPU or (self.history is not None and self.history.device == CPU)

    def mark(self) -> None:
        for each in self._started:
            each.mark()

    def begin_tasks(self, devices: Collection[torch.device]) -> dict[torch.device, AllocatorRecording]:
        """From now on the profiler tells when tasks begin, too; what it has told until now."""
        if self._profiled is None:
            return {}
        self._started.remove(self._profiled)
        found = self._recordings(self._profiled, devices)
        self._profiled = ProfiledAllocators(tasks=True)
        self._profiled.start()
        self._started.append(self._profiled)
        return found

    def stop(self, devices: Collection[torch.device]) -> dict[torch.device, AllocatorRecording]:
        """Ends the recording: what is known of these devices."""
        found: dict[torch.device, AllocatorRecording] = {}
        with ExitStack() as each:
            each.callback(self.close)
            while self._started:
                recorder = self._started.pop()
                if isinstance(recorder, CudaAllocator):
                    found[recorder.device] = recorder.stop()
                else:
                    found = {**self._recordings(recorder, devices), **found}
        return {device: found[device] for device in devices}

    def close(self) -> None:
        """End all recordings, without results. To close it twice does no harm."""
        self._started = []
        end_recordings()

    def _stop(self, recorder: CudaAllocator | ProfiledAllocators) -> None:
        self._started.remove(recorder)
        recorder.stop()

    def _recordings(
        self, recorder: ProfiledAllocators, devices: Collection[torch.device]
    ) -> dict[torch.device, AllocatorRecording]:
        found = recorder.stop(devices)
        if self._dropped is not None and self._dropped.device in found:
            device = self._dropped.device
            found[device] = found[device].without_blocks(self._dropped.marks)
        self._dropped = None
        return found
