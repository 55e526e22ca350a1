"""`ts.record_steps` and `ts.profile_step`: the memory of whole training steps, in an unchanged loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

import torch
from torch import Tensor, nn

from ...inspector.capture.capture import capture
from ...inspector.capture.interrupt_safe_stack import Opened
from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.operations_and_calls import CallRecord, Operation
from ...inspector.renderers import drawn, saved
from ...inspector.text.progress import Tell, telling
from ...inspector.text.report import ShownAsTable
from ...inspector.text.sizes_and_counts import nth, size_text
from ...inspector.torch_private.allocators import begin_recording, leaving_out
from ...inspector.torch_private.compiled import keep_compiler_out
from ...inspector.torch_private.nodes import ready_for_new_nodes
from ...inspector.validation import expect_callable, expect_model, expect_number
from ..execution.unsupported import refuse_transforms
from ..memory.allocator_events import CPU, AllocatorRecording
from ..memory.allocator_recording import RecordedAllocators
from ..memory.baseline import OLDER_THAN_RECORDING
from ..session.error_notes.explain_error import errors_explained, explain_error
from .follow_loop import BackwardGiven, RunBackward
from .memory_census import Holders, Walked
from .step import TrainingStep
from .step_backward import BackwardFollower, StepBackwards
from .step_memory import BETWEEN, FORWARD
from .step_phases import StepPhases, Window, with_forwards

_FEWEST, _MOST = 2, 10
_MOST_CALLS = 9
_IN_A_ROW = 3
_NOT_FOLLOWED = "only step {} of the recording is traced task by task"


class LoopRecording:
    """Records allocator events over a loop, marks the loop's phases, and traces one of its steps task by task.

    The profiler reports no addresses for the engine's own threads, one for each accelerator. While recording, the
    calling thread therefore runs the tasks of all devices with a single queue.

    Args:
        wanted: the number of steps; None: all that are reported.
        followed: the number of the traced step, from 0.
        model: the model that names modules, see `ts.capture`.
    """

    def __init__(self, wanted: int | None, followed: int, model: nn.Module | None = None) -> None:
        self._recorder = RecordedAllocators.of_all()
        self._marks = 0
        self._holders = Holders()
        self._follower = BackwardFollower(self.mark)
        self._capture = capture(model, self._observe)
        self._followed = followed
        self.watch = StepPhases(self._holders, self, wanted)
        self._open: ExitStack | None = None
        self._following: ExitStack | None = None
        self._recorded: dict[torch.device, AllocatorRecording] = {}
        self._parameters: Walked = {}

    def start(self, stack: ExitStack) -> None:
        """Start recording. `stack` removes the hooks."""
        caller = begin_recording(
            "a recording of steps (ts.record_steps, ts.profile_step)",
            ", so whole steps can't be recorded inside of another measurement",
        )
        self._open = ExitStack()
        stack.callback(self.complete)
        self._open.callback(setattr, caller, "ended", True)
        self._open.callback(self._recorder.close)  # an interrupt may come as soon as it has begun
        self._recorder.start()
        self._open.callback(self._stop_recorder)
        self._open.enter_context(ready_for_new_nodes())  # an optimizer may step, and so end a step, during a backward
        self._open.enter_context(leaving_out(self._apart))
        self.watch.install_hooks(self._open)
        self._open.callback(self._follow_no_more)

    @contextmanager
    def _apart(self) -> Iterator[None]:
        first = self.mark()
        try:
            yield
        finally:
            self._follower.apart.append((first, self.mark()))

    def _stop_recorder(self) -> None:
        with ExitStack() as each:
            each.callback(self._recorder.close)
            self._parameters = self._holders.parameters()
            devices = {CPU, *self._holders.devices}
            self._recorder.keep(devices)
            with collector_paused():
                self._recorded = self._recorder.stop(devices)

    def complete(self) -> None:
        """Remove the hooks and release the model, which the steps must not keep alive."""
        if self._open is not None:
            self._open.close()
            self._open = None  # Ctrl-C before this leaves the rest to the next call
            self._capture = capture(every_call=True)

    def mark(self) -> int:
        self._recorder.mark()
        self._marks += 1
        return self._marks - 1

    def backward(self, run: RunBackward, given: BackwardGiven) -> tuple[Tensor, ...]:
        several = torch.accelerator.current_accelerator(check_available=True) is not None
        with torch.autograd.set_multithreading_enabled(False) if several else nullcontext():
            return run() if self._following is None else self._follower.backward(run, given)

    def forward_begins(self) -> None:
        if self._following is not None:
            self._capture.renew()

    def stepped(self) -> None:
        """Prepare for the next step, because a step that an optimizer ends is recognized only afterwards.

        The capture forgets the modules here, so that a model created in the step is freed with it.
        """
        if self._following is not None:
            self._capture.renew()
        if self.watch.wanted is not None and len(self.watch.steps) <= self._followed:
            self._follow()

    def step_begins(self, number: int) -> None:
        if number == self._followed:
            self._follow()
        elif number > self._followed:
            self._follow_no_more()

    def _follow(self) -> None:
        if self._following is None:
            self._following = ExitStack()
            self._following.enter_context(self._capture)

    def _follow_no_more(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.close()

    def _observe(self, made: Operation | CallRecord, result: object, arguments: Sequence[object]) -> None:
        if self.watch.phase in (FORWARD, BETWEEN):  # but not during an optimizer step
            self._follower.observe(made, result, arguments)

    def steps(self) -> list[TrainingStep]:
        """The complete steps."""
        if not self._recorded:
            return []
        with collector_paused():
            return list(self._read())

    def _read(self) -> Iterator[TrainingStep]:
        watch = self.watch
        ends = [each.first for each in watch.steps[1:]] + [len(watch.moments) - 1]
        ended = len(watch.steps) - 1 if watch.by_hand else watch.wanted  # with step(), the last one has not ended
        spans = list(zip(watch.steps, ends, strict=True))[:ended]
        windows = self._windows([(seen.first, end) for seen, end in spans])
        before: TrainingStep | None = None
        for number, (seen, end) in enumerate(spans):
            if not (seen.optimizers or seen.skipped or watch.by_hand) and watch.wanted is not None:
                continue  # an event after the last step
            timelines = {device: window.timeline(seen.first, end) for device, window in windows.items()}
            why = "" if number == self._followed else _NOT_FOLLOWED.format(self._followed)
            backwards = StepBackwards(windows, timelines, seen.first, end, self._follower, why)
            step = TrainingStep(number, timelines, tuple(seen.optimizers), tuple(seen.skipped), _backwards=backwards)
            if before is not None:
                step = replace(step, like_before=are_alike(before, step))
            yield step
            before = step

    def _windows(self, spans: Sequence[tuple[int, int]]) -> dict[str, Window]:
        """Return the recording of each device, accelerators first, the one with the highest peak in front."""
        moments = with_forwards(self.watch.moments, [each.first for each in self.watch.steps])
        windows = [
            Window(recorded, moments, self._holders.nbytes, self._parameters, device, self._follower.apart)
            for device, recorded in self._recorded.items()
        ]

        def place(window: Window) -> tuple[bool, int]:
            return window.device == CPU, -max((window.timeline(*span).peak_bytes for span in spans), default=0)

        ordered = windows if len(windows) == 1 else sorted(windows, key=place)
        return {str(each.device): each for each in ordered}


def are_alike(one: TrainingStep, other: TrainingStep) -> bool:
    """Return whether two steps have the same phases with equal peaks, and neither was skipped."""
    first, second = (
        [(device, each.phase, each.nbytes) for device, timeline in step.timelines.items() for each in timeline.peaks]
        for step in (one, other)
    )
    return first == second and not one.skipped and not other.skipped and not other.state_made


class record_steps(ShownAsTable, Sequence[TrainingStep]):
    """Record the first steps of an unchanged training loop: `with ts.record_steps(steps=3) as steps:`.

    A step is forward, backward, clipping, `optimizer.step` and the time until the next forward; with several optimizers
    it ends before one of them steps again. Steps are detected by torch's own hooks of modules, backwards and
    optimizers. After the requested number of steps all hooks are removed, and the loop continues. `steps[1]` is the
    second step; the first one creates the optimizers' state and differs from later ones. A loop without a torch
    optimizer ends its steps by `steps.step()`.

    Args:
        steps: the number of steps, from 2 to 10. Each allocator event takes about 1.9 kB until it is processed, and a
            step has a few thousand of them.
        model: the module that names modules and parameters, for a forward that calls only parts of it; use
            `nn.ModuleDict({"G": generator, "D": critic})` for several. None: names start at each outermost module.

    Raises:
        TypeError, ValueError: if the argument is not such a number.
        RuntimeError: memory is already being measured, or a torch profiler is running.

    The memory of the CPU is recorded, and that of each accelerator on which the loop has parameters, gradients or
    state: `steps[1].timelines`. Backwards on accelerators run in the calling thread while they are recorded.

    Known limitations: only the thread that opened it is recorded, with the backwards that it starts. Memory from before
    that is not a parameter, a buffer, a gradient or optimizer state is not counted, as each step reports. Releases of
    memory older than the recording are noticed at the start of the next phase. On accelerators the sizes are those of
    allocator blocks, which can be larger than requested, except for the single CUDA device of a process.
    """

    def __init__(self, steps: int = 3, *, model: nn.Module | None = None) -> None:
        expect_model(model)
        expect_number(steps, int, "steps", f"how many steps to record, {_FEWEST} to {_MOST}")
        if steps < _FEWEST:
            raise ValueError(
                f"steps is {steps}; expected {_FEWEST} to {_MOST}: the first step creates the optimizer's state, so "
                "later ones differ from it"
            )
        if steps > _MOST:
            raise ValueError(
                f"steps is {steps}; expected {_FEWEST} to {_MOST}: each allocator event takes about 1.9 kB until it "
                f"is processed, which for more than {_MOST} steps would distort the measurement"
            )
        self._wanted, self._model = steps, model
        self._opened: Opened | None = None
        self._recording: LoopRecording | None = None
        self._steps: list[TrainingStep] = []

    def __enter__(self) -> Self:
        if self._opened is not None:
            raise RuntimeError("these steps are being recorded already; create a new ts.record_steps()")
        self._steps = []
        self._recording = LoopRecording(self._wanted, 1, self._model)
        self._opened = Opened(self, self._recording.start)
        self._recording.watch.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        recording, self._recording = self._recording, None
        if opened is None or recording is None:
            return
        if error is not None:
            explain_error(error)
        try:
            recording.watch.end()
        finally:
            opened.close(kind, error, traceback)
        with telling(None, "reading what was recorded") as tell:
            tell("assigning memory to steps")
            self._steps = recording.steps()

    def step(self) -> None:
        """End the current step. After the first call, steps no longer end by themselves.

        A loop that updates its parameters without a torch optimizer, for example in hooks of the backward, calls this
        at the end of each step.

        Raises:
            RuntimeError: the steps are not being recorded.
        """
        if self._recording is None:
            raise RuntimeError("these steps are not being recorded: call step() inside the `with` block")
        self._recording.watch.next_step()

    def to_pandas(self) -> Any:
        """Return all steps as a pandas.DataFrame with a row for each phase, as in `TrainingStep.to_pandas`.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        return drawn("steps as a table", self._steps)

    def save_perfetto(self, path: str | PathLike[str]) -> Path:
        """Write all steps, one after the other, in the form of `TrainingStep.save_perfetto`.

        Raises:
            TypeError: if `path` is not a path.
            ValueError: no step has been recorded.
            OSError: if the file cannot be written.
        """
        return saved("steps for Perfetto", self._steps, path)

    def __len__(self) -> int:
        """Return the number of steps: 0 until the block ends."""
        return len(self._steps)

    def __bool__(self) -> bool:
        """Return whether there are steps, or the recording block is still open."""
        return self._opened is not None or bool(self._steps)

    @overload
    def __getitem__(self, number: int) -> TrainingStep: ...

    @overload
    def __getitem__(self, number: slice) -> list[TrainingStep]: ...

    def __getitem__(self, number: int | slice) -> TrainingStep | list[TrainingStep]:
        if self._opened is not None:
            raise RuntimeError("read the steps after the `with` block of ts.record_steps() has ended")
        if isinstance(number, int) and not -len(self) <= number < len(self):
            seen = (
                f"{len(self)} were recorded"
                if len(self)
                else "none was recorded: no optimizer has stepped, and step() was not called"
            )
            raise IndexError(f"step {number} was not recorded; {seen}")
        return self._steps[number]

    def __repr__(self) -> str:
        if self._opened is not None:
            return f"<record_steps: up to {self._wanted} steps are being recorded>"
        if not self._steps:
            return "<record_steps: no step was recorded>"
        highest = max(self._steps, key=lambda step: step.peak_bytes)
        return (
            f"<record_steps: {len(self)} steps, the highest peak {size_text(highest.peak_bytes)}, "
            f"in step {highest.number}>"
        )

    def __str__(self) -> str:
        return super().__str__() if self._steps else "\n".join(self.sentences)  # no headings for an empty table

    words = ("step", "at its highest in", "optimizers")
    html = "phases as HTML"

    @property
    def cells(self) -> list[list[str]]:
        rows = [["step", "peak", "at its highest in", "state", "events", "optimizers"]]
        for step in self._steps:
            stepped = ", ".join([*step.optimizers, *(f"{each} (left out)" for each in step.skipped)])
            state = size_text(step.timeline.parts_at(len(step.timeline.events)).get("optimizer state", 0))
            peak = step.timeline.peak_phase.name
            rows.append(
                [
                    str(step.number),
                    size_text(step.peak_bytes),
                    peak,
                    state,
                    f"{len(step.timeline.events):,}",
                    stepped,
                ]
            )
        return rows

    @property
    def sentences(self) -> list[str]:
        if not self._steps and self._opened is None:
            return [
                "Nothing was recorded: no optimizer.step() was seen. Without a torch optimizer, call step() on this "
                "recording at the end of each step."
            ]
        found = [f"Step {step.number}: {said}" for step in self._steps for said in step._apart()]
        return [*found, OLDER_THAN_RECORDING] if self._steps else found


