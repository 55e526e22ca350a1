"""Memory levels over the steps of any computation that reports where they end, such as a handwritten gradient.

As in a `Timeline`, levels are bytes requested since just before the forward, so the curves can be compared.
"""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter_ns
from typing import TypeVar

import torch

from ...inspector.garbage_collector import collector_paused
from ...inspector.torch_private.allocators import recordings_ended
from ...inspector.validation import expect_callable
from .allocator_events import ProfiledAllocators
from .device_choice import measurable
from .lifetimes import mean_level
from .timeline import Timeline

T = TypeVar("T")
Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class StepLevels:
    """Levels of memory, bytes.

    Attributes:
        start_bytes: the level at the start of the backward.
        peaks: the highest level during each step, in bytes, including the level at its start.
        end_bytes: the level at the end: the gradients, and other returned values.
        forward_peak_bytes: the highest level of the forward.
        forward: the highest level during each step of the forward. Without reported steps, each run of allocations is
            one, or the whole forward is.
        ns: the end of each step in nanoseconds since just before the forward, whose steps come first. Empty if not
            recorded.
        average_bytes: the mean level of the backward, in which each level counts for as long as it lasted in the
            measured run; None if no times were recorded.
    """

    start_bytes: int
    peaks: array[int]
    end_bytes: int
    forward_peak_bytes: int
    forward: array[int] = field(default_factory=lambda: array("q"))
    ns: array[int] = field(default_factory=lambda: array("q"), compare=False)
    average_bytes: float | None = field(default=None, compare=False)

    @property
    def peak_bytes(self) -> int:
        """The highest level of the backward."""
        return max(self.start_bytes, self.end_bytes, *self.peaks)


def levels_of(timeline: Timeline) -> StepLevels:
    """Return the levels of a backward; its steps are the tasks.

    Raises:
        ValueError: If the forward was not recorded.
    """
    if timeline.forward_peak_bytes is None:
        raise ValueError("the forward of this timeline was not recorded; measure it with ts.profile(make_loss)")
    start, forward_ns, task_ns = timeline.starts[0], timeline.forward_ns, timeline.task_ns
    ns = array("q")
    if forward_ns and task_ns:
        ns = forward_ns + array("q", (forward_ns[-1] + ended - task_ns[0] for ended in task_ns[1::2]))
    return StepLevels(
        timeline.start_bytes,
        timeline.task_peaks,
        timeline.end_bytes,
        timeline.forward_peak_bytes,
        timeline.levels[1 : start + 1],
        ns,
        timeline.average_bytes,
    )


def allocated_levels(compute: Callable[[Step], T], device: torch.device | str = "cpu") -> tuple[T, StepLevels]:
    """Measure the memory that `compute` requests from torch's allocator for this device.

    Known limitations: those of `ProfiledAllocators`.

    Args:
        compute: the computation. It receives `step`, and must call it after the forward and after each step of the
            backward.

    Returns:
        The result of `compute`, and the levels.

    Raises:
        TypeError: If compute is not a function of one argument.
        ValueError: If it never called `step`.
        RuntimeError: If a torch profiler is running.
    """
    expect_callable(compute, 1, "compute", "a function of step: compute(step)")
    whose = measurable(torch.device(device))
    recorder = ProfiledAllocators()
    with recordings_ended():
        recorder.start()
        result = compute(recorder.mark)
        recorder.mark()
        with collector_paused():
            recording = recorder.stop([whose])[whose]
    levels, alive = array("q", [0]), dict[int, int]()
    for row in recording.rows:
        if row.nbytes > 0:
            alive[row.address] = row.nbytes
        freed = 0 if row.nbytes > 0 else alive.pop(row.address, 0)  # 0: allocated before
        levels.append(levels[-1] + max(row.nbytes, 0) - freed)
    *marks, end = (each.row for each in recording.marks)
    _assert_reported(marks)
    peaks = array("q", (max(levels[start : until + 1]) for start, until in pairwise(marks)))
    forward = levels[1 : marks[0] + 1]
    clock = [row.ns for row in recording.rows[: marks[0]]] + [each.ns for each in recording.marks[1:-1]]
    ns = array("q", (each - clock[0] for each in clock))
    average = mean_level(levels, [row.ns for row in recording.rows], recording.marks[0].ns, recording.marks[-1].ns)
    highest = max(levels[: marks[0] + 1])
    return result, StepLevels(levels[marks[0]], peaks, levels[end], highest, forward, ns, average)


def traced_levels(compute: Callable[[Step], T]) -> tuple[T, StepLevels]:
    """Measure the memory that Python allocates meanwhile with `tracemalloc`, to which NumPy reports its arrays.

    All threads and Python's own objects count, so the level means little for small arrays. In the average, the level at
    the end of a step counts for the whole step.

    Args, Returns, Raises: as for `allocated_levels`. If tracemalloc is already tracing, it continues, with its peak
    reset.
    """
    return levels_traced(lambda steps: compute(steps.step))


def levels_traced(compute: Callable[[TracedSteps], T]) -> tuple[T, StepLevels]:
    """Measure as `traced_levels` does, for a computation that also reports the steps of its forward."""
    steps = TracedSteps()
    ours = not tracemalloc.is_tracing()
    gc.collect()  # a collection during the computation would lower its levels
    if ours:
        tracemalloc.start()
    try:
        steps.begin()
        result = compute(steps)
        steps.step()
    finally:
        if ours:
            tracemalloc.stop()
    return result, steps.levels()


class TracedSteps:
    """The steps of a computation, each with the traced bytes at its end, their peak until then, and the time."""

    def begin(self) -> None:
        self._forward: list[tuple[int, int, int]] = []
        self._backward: list[tuple[int, int, int]] = []
        tracemalloc.reset_peak()
        self._before, _ = tracemalloc.get_traced_memory()
        self._began_ns = perf_counter_ns()

    def forward_step(self) -> None:
        """End a step of the forward. The part after the last one, until `step`, is another step."""
        self._note(self._forward)

    def step(self) -> None:
        """End the forward, or a step of the backward."""
        self._note(self._backward)

    def levels(self) -> StepLevels:
        """Return the levels; the last reported step is the end of the computation.

        Raises:
            ValueError: If no other step was reported.
        """
        *reported, (end, _, _) = self._backward
        _assert_reported(reported)
        first, *steps = reported
        forward = [*self._forward, first]
        return StepLevels(
            first[0] - self._before,
            array("q", (peak - self._before for _, peak, _ in steps)),
            end - self._before,
            max(peak for _, peak, _ in forward) - self._before,
            array("q", (peak - self._before for _, peak, _ in forward)),
            array("q", (ns - self._began_ns for _, _, ns in (*forward, *steps))),
            mean_level(
                [nbytes - self._before for nbytes, _, _ in (*steps, (end, 0, 0))],
                [ns for _, _, ns in steps],
                first[2],
                reported[-1][2],
            ),
        )

    def _note(self, steps: list[tuple[int, int, int]]) -> None:
        steps.append((*tracemalloc.get_traced_memory(), perf_counter_ns()))
        tracemalloc.reset_peak()


def _assert_reported(marks: Sequence[object]) -> None:
    if not marks:
        raise ValueError("compute never called step(); call it after the forward and after each step of the backward")
