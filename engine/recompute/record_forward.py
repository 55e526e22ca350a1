"""`record_forward(make_loss)`: recording a forward, and timing its operations."""

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
from ..api.make_loss import (
    MakeLoss,
    expect_make_loss,
    for_all,
    nothing_sharded,
    real_loss_of,
    refuse_whole_step,
    same_flags,
    same_random_numbers,
)
from ..api.restore_state import AsFound
from ..schedule.ddp_buckets import nothing_reduced


def record_forward(make_loss: MakeLoss, repetitions: int = 3, *, model: nn.Module | None = None) -> ForwardProgram:
    """Run a forward to record its operations, and again to time them. No backward runs.

    Everything is restored: random number generators, tensors that the forward modifies (such as the running statistics
    of a batch norm), and Python state (see `AsFound`). DistributedDataParallel does not prepare a reduction.

    Known limitations: computations of other threads are not recorded, and their results count as inputs.

    Args:
        make_loss: runs the forward and returns the loss, one element.
        repetitions: how often the forward is timed as a whole, and how often operation by operation. The shortest times
            are used.
        model: the module from which modules and parameters are named, needed if the forward calls only parts of it;
            pass several as one `nn.ModuleDict({"G": generator, "D": critic})`. None names them from each outermost
            module called.

    Returns:
        The operations and their times.

    Raises:
        TypeError: `make_loss` is not a function or returned no tensor; or `model` is not a module.
        ValueError: the loss does not have one element, or `repetitions` is not a whole number of at least 1.
        RuntimeError: the loss has no graph; and any error of the forward.
        NotImplementedError: the forward calls code compiled by torch.compile, or disables saved_tensors_hooks.
    """
    expect_make_loss(make_loss, "ts.record_forward")
    expect_model(model)
    with AsFound(make_loss, "ts.record_forward") as world:
        world.watch(backward=False)
        return recorded_in(world, repetitions, model)


def recorded_in(world: AsFound, repetitions: int, model: nn.Module | None) -> ForwardProgram:
    """Record a forward whose state changes a watched run has shown; see `record_forward`."""
    if not isinstance(repetitions, int) or repetitions < 1:
        raise ValueError(f"repetitions must be a whole number of at least 1, got {repetitions!r}")
    with telling(None, "recording", timed=True) as tell, nothing_reduced(), nothing_sharded("recording a forward"):
        tell("a forward")
        names = capture(model, every_call=True)
        recorder = ForwardRecorder(names, world.verb)
        try:
            with same_random_numbers(), same_flags(), names, recorder:
                since = sequence_nr()
                loss = real_loss_of(world.make_loss())
                created_here = sequence_nr() - since
            refuse_whole_step(loss, since)
            graph = read_graph(loss)
            # The recorder sees its own thread only. Each node but a leaf's takes a sequence number of its thread.
            if 2 * created_here < sum(not task.is_leaf for task in graph.tasks):
                raise NotImplementedError(
                    f"{world.verb} cannot follow a forward in another thread, where make_loss() ran most of its "
                    "operations; run the forward in the thread that calls it"
                )
            program = recorder.program(graph)
            del loss, graph
            operators = recorder.operators
            tell("timing each operation")
            rounds: list[list[float] | None] = []
            for _ in range(repetitions):
                _find_the_same(world, recorder)
                with same_random_numbers(), same_flags(), _Stopwatch(recorder.accelerated) as watch:
                    world.make_loss()
                rounds.append(watch.seconds if watch.operators == operators else None)
            tell("timing the forward")
            seconds = min(_forward_seconds(world, recorder) for _ in range(repetitions))
        finally:
            for_all((recorder.restore, world.put_back), lambda step: step())
        world.carried.tell()
    times = [each for each in rounds if each is not None]
    notes: tuple[str, ...] = ()
    if len(times) < len(rounds):
        notes = ("The forward runs different operations each time; the figures are those of the recorded run only.",)
        times = times or [[each.seconds for each in program.operations]]
    operations = [
        replace(each, seconds=min(taken))
        for each, taken in zip(program.operations, zip(*times, strict=True), strict=True)
    ]
    return replace(program, operations=tuple(operations), seconds=seconds, notes=notes)


def clock_of(accelerated: bool) -> Callable[[], float]:
    """Return a clock in seconds; on the CPU it counts only this thread, so that other programs do not matter."""
    return perf_counter if accelerated else thread_time


class _Stopwatch(SeenOperations):  # type: ignore[no-untyped-call]
    """A mode that times each operation."""

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
    """Restore the state for the next forward, and report state that could not be restored."""
    recorder.restore()
    world.put_back()
    world.carried.tell()


def _forward_seconds(world: AsFound, recorder: ForwardRecorder) -> float:
    """Return the seconds of one more forward."""
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
    del loss  # freeing the graph is not part of the forward's time
    return taken


keep_compiler_out(record_forward)
