"""Measures where the time of a loop's steps goes: data, forward, backward, optimizer, the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from threading import get_ident
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from ...inspector.torch_private.call_watchers import watching_batches
from .findings import PHASES, Finding, StepTime, seconds_text
from .follow_loop import BackwardGiven
from .loop_observers import LoopPart

if TYPE_CHECKING:
    from .training_result import Training

_DATA, _FORWARD, _BACKWARD, _OPTIMIZER, _REST = range(len(PHASES))
_LONG_WAIT_NS = 5e9  # of all steps, from which waiting for data is a finding: start-up and short runs are not
_LARGE_SHARE = 0.2
_MOST_PENDING = 8  # steps whose times a device may still have to reach
_MOST_MARKS = 256  # of the current step; a device lags behind by its launch queue of a thousand kernels at most

_Marks = list[tuple[int, torch.Event]]
"""The beginnings of phases on the device."""


class StepTimes(LoopPart):
    """Adds the time between two events of the loop to the phase between them.

    On an accelerator the phases are those of the device, between events on its stream: the loop itself only starts
    kernels. They are read when the device has reached them, so that nothing waits.
    """

    def __init__(self) -> None:
        self._phase = _REST
        self._row = [0.0] * len(PHASES)  # of the current step, in nanoseconds
        self._sums = [0.0] * len(PHASES)  # of all steps but the first
        self._steps = 0
        self._samples = 0  # of the counted steps
        self._fetched_samples = 0  # of the current step
        self._is_first = True
        self._in_optimizer = False
        self._workers = 0
        self._device: torch.device | None = None  # an accelerator
        self._marks: _Marks = []
        self._before_marks = [0.0] * len(PHASES)  # of the current step on the device, before the first of `_marks`
        self._pending: deque[tuple[_Marks, list[float], int]] = deque()  # the same of a step, and its samples
        self._stack = ExitStack()
        self._thread = get_ident()

    def begins(self, training: Training) -> None:
        self._training = training
        self._since = training.clock()
        self._stack.enter_context(watching_batches(self._fetched, self._waiting))

    def ends(self) -> None:
        self._stack.close()
        self._find_waiting()

    def _enter(self, phase: int) -> None:
        now = self._training.clock()
        self._row[self._phase] += now - self._since
        self._since, self._phase = now, phase
        if self._device is not None and not _is_captured(self._device):
            event = torch.Event(device=self._device, enable_timing=True)
            event.record()
            self._marks.append((phase, event))
            half = _MOST_MARKS // 2
            if len(self._marks) > _MOST_MARKS and self._marks[half][1].query():  # a long evaluation with grad mode on
                _add_times(self._before_marks, self._marks[: half + 1])
                del self._marks[:half]

    @contextmanager
    def _waiting(self, workers: int) -> Iterator[None]:
        if get_ident() != self._thread or not torch.is_grad_enabled():  # it prefetches, or is for an evaluation
            yield
            return
        before, self._workers = self._phase, workers
        self._enter(_DATA)
        try:
            yield
        finally:
            self._enter(before)

    def _fetched(self, batch: object) -> None:
        if get_ident() == self._thread and torch.is_grad_enabled():
            sizes = (each.shape[0] for each in tree_leaves(batch) if isinstance(each, Tensor) and each.dim())
            self._fetched_samples += next(sizes, 0)

    def forward_begins(self, module: nn.Module, given: tuple[object, ...]) -> None:
        if self._device is None and self._is_first and torch.accelerator.is_available():
            parameter = next(module.parameters(), None)
            if parameter is not None and parameter.device.type not in ("cpu", "meta"):
                with suppress(RuntimeError, NotImplementedError):  # not every backend has events with times
                    torch.Event(device=parameter.device, enable_timing=True).record()
                    self._device = parameter.device
        self._enter(_FORWARD)

    def backward_begins(self, given: BackwardGiven) -> None:
        self._enter(_BACKWARD)

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        self._enter(_OPTIMIZER if self._in_optimizer else _REST)  # an optimizer may run its closure several times

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        self._in_optimizer = True
        self._enter(_OPTIMIZER)

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self._in_optimizer = False
        self._enter(_REST)

    def step_begins(self, number: int) -> None:
        """Count the step before. What follows the last step, such as saving a checkpoint, belongs to none."""
        if number == 0:
            return
        self._enter(self._phase)
        if self._device is not None:
            self._read_device()
        elif not self._is_first:
            self._count(self._row, self._fetched_samples)
        self._row, self._fetched_samples = [0.0] * len(PHASES), 0
        self._is_first = False
        if number & (number - 1) == 0:  # 1, 2, 4, 8, ...
            self._find_waiting()

    def _read_device(self) -> None:
        """Keep the events of this step, and count the steps whose events the device has reached."""
        if not self._is_first and len(self._marks) > 1 and len(self._pending) < _MOST_PENDING:
            self._pending.append((self._marks, self._before_marks, self._fetched_samples))
        self._marks, self._before_marks = self._marks[-1:], [0.0] * len(PHASES)
        if self._device is not None and _is_captured(self._device):
            return
        while self._pending and self._pending[0][0][-1][1].query():
            marks, row, samples = self._pending.popleft()
            if _add_times(row, marks):
                self._count(row, samples)

    def _count(self, row: list[float], samples: int) -> None:
        self._samples += samples
        self._sums = [total + each for total, each in zip(self._sums, row, strict=True)]
        self._steps += 1
        seconds = {name: total / self._steps / 1e9 for name, total in zip(PHASES, self._sums, strict=True)}
        whole = sum(self._sums) / 1e9
        rate = self._samples / whole if self._samples and whole else None
        self._training.step_time = StepTime(seconds, self._steps, rate, str(self._device or "cpu"))

    def _find_waiting(self) -> None:
        time = self._training.step_time
        if time is None or self._sums[_DATA] < max(_LONG_WAIT_NS, _LARGE_SHARE * sum(self._sums)):
            return
        waits = f"{seconds_text(time.seconds['data'])} of {seconds_text(time.total)}"
        remedy = (
            f"It has num_workers={self._workers}: use more of them, or make __getitem__ and collate_fn cheaper"
            if self._workers
            else "It has num_workers=0, so the training process makes the batches: set num_workers"
        )
        sentence = (
            f"{time.share('data')} of a step waits for the DataLoader ({waits}, on average over {time.steps:,} steps). "
            f"{remedy}."
        )
        self._training.update(Finding("data wait", 1, sentence, last_step=time.steps))


def _add_times(row: list[float], marks: _Marks) -> bool:
    """Add the times between marks that the device has reached; return whether the events have times."""
    with suppress(RuntimeError):
        for (phase, begin), (_, end) in pairwise(marks):
            row[phase] += 1e6 * begin.elapsed_time(end)
        return True
    return False


def _is_captured(device: torch.device) -> bool:
    """Return whether a CUDA graph is being captured, in which events may be neither recorded nor queried."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
