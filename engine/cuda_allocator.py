"""What the CUDA caching allocator did, from the history that it can keep of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..inspector.torch_internals import start_cuda_history, stop_cuda_history
from .allocator import MARK_BYTES, Recording, Row

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
    """The allocator's own numbers at a mark.

    `requested` is what was asked for; `allocated` is that rounded up to blocks, as torch.cuda.memory_allocated() says;
    `peak` is the highest `allocated` since the mark before.
    """

    requested: int
    allocated: int
    reserved: int
    peak: int


@dataclass(frozen=True, slots=True)
class CudaRecording(Recording):
    """What was recorded. `nbytes` of rows is as requested, not as rounded up to blocks.

    Attributes:
        reserved: over time, the first as the recording began.
        failures: where memory ran out. The allocator frees what it can and tries again, so it need not have raised.
        levels: by mark the allocator's own numbers; empty unless asked for.
        peak_before: the device's peak counter as the recording began, torch.cuda.max_memory_allocated().
    """

    reserved: list[Reserved]
    failures: list[Failure]
    levels: list[Level]
    peak_before: int

    @property
    def peak_allocated(self) -> int:
        """What the device's peak counter would say if it had not been reset for `levels`, as of the last mark."""
        return max([self.peak_before, *(level.peak for level in self.levels)])


class CudaAllocator:
    """Records the allocator of one CUDA device, whichever thread and stream uses it.

    A mark is a block of an odd size that is allocated and freed at once; it stands in the history where it was made.
    The host allocates and frees in the order of the program, ahead of the device, so nothing has to wait for it.

    A block counts until its last tensor is gone (`free_requested`). One that another stream still uses
    (`Tensor.record_stream`) is not free for others until later, which the levels do not show.

    Known limitations: memory that does not come from this allocator (of cuBLAS without workspaces from torch, of NCCL,
    of CUDA itself) is not seen. A mark can make the allocator reserve one more segment of 2 MiB, and can raise the
    device's peak counter by its own 12,800 bytes. Which hooks of tensors ran before a task is not told
    (`Recording.tasks` is empty).

    Args:
        device: a CUDA device; None is the current one.
        levels: at each mark, note the allocator's own numbers, of which the peak between two marks is one: exact, and
            of blocks as they are, rounding and all. **This resets the device's peak counters at each mark**: afterwards
            torch.cuda.max_memory_allocated() and its like know of nothing before the last one.
            `CudaRecording.peak_allocated` says what the first of these would have said; what max_memory_reserved() and
            the other peaks of torch.cuda.memory_stats() would have said is lost.
    """

    def __init__(self, device: torch.device | int | str | None = None, levels: bool = False) -> None:
        wanted = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
        if wanted.type != "cuda":
            raise ValueError(f"CudaAllocator records a CUDA device, not {wanted}")
        self._number = torch.cuda.current_device() if wanted.index is None else wanted.index
        self._device = torch.device("cuda", self._number)
        self._wants_levels = levels
        self._addresses: list[int] = []
        self._levels: list[Level] = []

    def start(self) -> None:
        """Begins to record. Raises RuntimeError if the user records the history already."""
        start_cuda_history(_MOST)
        numbers = torch.cuda.memory_stats(self._device)
        self._reserved_before = numbers.get("reserved_bytes.all.current", 0)
        self._peak_before = numbers.get("allocated_bytes.all.peak", 0)
        if self._wants_levels:
            torch.cuda.reset_peak_memory_stats(self._device)

    def mark(self) -> None:
        if self._wants_levels:
            self._levels.append(_level(torch.cuda.memory_stats(self._device)))
        block = torch.UntypedStorage(MARK_BYTES, device=self._device)  # type: ignore[no-untyped-call]
        self._addresses.append(block.data_ptr())
        del block
        if self._wants_levels:
            torch.cuda.reset_peak_memory_stats(self._device)  # after the mark, which is no part of the peak

    def stop(self) -> CudaRecording:
        """Ends the recording; what was marked since `start` is found in it."""
        entries = stop_cuda_history(self._number)
        if len(entries) >= _MOST:
            raise RuntimeError(
                f"the CUDA allocator did more than the {_MOST:,} things of which its history has room: record less"
            )
        return read_history(entries, self._addresses, self._reserved_before, self._levels, self._peak_before)


def _level(numbers: Mapping[str, int]) -> Level:
    """From torch.cuda.memory_stats(), which has no entries before the device's first use."""
    return Level(
        numbers.get("requested_bytes.all.current", 0),
        numbers.get("allocated_bytes.all.current", 0),
        numbers.get("reserved_bytes.all.current", 0),
        numbers.get("allocated_bytes.all.peak", 0),
    )


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
    rows: list[Row] = []
    found: list[tuple[int, int]] = []
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
                found.append((len(rows), ns))
                freed, address = address, next(expected, None)
            else:
                rows.append(Row(ns, entry["addr"], nbytes))
        elif action == "free_requested":
            if entry["addr"] == freed and nbytes == MARK_BYTES:
                freed = None
            else:
                rows.append(Row(ns, entry["addr"], -nbytes))
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
