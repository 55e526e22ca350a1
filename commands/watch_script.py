"""The watching of a script by `tapescope run`: a training loop, and the memory of one of its steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Any

from torch import Tensor

from ..engine.api.restore_state import open_contexts
from ..engine.training.findings import Finding, seconds_text
from ..engine.training.follow_loop import BackwardGiven, RunBackward
from ..engine.training.loop_observers import LoopPart, TrainingWatch
from ..engine.training.record_steps import record_steps
from ..engine.training.step import TrainingStep
from ..engine.training.training import training
from ..engine.training.training_result import Training
from ..inspector.text.sizes_and_counts import counted
from ..inspector.torch_private.engine import surround_backward
from .command_arguments import ProgressLine, is_terminal

_PROGRESS_S = 0.2  # between two updates of the progress line


class _ScriptProgress(LoopPart):
    """Shows the steps of a script in a line on stderr, if that is a terminal.

    What the script prints removes the line first, and none is shown while the script's own line is unfinished, such as
    a progress bar.
    """

    def __init__(self, name: str, training: Training) -> None:
        self._name = name
        self._watched = training
        self._line = ProgressLine()
        self.is_on_terminal = self._line.is_on_terminal
        self._next_s = 0.0
        self._is_shown = False
        self._is_writing = False  # the line, by this object
        self._is_unfinished = False
        self._restore = ExitStack()

    def begins(self, training: Training) -> None:
        for stream in (sys.stdout, sys.stderr):
            if self.is_on_terminal and is_terminal(stream) and "write" not in getattr(stream, "__dict__", "write"):
                self._restore.callback(delattr, stream, "write")
                stream.write = partial(self._write, stream.write)  # type: ignore[method-assign]

    def _write(self, write: Callable[[str], int], text: str) -> int:
        if text and not self._is_writing:
            self._clear()
            self._is_unfinished = not text.endswith("\n")
        return write(text)

    def _clear(self) -> None:
        if self._is_shown:
            self._is_shown = False
            self._is_writing = True
            try:
                self._line.clear()
            finally:
                self._is_writing = False

    def step_ends(self, number: int) -> None:
        now = monotonic()
        if now < self._next_s or self._is_unfinished:
            return
        self._next_s = now + _PROGRESS_S
        found = counted(len(self._watched.findings), "finding")
        time = self._watched.step_time
        each = "" if time is None else f", {seconds_text(time.total)} a step"
        self._is_writing = self._is_shown = True
        try:
            self._line.show(f"tapescope: step {number} of {self._name}, {found}{each}")
        finally:
            self._is_writing = False

    def ends(self) -> None:
        self._clear()
        self._restore.close()


class _StepClock(TrainingWatch):
    """Counts the steps of a loop, and calls functions when a step's first backward has ended.

    At other events torch iterates over its hooks, and functions that add hooks would break this.
    """

    def __init__(self, training: Training, progress: LoopPart) -> None:
        super().__init__(training, [progress])
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def at(self, step: int, action: Callable[[], None]) -> None:
        """Call a function after the first backward of this step."""
        self._waiting.append((step, action))

    def _backward(self, run: RunBackward, given: BackwardGiven) -> tuple[Tensor, ...]:
        result = super()._backward(run, given)
        due = [action for step, action in self._waiting if step <= self.number]
        self._waiting = [each for each in self._waiting if each[0] > self.number]
        for action in due:
            action()
        return result


class ScriptWatch:
    """Watches the script in this thread: findings of its training loop, and the memory of a step.

    Args:
        name: the script, for messages.
        every: the interval of expensive measurements, in steps.
        black_box: the folder for bad steps, or None.
        steps: the first step to report, and the step to stop at, or None for all that follow. Watching begins with the
            first step of all, since a leak shows in the steps after it.
        profile: the step whose memory is recorded, or None.

    Attributes:
        training: the watched loop.
        profiled: the recorded step, when watching has stopped.
    """

    def __init__(
        self, name: str, every: int, black_box: str | None, steps: tuple[int, int | None], profile: int | None
    ) -> None:
        self._name = name
        self._first, self._end = steps
        self._profile = profile
        self.training = training(every=every, black_box=black_box)
        self.profiled: TrainingStep | None = None
        self._progress = _ScriptProgress(name, self.training)
        self._clock = _StepClock(self.training, self._progress)
        self._recorded: record_steps | None = None
        self._recording = ExitStack()
        self._exits = ExitStack()
        self._thread = get_ident()
        self._backwards = {True: 0, False: 0}  # in this thread, and in others

    def start(self) -> None:
        """Start watching."""
        self._exits.callback(surround_backward(self._count))
        self.training.start()
        if self._end is not None or self._profile is not None or self._progress.is_on_terminal:
            self._clock.start(self._exits)
        if self._end is not None:
            self._clock.at(self._end, self.training.stop)
        if self._profile == 1:
            self._record()
        elif self._profile is not None:
            self._clock.at(self._profile - 1, self._record)

    def _count(self, run: RunBackward, *given: Any) -> tuple[Tensor, ...]:
        if not open_contexts():  # a verb such as ts.compare undoes its own backwards
            self._backwards[get_ident() == self._thread] += 1
        return run()

    def _record(self) -> None:
        """Record two steps; `record_steps` follows the second one task by task."""
        try:
            self._recorded = self._recording.enter_context(record_steps(steps=2))
        except RuntimeError as error:
            self.training.note(f"step {self._profile} was not recorded: {error}")

    def stop(self, error: BaseException | None) -> None:
        """Stop watching. `error` is the exception that ended the script; exiting is not one."""
        left = None if isinstance(error, SystemExit) else error
        try:
            self._recording.close()
        finally:
            self.training.__exit__(
                None if left is None else type(left), left, None if left is None else left.__traceback__
            )
            self._clock.end(None)
            self._exits.close()
        if self._recorded is not None and len(self._recorded) > 1:
            self.profiled = self._recorded[1]

    @property
    def findings(self) -> list[Finding]:
        """The findings in the steps to report."""
        return [each for each in self.training.findings if max(each.step, each.last_step or 0) >= self._first]

    def sentences(self, error: BaseException | None) -> list[str]:
        """Return the report: the steps, each finding, the notes, and the peak of the recorded step."""
        nothing = self._nothing(error)
        if nothing is not None:
            return [nothing]
        found = counted(len(self.findings), "finding")
        lines = [f"{counted(self.training.steps, 'step')} of {self._name} watched: {found}"]
        if self._first:
            lines[0] += f" from step {self._first} on"
        for each in self.findings:
            last = "" if each.last_step in (None, each.step) else f" to {each.last_step}"
            likely = "" if each.certain else ", likely"
            lines.append(f"step {each.step}{last}, {each.kind}{likely}: {each.sentence}")
        if self.training.step_time is not None:
            lines.append(str(self.training.step_time))
        lines += self.training.notes
        if self.profiled is not None:
            lines.append(f"memory of step {self._profile}:\n{self.profiled.peak()}")
        elif self._profile is not None:
            lines.append(
                f"step {self._profile} was not recorded: {self._name} made {counted(self._clock.number, 'step')}"
            )
        return lines

    def _nothing(self, error: BaseException | None) -> str | None:
        """Return why no step was watched, or None."""
        if self.training.steps:  # also of backwards that ts.debug steps, which PyTorch's engine does not run here
            return None
        here, elsewhere = self._backwards[True], self._backwards[False]
        if not here and error is not None and not isinstance(error, SystemExit):
            return f"{self._name} raised {type(error).__name__} before its first backward(), so no step was watched"
        if not here and elsewhere:
            return f"{self._name} called backward() only in other threads, so no step was watched"
        if not here:
            return (
                f"{self._name} never called backward() in this process, so no step was watched; if it starts others, "
                "start each of them with tapescope run"
            )
        called = f"{self._name} called backward() {counted(here, 'time')}"
        return (
            f"{called}, but no torch.optim.Optimizer stepped after it, so no step was watched. A step is one of "
            "torch.optim.Optimizer or of a class derived from it; in a loop that updates parameters itself, put "
            "`with ts.training() as training:` around the loop and call training.step() at the end of each step"
        )

    def content(self) -> dict[str, Any]:
        """Return the findings as JSON content."""
        return {
            "steps": self.training.steps,
            "findings": self.findings,
            "notes": self.training.notes,
            "step_time": self.training.step_time,
            "peak_bytes": None if self.profiled is None else self.profiled.peak_bytes,
        }
