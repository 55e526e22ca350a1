"""Recording allocators during a measurement, with torch's profiler events or the CUDA caching allocator's history."""

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
    """The bytes that the allocator holds of the device from now on, in use or not. `row` is that of the next event."""

    row: int
    ns: int
    nbytes: int


class Failure(NamedTuple):
    """A request for memory that the allocator could not satisfy. `free_bytes` is the memory that CUDA had left."""

    row: int
    ns: int
    nbytes: int
    free_bytes: int


class Level(NamedTuple):
    """The peaks of the allocator's own counters since the previous mark, for all memory on the device.

    `requested` counts requested bytes; `allocated` counts blocks, as torch.cuda.memory_allocated() does; `reserved`
    counts segments, as torch.cuda.memory_reserved() does.
    """

    requested: int
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class CudaRecording(AllocatorRecording):
    """The events of a CUDA device's allocator. The `nbytes` of a row are requested bytes, not rounded up to blocks.

    Attributes:
        reserved: the reserved bytes over time, first those at the start of the recording.
        failures: the requests that failed. The allocator frees cached memory and tries again, so none may have raised.
        levels: the allocator's own counters at the last marks, starting with the first mark that read them, and at the
            end of the recording. Empty if they were not read.
        peak_before: the value of torch.cuda.max_memory_allocated() before it was reset to read the levels.
    """

    reserved: list[Reserved]
    failures: list[Failure]
    levels: list[Level]
    peak_before: int

    @property
    def peak_allocated(self) -> int:
        """The value that torch.cuda.max_memory_allocated() would have at the end without the resets for the levels."""
        return max([self.peak_before, *(level.allocated for level in self.levels)])

    def without(self, spans: Sequence[tuple[int, int]]) -> CudaRecording:
        """See `AllocatorRecording.without`. The memory that the allocator reserved for these blocks stays reserved."""
        if not spans:
            return self
        _, new_row = self._kept(spans)
        found = AllocatorRecording.without(self, spans)
        assert isinstance(found, CudaRecording)
        reserved = [each._replace(row=new_row[each.row]) for each in self.reserved]
        failures = [each._replace(row=new_row[each.row]) for each in self.failures]
        return replace(found, reserved=reserved, failures=failures)

    def split(self, number: int) -> tuple[CudaRecording, CudaRecording]:
        """See `AllocatorRecording.split`. The counters that the mark read belong to the first part."""
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
    """Return the highest levels from each task's start to the next one's, by place; None if no levels were read.

    Args:
        recording: the recording.
        marks: the task of each mark in order, and the moment within that task.
    """
    if not isinstance(recording, CudaRecording) or not recording.levels:
        return None
    columns = array("q"), array("q"), array("q")
    peak_before = recording.peak_before
    opens = TaskMoment.BEGUN if any(moment == TaskMoment.BEGUN for _, moment in marks) else TaskMoment.STARTED
    for level, (_, moment) in zip(recording.levels, [*marks, (-1, TaskMoment.ENDED)], strict=True):
        if moment is TaskMoment.BACK:  # this peak includes memory that is not the backward's
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
    """Recorder of one CUDA device's allocator, for all threads and streams.

    A mark is a block of an unusual size that is allocated and freed immediately; its position in the history is exact.
    The host allocates and frees in program order, ahead of the device, so recording never waits for the device.

    A block counts until its last tensor is freed (`free_requested`). If another stream still uses it
    (`Tensor.record_stream`), the allocator reuses it only later, which the levels do not show.

    Known limitations: memory that does not come from this allocator (NCCL's, CUDA's own, cuBLAS workspaces that torch
    does not allocate) is not recorded. A mark can make the allocator reserve one more segment of 2 MiB, and can raise
    the device's peak counter by its own 12,800 bytes. The history does not show which tensor hooks ran before a task
    (`AllocatorRecording.tasks` is empty).

    Args:
        device: a CUDA device; None for the current one.

    Attributes:
        device: the device, with its index.
        marks: the addresses of the marks.
    """

    def __init__(self, device: torch.device | int | str | None = None) -> None:
        wanted = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
        if wanted.type != "cuda":
            raise ValueError(f"device of CudaAllocator must be a CUDA device, got {wanted}")
        self._number = torch.cuda.current_device() if wanted.index is None else wanted.index
        self.device = torch.device("cuda", self._number)
        self.marks: list[int] = []
        self._levels: list[Level] | None = None
        self._peak_before = 0

    def start(self) -> None:
        """Begin to record. Raise RuntimeError if the history is already being recorded."""
        start_cuda_history(_MOST)
        self._reserved_before = torch.cuda.memory_reserved(self.device)

    def note_levels(self) -> None:
        """Read the peaks of the allocator's own counters at each mark and at the end, from now on.

        The counters are exact. **Reading them resets the device's peak counters at each mark**: afterwards
        torch.cuda.max_memory_allocated() and the like only cover the time since the last mark.
        `CudaRecording.peak_allocated` restores the first of these; the true values of max_memory_reserved() and of the
        other peaks in torch.cuda.memory_stats() are lost.
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
            torch.cuda.reset_peak_memory_stats(self.device)  # after the mark, to leave it out of the peak

    def _note(self) -> None:
        if self._levels is not None:
            self._levels.append(_level(torch.cuda.memory.memory_stats_as_nested_dict(self.device)))

    def stop(self) -> CudaRecording:
        """End the recording and return it, with the marks since `start`."""
        self._note()
        entries = stop_cuda_history(self._number)
        if len(entries) >= _MOST:
            raise RuntimeError(
                f"the CUDA allocator's history is full ({_MOST:,} entries); record a shorter part of the program"
            )
        return read_history(entries, self.marks, self._reserved_before, self._levels or (), self._peak_before)


def _level(numbers: Mapping[str, Any]) -> Level:
    """Read the peaks from torch.cuda.memory_stats_as_nested_dict(), which is cheaper than memory_stats()."""
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
    """Convert a device's history to a recording.

    Args:
        entries: the entries of torch.cuda.memory._snapshot()["device_traces"][device], oldest first; `size` is in
            requested bytes, `time_us` in microseconds since 1970 (c10/cuda/CUDACachingAllocator.cpp, record_trace).
        marks: the addresses of the marks, in order.
        reserved_before: the bytes that the allocator held at the start of the history.
        levels, peak_before: see `CudaRecording`.

    Raises:
        RuntimeError: If some of the marks are not in the history.
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
            f"only {len(found)} of {len(marks)} marks are in the CUDA allocator's history; other "
            "code may have started or ended its recording meanwhile"
        )
    return CudaRecording(rows, found, [], reserved, failures, list(levels), peak_before)


