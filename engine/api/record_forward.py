"""Recording a forward, and timing its operations: `record_forward(make_loss)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import nn

from ...inspector.capture.build_graph import read_graph
from ...inspector.capture.capture import capture
from ...inspector.capture.forward_program import ForwardProgram
from ...inspector.capture.forward_recorder import ForwardRecorder
from ...inspector.text.progress import telling
from ...inspector.torch_private.compiled import keep_compiler_out
from ...inspector.torch_private.operators import Operator, SeenOperations
from ...inspector.torch_private.sequence_numbers import sequence_nr
from ...inspector.validation import expect_model
from ..schedule.ddp_buckets import nothing_reduced
from .make_loss import (
    MakeLoss,
    expect_make_loss,
    for_all,
    nothing_sharded,
    real_loss_of,
    refuse_whole_step,
    same_flags,
    same_random_numbers,
)
from .restore_state import AsFound


def record_forward(make_loss: MakeLoss, repetitions: int = 3, *, model: nn.Module | None = None) -> ForwardProgram:
    """Runs a forward to see of which operations it consists, and again to time them. No backward runs.

    It leaves nothing behind: random numbers go on as if no forward had run, what a forward writes of what was there
    before (the running statistics of a batch-norm) and keeps in Python is put back (see `AsFound`), and
    DistributedDataParallel prepares no reduction.

    Args:
        make_loss: runs the forward and returns the loss, one element.
        repetitions: how often it is timed with nobody watching, and how often operation by operation. The shortest
            times count.
        model: names modules and parameters after this module, where the forward calls parts of it and never itself;
            several are one `nn.ModuleDict({"G": generator, "D": critic})`. None: after each outermost module that is
            called.

    Raises:
        TypeError, ValueError: make_loss is no function, or gave no loss; model is no module; repetitions is no number
            from 1 on.
        RuntimeError: the loss has no graph; and what the forward raises.
        NotImplementedError: it calls what torch.compile has compiled, or disables saved_tensors_hooks.

    Known limitations: what other threads compute is not seen, and counts as there before.
    """
    expect_make_loss(make_loss, "ts.record_forward")
    expect_model(model)
    with AsFound(make_loss, "ts.record_forward") as world:
        world.watch(backward=False)
        return recorded_in(world, repetitions, model)


def recorded_in(world: AsFound, repetitions: int, model: nn.Module | None) -> ForwardProgram:
    """`record_forward` for a program of which a watched run has shown what it changes."""
    if not isinstance(repetitions, int) or repetitions < 1:
        raise ValueError(
            f"repetitions is how often the forward is timed, a whole number from 1 on, not {repetitions!r}"
        )
    with telling(None, "recording", timed=True) as tell, nothing_reduced(), nothing_sharded("recording a forward"):
        tell("a forward")
        names = capture(model, every_call=True)
        recorder = ForwardRecorder(names)
        try:
            with same_random_numbers(), same_flags(), names, recorder:
                since = sequence_nr()
                loss = real_loss_of(world.make_loss())
            refuse_whole_step(loss, since)
            program = recorder.program(read_graph(loss))
            del loss
            operators = recorder.operators
            tell("how long each operation takes")
            rounds = [_operation_times(world, recorder, operators) for _ in range(repetitions)]
            tell("how long it takes")
            seconds = min(_forward_seconds(world, recorder) for _ in range(repetitions))
        finally:
            for_all((recorder.restore, world.put_back), lambda step: step())
        world.carried.tell()
    times = [each for each in rounds if each is not None]
    notes: tuple[str, ...] = ()
    if len(times) < len(rounds):
        notes = ("The forward runs other operations each time: where they differ from the first run's, nothing fits.",)
        times = times or [[each.seconds for each in program.operations]]
    operations = [
        replace(each, seconds=min(taken))
        for each, taken in zip(program.operations, zip(*times, strict=True), strict=True)
    ]
    return replace(program, operations=tuple(operations), seconds=seconds, notes=notes)


def clock_of(accelerated: bool) -> Callable[[], float]:
    """Seconds: of this thread alone where the CPU computes, so that other programs do not count."""
    return perf_counter if accelerated else thread_time


class _Stopwatch(SeenOperations):  # type: ignore[no-untyped-call]
    """Takes the time of each operation."""

    def __init__(self, accelerated: bool) -> None:
        super().__init__()
        self.operators: list[Operator] = []
        self.seconds: list[float] = []
        self._accelerated = accelerated
        self._clock = clock_of(accelerated)

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.operators.append(operator)
        if self._accelerated:
            torch.accelerator.synchronize()
        began = self._clock()
        try:
            result = operator(*args, **kwargs)
            if self._accelerated:
                torch.accelerator.synchronize()
        finally:
            self.seconds.append(self._clock() - began)
        return result


def _find_the_same(world: AsFound, recorder: ForwardRecorder) -> None:
    """The next forward finds what the first one found; if that can't be, it is said."""
    recorder.restore()
    world.put_back()
    world.carried.tell()


def _operation_times(world: AsFound, recorder: ForwardRecorder, operators: list[Operator]) -> list[float] | None:
    """Return the seconds of each operation in one more forward; None if it runs other operations."""
    _find_the_same(world, recorder)
    with same_random_numbers(), same_flags(), _Stopwatch(recorder.accelerated) as watch:
        world.make_loss()
    return watch.seconds if watch.operators == operators else None


def _forward_seconds(world: AsFound, recorder: ForwardRecorder) -> float:
    """How long one more forward takes."""
    _find_the_same(world, recorder)
    with same_random_numbers(), same_flags():
        if recorder.accelerated:
            torch.accelerator.synchronize()
        clock = clock_of(recorder.accelerated)
        began = clock()
        loss = world.make_loss()
        if recorder.accelerated:
            torch.accelerator.synchronize()
        taken = clock() - began
    del loss  # what freeing the graph takes is not the forward's
    return taken


keep_compiler_out(record_forward)
