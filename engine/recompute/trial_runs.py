"""Trial runs of the program that is planned: recorded, measured and timed, or simulated on fake tensors."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from ...inspector.capture.build_graph import read_graph
from ...inspector.capture.capture import capture
from ...inspector.capture.forward_program import ForwardProgram
from ...inspector.capture.forward_recorder import ForwardRecorder
from ...inspector.graph.phrases import joined
from ...inspector.torch_private.engine import torch_backward
from ..api.make_loss import MakeLoss, loss_of, same_random_numbers
from ..api.profile import profile
from ..api.restore_state import AsFound
from ..api.time_backwards import turns
from ..memory.dry_run import dry_run
from ..memory.operator_times import OperatorTimes
from ..memory.task_memory import Footprints
from .apply_plan import apply_plan
from .droppable_storages import footprints_for, recompute_storages
from .no_plan_reasons import checkpoint_sentence
from .plan import RecomputePlan
from .record_forward import clock_of, recorded_in

# Plausible times to record one operation in the forward, and to call it again, without the operation itself. The lower
# bound is for warm CPU caches, the upper one for caches that a large kernel has just emptied.
_NOTING_NS = 10_000.0, 500_000.0
_CALLING_NS = 10_000.0, 500_000.0
_FASTER, _SLOWER = 0.8, 2.0  # plausible ratio of an operation's time in the backward to that in the forward


class Extra(NamedTuple):
    """The time a plan adds to the forward (recording) and to the backward (recomputation)."""

    recording_ns: float
    replay_ns: float

    @property
    def ns(self) -> float:
        return self.recording_ns + self.replay_ns


class Runs:
    """Forwards and backwards of one program, each run from the same state.

    Attributes:
        program, footprints: the recorded forward and the measured footprints.
        storages: the storages for planning; those whose recomputed bits differ are not droppable.
        plain_ns: the shortest time of a step, forward and backward.
        recording_ns: time to record an operation in the forward so that it can run again.
        call_ns: time to record an operation and to call it again, without the operation itself.
        banned: a sentence about storages whose recomputed bits differ; None if there are none.
        reasons: the differences, by number of the storage.
        estimates: reasons why its figures are estimates; empty, because they are measured.
        checkpoints: a note about regions under torch.utils.checkpoint; None if there are none.
    """

    estimates: tuple[str, ...] = ()

    def __init__(self, repetitions: int, world: AsFound, model: nn.Module | None) -> None:
        self._make_loss = world.make_loss
        self._repetitions = repetitions
        self._world = world
        self.program = recorded_in(world, repetitions, model)
        names = capture(model, every_call=True)
        self._recorder = ForwardRecorder(names, "ts.plan_recompute")  # it also records which tensors the forward writes
        with same_random_numbers(), names, self._recorder:
            loss = loss_of(self._make_loss())
        drawn = read_graph(loss)
        self._leaves = list(drawn.leaves.values())
        grads = (leaf.grad for leaf in self._leaves)
        # A forward that calls zero_grad() runs other operations if there are no gradients yet.
        self._zeroed = not any(self._recorder.wrote(grad) for grad in grads if grad is not None)
        self.checkpoints = checkpoint_sentence(drawn, world.modules)
        del loss, drawn
        self.put_back()
        with self._fresh():
            measured = profile(self._make_loss, model=model).footprints
        assert measured is not None, "ts.profile measures"
        self.footprints = footprints_for(self.program, measured)
        self.plain_ns = math.inf
        self.storages = recompute_storages(self.program, self.footprints)
        self.reasons: dict[int, str] = {}
        self.banned = self._ban()
        self.recording_ns, self.call_ns = self._prices()
        priced = recompute_storages(self.program, self.footprints, self.call_ns)
        self.storages = [
            replace(storage, droppable=before.droppable) for storage, before in zip(priced, self.storages, strict=True)
        ]

    def _prices(self) -> tuple[float, float]:
        """Measure the mean times to record and to call an operation, over all droppable storages but products."""
        trial = RecomputePlan.of(
            self.program,
            [number for number, each in enumerate(self.storages) if each.droppable and not each.product],
        )
        operations = self._replayed(trial)
        extra = self.extra(trial)  # this also measures plain_ns
        if not operations:
            return _NOTING_NS[0], _NOTING_NS[0] + _CALLING_NS[0]
        themselves = 1e9 * sum(self.program.operations[number].seconds for number in operations)
        recording, replay = extra.recording_ns / len(operations), (extra.replay_ns - themselves) / len(operations)
        return recording, recording + min(max(replay, _CALLING_NS[0]), _CALLING_NS[1])

    def put_back(self) -> None:
        """Restore the tensors that the forwards wrote, and the Python state that they changed."""
        self._recorder.restore()
        self._world.put_back()

    @contextmanager
    def _fresh(self) -> Iterator[None]:
        with self._world.run(self._leaves, zeroed=self._zeroed):
            yield
        self.put_back()

    def _ban(self) -> str | None:
        """Recompute every droppable storage once, and exclude those whose bits differ."""
        every = [number for number, each in enumerate(self.storages) if each.droppable and each.keepers]
        plan = RecomputePlan.of(self.program, every)
        with warnings.catch_warnings(), self._fresh():
            warnings.simplefilter("ignore")  # the plan's notes report what is banned
            with apply_plan(plan) as recomputed:
                self._make_loss()
        found = recomputed.report.banned
        for each, reason in found:
            self.storages[each.number] = replace(self.storages[each.number], droppable=False)
            self.reasons[each.number] = reason
        if not found:
            return None
        reasons = Counter(f"{each.operation}: {reason}" for each, reason in found)
        named = joined([f"{reason}" if count == 1 else f"{reason} (×{count})" for reason, count in reasons.items()])
        return f"Some saved tensors are kept because recomputing them failed: {named}."

    def extra(self, plan: RecomputePlan) -> Extra:
        """Measure the time that a plan adds to forward and backward: shortest runs with and without it, in turns.

        Whole steps are timed, because Python runs several times slower between large kernels than alone. On the CPU
        the thread's CPU time is used, which other programs do not affect.
        """
        best = {False: (math.inf, math.inf), True: (math.inf, math.inf)}
        clock = clock_of(self._recorder.accelerated)
        for round_ in turns((False, True), self._repetitions + 1):  # plus one: the first forward verifies the plan
            for is_recomputed in round_:
                with self._fresh():
                    self._wait()
                    began = clock()
                    with apply_plan(plan) if is_recomputed else nullcontext():
                        loss = self._make_loss()
                    self._wait()
                    middle = clock()
                    loss.backward()  # type: ignore[no-untyped-call]
                    self._wait()
                    forward, backward = best[is_recomputed]
                    best[is_recomputed] = min(forward, middle - began), min(backward, clock() - middle)
                    del loss
        self.plain_ns = min(self.plain_ns, 1e9 * sum(best[False]))
        forward, backward = (1e9 * (after - before) for before, after in zip(*best.values(), strict=True))
        # Clip the times to plausible ones, because on a busy machine steps vary by more than a plan adds.
        operations = self._replayed(plan)
        themselves = 1e9 * sum(self.program.operations[number].seconds for number in operations)
        noting, calling = _NOTING_NS, _CALLING_NS
        return Extra(
            min(max(forward, noting[0] * len(operations)), noting[1] * len(operations)),
            min(
                max(backward, _FASTER * themselves + calling[0] * len(operations)),
                _SLOWER * themselves + calling[1] * len(operations),
            ),
        )

    def _replayed(self, plan: RecomputePlan) -> set[int]:
        """Return the operations that run again, each once."""
        return {number for each in plan.dropped for number in self.program.storages[each].program}

    def _wait(self) -> None:
        if self._recorder.accelerated:
            torch.accelerator.synchronize()


# Time to record an operation in the forward; calling it again takes as much. Measured on one CPU: 13 to 46 µs with
# small kernels, 295 µs between the 1 ms kernels of a ResNet-50, which empty the caches. In between, a share of the mean
# time of a kernel.
_FAKE_NOTING_NS = 30_000.0, 300_000.0
_OF_A_KERNEL = 0.25

_SUMS = (
    "the plan was made on fake tensors, so times are sums over single operators, each run alone on real tensors of "
    "its shapes"
)
_NOT_TRIED = (
    "recomputed bits have not been compared: the first forward under ts.recompute compares them and keeps tensors that "
    "differ"
)
_UNTIMED = "the time of {} is not known"


class FakeRuns:
    """The counterpart of `Runs` for a program on fake tensors: peaks of a dry run, times of single operators.

    The attributes are those of `Runs`. Nothing is recomputed, so nothing is banned.

    Attributes:
        estimates: reasons why its figures are estimates, as in `Timeline.estimates`.
    """

    def __init__(self, world: AsFound, model: nn.Module | None) -> None:
        names = capture(model, every_call=True)
        recorder, times = ForwardRecorder(names, "ts.plan_recompute"), OperatorTimes()
        with world.run(zeroed=True):
            with names, times, recorder:  # the mode entered last sees an operation first
                loss = loss_of(world.make_loss())
            if loss.device.type != "cpu":
                raise NotImplementedError(
                    f"make_loss() runs on fake tensors of {loss.device}, but only CPU operators can be timed alone; "
                    "plan on fake tensors of the CPU, or on real tensors of the device"
                )
            drawn = read_graph(loss)
            program = recorder.program(drawn)
            self.checkpoints = checkpoint_sentence(drawn, world.modules)
            forward = len(times.seconds)
            with times:
                torch_backward(loss)
            del loss, drawn
        with world.run(zeroed=True):
            footprints = _predicted(world.make_loss, model)
        self.program = _timed(program, times.seconds[:forward])
        self.footprints = footprints_for(self.program, footprints)
        self.plain_ns = 1e9 * sum(each or 0.0 for each in times.seconds)
        mean_ns = 1e9 * self.program.seconds / max(1, forward)
        self.recording_ns = min(max(_OF_A_KERNEL * mean_ns, _FAKE_NOTING_NS[0]), _FAKE_NOTING_NS[1])
        self.call_ns = 2 * self.recording_ns
        self.storages = recompute_storages(self.program, self.footprints, self.call_ns)
        self.estimates: tuple[str, ...] = (_SUMS, _NOT_TRIED)
        if times.untimed:
            named = [f"{name} ×{count}, {why}" for (name, why), count in times.untimed.most_common(3)]
            untimed = f"the times of {times.untimed.total():,} operations are not known ({'; '.join(named)})"
            self.estimates = *self.estimates, untimed
        self.banned: str | None = None
        self.reasons: dict[int, str] = {}

    def extra(self, plan: RecomputePlan) -> Extra:
        """Estimate the time that a plan adds to forward and backward."""
        operations = {number for each in plan.dropped for number in self.program.storages[each].program}
        themselves = 1e9 * sum(self.program.operations[number].seconds for number in operations)
        noting = self.recording_ns * len(operations)
        return Extra(noting, themselves + noting)


def _predicted(make_loss: MakeLoss, model: nn.Module | None) -> Footprints:
    """Predict the footprints by a dry run of a new forward, whose saved tensors have no hooks."""
    with capture(model, every_call=True):
        loss = loss_of(make_loss())
    return dry_run(read_graph(loss))


def _timed(program: ForwardProgram, seconds: list[float | None]) -> ForwardProgram:
    """Return the program with these times; outputs of operations without a known time are not droppable."""
    operations = [replace(each, seconds=taken or 0.0) for each, taken in zip(program.operations, seconds, strict=True)]
    storages = []
    for each in program.storages:
        untimed = [operations[number].name for number in each.program if seconds[number] is None]
        storages.append(replace(each, obstacle=each.obstacle or _UNTIMED.format(untimed[0])) if untimed else each)
    return replace(
        program, operations=tuple(operations), storages=tuple(storages), seconds=sum(each or 0.0 for each in seconds)
    )
