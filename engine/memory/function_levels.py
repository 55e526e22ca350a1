"""The level of memory over the steps of any computation that tells where they end: a gradient written by hand, say.

In the terms of a `Timeline`: bytes requested since just before the forward, so that curves can be laid on each other.
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
from .timeline import Timeline

T = TypeVar("T")
Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class StepLevels:
    """Levels of memory, bytes.

    Attributes:
        start_bytes: as the backward starts.
        peaks: by step the highest level while it ran, in bytes, the level at its start included.
        end_bytes: when all is over: the gradients, and what else was returned.
        forward_peak_bytes: the highest of the forward.
        forward: by step of the forward the highest level while it ran. Of what tells none a step is what the allocator
            was asked for at once, or the whole.
        ns: when each step ended, those of the forward first, nanoseconds since just before it. Empty: not recorded.
    """

    start_bytes: int
    peaks: array[int]
    end_bytes: int
    forward_peak_bytes: int
    forward: array[int] = field(default_factory=lambda: array("q"))
    ns: array[int] = field(default_factory=lambda: array("q"), compare=False)

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
        raise ValueError("the forward of this timeline was not recorded: measure it with ts.profile(make_loss)")
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
    )


def allocated_levels(compute: Callable[[Step], T], device: torch.device | str = "cpu") -> tuple[T, StepLevels]:
    """What `compute` asks of torch's allocator for this device.

    Known limitations: those of `ProfiledAllocators`.

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
        freed = 0 if row.nbytes > 0 else alive.pop(row.address, 0)  # 0: it was there before
        levels.append(levels[-1] + max(row.nbytes, 0) - freed)
    *marks, end = (each.row for each in recording.marks)
    _assert_told(marks)
    peaks = array("q", (max(levels[start : until + 1]) for start, until in pairwise(marks)))
    forward = levels[1 : marks[0] + 1]
    clock = [row.ns for row in recording.rows[: marks[0]]] + [each.ns for each in recording.marks[1:-1]]
    ns = array("q", (each - clock[0] for each in clock))
    return result, StepLevels(levels[marks[0]], peaks, levels[end], max(levels[: marks[0] + 1]), forward, ns)


def traced_levels(compute: Callable[[Step], T]) -> tuple[T, StepLevels]:
    """What Python allocates meanwhile, by `tracemalloc`, to which NumPy reports its arrays.

    All threads count, and Python's own objects: of small arrays the level says little.

    Args, Returns, Raises: as `allocated_levels`; a tracing that is under way goes on, its peak set back.
    """
    return levels_traced(lambda steps: compute(steps.step))


def levels_traced(compute: Callable[[TracedSteps], T]) -> tuple[T, StepLevels]:
    """The same of what tells the steps of its forward, too."""
    steps = TracedSteps()
    ours = not tracemalloc.is_tracing()
    gc.collect()  # what dies of itself in the midst is not the computation's
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
    """The steps of a computation, each with what is traced at its end, the highest until there, and when that was."""

    def begin(self) -> None:
        self._forward: list[tuple[int, int, int]] = []
        self._backward: list[tuple[int, int, int]] = []
        tracemalloc.reset_peak()
        self._before, _ = tracemalloc.get_traced_memory()
        self._began_ns = perf_counter_ns()

    def forward_step(self) -> None:
        """A step of the forward is over. What comes after the last one, until `step`, is another."""
        self._note(self._forward)

    def step(self) -> None:
        """The forward is over, or a step of the backward."""
        self._note(self._backward)

    def levels(self) -> StepLevels:
        """The levels; what is told last is when all is over.

        Raises:
            ValueError: nothing else was told.
        """
        *told, (end, _, _) = self._backward
        _assert_told(told)
        first, *steps = told
        forward = [*self._forward, first]
        return StepLevels(
            first[0] - self._before,
            array("q", (peak - self._before for _, peak, _ in steps)),
            end - self._before,
            max(peak for _, peak, _ in forward) - self._before,
            array("q", (peak - self._before for _, peak, _ in forward)),
            array("q", (ns - self._began_ns for _, _, ns in (*forward, *steps))),
        )

    def _note(self, steps: list[tuple[int, int, int]]) -> None:
        steps.append((*tracemalloc.get_traced_memory(), perf_counter_ns()))
        tracemalloc.reset_peak()


def _assert_told(marks: Sequence[object]) -> None:
    if not marks:
        raise ValueError("step() was never called: it tells when the forward is done, and each step of the backward")
