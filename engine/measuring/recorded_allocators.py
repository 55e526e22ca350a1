"""What a measurement records: the allocators that report to torch's profiler, and a CUDA device's own history."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from typing import Self

import torch

from ...inspector.torch_internals.allocators import end_recordings
from ..memory.measured_device import measurable
from .allocator import CPU, AllocatorRecording, ProfiledAllocators
from .cuda_allocator import CudaAllocator


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