class RecordedAllocators:
    """Recorder of several allocators at once, with the same marks in each.

    For one CUDA device the history reports requested bytes; for all others the profiler reports blocks. If the backward
    turns out to run on several CUDA devices, the profiler is used for all of them.

    Args:
        history: the recorder of one CUDA device; None for no history.
        profiled: whether other devices are recorded.
    """

    def __init__(self, history: CudaAllocator | None, profiled: bool) -> None:
        self.history = history
        self._profiled = ProfiledAllocators() if profiled else None
        self._started: list[CudaAllocator | ProfiledAllocators] = []
        self._dropped: CudaAllocator | None = None

    @classmethod
    def of_all(cls) -> Self:
        """Return a recorder of all devices that the program may use; the history is that of the current CUDA device."""
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        history = CudaAllocator(measurable(torch.device("cuda"))) if in_use else None
        return cls(history, profiled=True)

    def start(self, tasks: bool = False) -> None:
        """Begin to record; `tasks` as in `ProfiledAllocators`. Raise RuntimeError if a recording is already running."""
        if self._profiled is not None and tasks:
            self._profiled = ProfiledAllocators(tasks)
        for each in (self._profiled, self.history):
            if each is not None:
                each.start()
                self._started.append(each)

    def keep(self, devices: Collection[torch.device], threads: bool = False) -> None:
        """Record only these devices from now on. `threads`: whether events need the thread in which they happened."""
        if self.history is not None and (
            threads or [each for each in devices if each.type == self.history.device.type] != [self.history.device]
        ):
            self._stop(self.history)
            self._dropped, self.history = self.history, None
        if self._profiled is not None and self.history is not None and set(devices) == {self.history.device}:
            self._stop(self._profiled)
            self._profiled = None

    def tells_of_older(self, device: torch.device) -> bool:
        """Return whether the recorder reports the free of blocks that were allocated before the recording."""
        return device != CPU or (self.history is not None and self.history.device == CPU)

    def mark(self) -> None:
        for each in self._started:
            each.mark()

    def begin_tasks(self, devices: Collection[torch.device]) -> dict[torch.device, AllocatorRecording]:
        """Record the start of each task from now on, and return the profiler's recordings until now."""
        if self._profiled is None:
            return {}
        self._started.remove(self._profiled)
        found = self._recordings(self._profiled, devices)
        self._profiled = ProfiledAllocators(tasks=True)
        self._profiled.start()
        self._started.append(self._profiled)
        return found

    def stop(self, devices: Collection[torch.device]) -> dict[torch.device, AllocatorRecording]:
        """End the recording and return it for these devices."""
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
        """End all recordings without results. Closing twice is harmless."""
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
