"""The level of memory over the steps of any computation that tells where they end: a gradient written by hand, say.

In the terms of a `Timeline`: bytes requested since just before the forward, so that curves can be laid on each other.
"""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from ...inspector.arguments import expect_callable
from ...inspector.graph.collector import collector_paused
from ..memory.timeline import Timeline
from .allocator import CpuAllocator

T = TypeVar("T")
Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class StepLevels:
    """Levels of memory, bytes.

    Attributes:
        start_bytes: as the backward starts.
        peaks: by step the highest level while it ran, the level at its start included.
        end_bytes: when all is over: the gradients, and what else was returned.
        forward_peak_bytes: the highest of the forward.
    """

    start_bytes: int
    peaks: array[int]
    end_bytes: int
    forward_peak_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The highest level of the backward."""
        return max(self.start_bytes, self.end_bytes, *self.peaks)


def levels_of(timeline: Timeline) -> StepLevels:
    """Of a backward: its steps are the tasks.

    Raises:
        ValueError: the forward was not recorded.
    """
    if timeline.forward_peak_bytes is None:
        raise ValueError("the forward of this timeline was not recorded: measure it with th.profile(make_loss)")
    return StepLevels(timeline.start_bytes, timeline.task_peaks, timeline.end_bytes, timeline.forward_peak_bytes)


def allocated_levels(compute: Callable[[Step], T]) -> tuple[T, StepLevels]:
    """What `compute` asks of torch's CPU allocator.

    Known limitations: those of `CpuAllocator`.

    Args:
        compute: is given `step`, to be called when the forward is done and after each step of the backward.

    Returns:
        What it returned, and the levels.

    Raises:
        TypeError: compute is no function of one argument.
        ValueError: it never called `step`.
        RuntimeError: a torch profiler is at work.
    """
    expect_callable(compute, 1, "compute", "a function of step: compute(step)")
    recorder = CpuAllocator()
    recorder.start()
    try:
        result = compute(recorder.mark)
        recorder.mark()
    finally:
        with collector_paused():
            recording = recorder.stop()
    levels, alive = array("q", [0]), dict[int, int]()
    for row in recording.rows:
        if row.nbytes > 0:
            alive[row.address] = row.nbytes
        freed = 0 if row.nbytes > 0 else alive.pop(row.address, 0)  # 0: it was there before
        levels.append(levels[-1] + max(row.nbytes, 0) - freed)
    *marks, end = (row for row, _ in recording.marks)
    _assert_told(marks)
    peaks = array("q", (max(levels[start : until + 1]) for start, until in pairwise(marks)))
    return result, StepLevels(levels[marks[0]], peaks, levels[end], max(levels[: marks[0] + 1]))


def traced_levels(compute: Callable[[Step], T]) -> tuple[T, StepLevels]:
    """What Python allocates meanwhile, by `tracemalloc`, to which NumPy reports its arrays.

    All threads count, and Python's own objects: of small arrays the level says little.

    Args, Returns, Raises: as `allocated_levels`; a tracing that is under way goes on, its peak set back.
    """
    seen: list[tuple[int, int]] = []

    def step() -> None:
        seen.append(tracemalloc.get_traced_memory())
        tracemalloc.reset_peak()

    ours = not tracemalloc.is_tracing()
    gc.collect()  # what dies of itself in the midst is not the computation's
    if ours:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        result = compute(step)
        step()
    finally:
        if ours:
            tracemalloc.stop()
    *told, (end, _) = seen
    _assert_told(told)
    (start, forward_peak), *steps = told
    return result, StepLevels(
        start - before, array("q", (peak - before for _, peak in steps)), end - before, forward_peak - before
    )


def _assert_told(marks: list[int] | list[tuple[int, int]]) -> None:
    if not marks:
        raise ValueError("step() was never called: it tells when the forward is done, and each step of the backward")