def profile_step(function: Callable[[], Any], *, model: nn.Module | None = None) -> TrainingStep:
    """Run a training step repeatedly until two consecutive runs are alike, and return the last one.

    The first step creates the optimizers' state, so two consecutive steps have to be alike, phase by phase: usually
    three are run, at most nine. They are real steps that train the model.

    Args:
        function: runs one step: forward, backward, clipping, optimizer.step and zero_grad, in any order.
        model: the module that names modules and parameters, for a forward that calls only parts of it; use
            `nn.ModuleDict({"G": generator, "D": critic})` for several. None: names start at each outermost module.

    Returns:
        The steady step. `like_before` is False if no two consecutive steps were alike; the result is then the last one.

    Raises:
        TypeError: function is not callable.
        ValueError: no optimizer stepped in it.
        RuntimeError: memory is already being measured, or a torch profiler is running. Also raises the function's
            errors.
        NotImplementedError: the model is on a device whose memory cannot be measured, such as "meta".
    """
    refuse_transforms("ts.profile_step")
    expect_callable(function, 0, "function", "a function that runs one whole training step")
    expect_model(model)
    with telling(None, "profiling a step") as tell:
        return _profiled(function, model, tell)


def _profiled(function: Callable[[], Any], model: nn.Module | None, tell: Tell) -> TrainingStep:
    ran, step = 0, None
    while ran < _MOST_CALLS:
        recording = LoopRecording(None, _IN_A_ROW - 1, model)
        with errors_explained(), ExitStack() as stack:
            recording.start(stack)
            for number in range(_IN_A_ROW):
                tell(f"the {nth(ran + number + 1)} of {_MOST_CALLS} at most")
                recording.watch.begin_step()
                function()
            recording.watch.end()
        tell("what they took")
        steps = [replace(each, number=ran + each.number) for each in recording.steps()]
        if not any(each.optimizers or each.skipped for each in steps):
            raise ValueError(
                "no optimizer stepped in the function; expected one whole step, including optimizer.step(); "
                "ts.profile(make_loss) measures a forward and its backward"
            )
        step = steps[-1]
        if step.like_before:
            return step
        ran += _IN_A_ROW
    assert step is not None
    return step


keep_compiler_out(profile_step)
