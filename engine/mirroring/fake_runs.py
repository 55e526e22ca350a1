"""The program that a mirror plan is made for, where its tensors are fake: nothing of it is run as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from ...inspector.capturing.capture import capture
from ...inspector.capturing.forward_program import ForwardProgram
from ...inspector.capturing.forward_recorder import ForwardRecorder
from ...inspector.capturing.walk import read_graph
from ...inspector.torch_internals.engine import torch_backward
from ..memory.footprint import Footprints
from ..prediction.dry_run import dry_run
from ..prediction.operator_times import OperatorTimes
from ..programs.as_found import AsFound
from ..programs.make_loss import MakeLoss, loss_of
from .left_alone import checkpoint_sentence
from .plan import RecomputePlan
from .runs import Extra
from .storages import footprints_for, mirror_storages

# What it takes to note an operation in the forward, and as much to call it again: 13 to 46 µs on one CPU where kernels
# are small, 295 µs between those of a ResNet-50 of 1 ms each, which empty the caches; in between a share of the latter.
_NOTING_NS = 30_000.0, 300_000.0
_OF_A_KERNEL = 0.25

_SUMS = (
    "it was planned on fake tensors, so its times are sums of those of single operators, each run alone on real "
    "tensors of its shapes"
)
_NOT_TRIED = (
    "no storage was made again to see whether that gives the same bits: the first forward under ts.recompute does, and "
    "keeps what differs"
)
_UNTIMED = "how long {} takes is not known"


class FakeRuns:
    """What `Runs` knows, of a program on fake tensors: peaks of a dry run, times of single operators.

    Attributes:
        estimates: why its figures are estimates, as in `Timeline.estimates`.
        others: as of `Runs`; nothing is made again, so nothing is banned.
    """

    def __init__(self, world: AsFound, model: nn.Module | None) -> None:
        names = capture(model, every_call=True)
        recorder, times = ForwardRecorder(names), OperatorTimes()
        with world.run(zeroed=True):
            with names, times, recorder:  # the one that is opened last sees an operation first
                loss = loss_of(world.make_loss())
            if loss.device.type != "cpu":
                raise NotImplementedError(
                    f"make_loss() runs on fake tensors of {loss.device}, and only what operators take on the CPU is "
                    "found by running them alone; plan on fake tensors of the CPU, or there with the memory"
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
        self.recording_ns = min(max(_OF_A_KERNEL * mean_ns, _NOTING_NS[0]), _NOTING_NS[1])
        self.call_ns = 2 * self.recording_ns
        self.storages = mirror_storages(self.program, self.footprints, self.call_ns)
        self.estimates = _SUMS, _NOT_TRIED, *_not_timed(times)
        self.banned: str | None = None
        self.reasons: dict[int, str] = {}

    def extra(self, plan: RecomputePlan) -> Extra:
        """What forward and backward should take longer under a plan."""
        operations = {number for each in plan.dropped for number in self.program.storages[each].program}
        themselves = 1e9 * sum(self.program.operations[number].seconds for number in operations)
        noting = self.recording_ns * len(operations)
        return Extra(noting, themselves + noting)


def _predicted(make_loss: MakeLoss, model: nn.Module | None) -> Footprints:
    """A dry run of another forward: one of which nobody packs what it saves."""
    with capture(model, every_call=True):
        loss = loss_of(make_loss())
    return dry_run(read_graph(loss))


def _timed(program: ForwardProgram, seconds: list[float | None]) -> ForwardProgram:
    """The program with these times; what an operation makes of which none is known is not made again."""
    operations = [replace(each, seconds=taken or 0.0) for each, taken in zip(program.operations, seconds, strict=True)]
    storages = []
    for each in program.storages:
        untimed = [operations[number].name for number in each.program if seconds[number] is None]
        storages.append(replace(each, obstacle=each.obstacle or _UNTIMED.format(untimed[0])) if untimed else each)
    return replace(
        program, operations=tuple(operations), storages=tuple(storages), seconds=sum(each or 0.0 for each in seconds)
    )


def _not_timed(times: OperatorTimes) -> Iterator[str]:
    """Which operators count as taking no time, and are kept."""
    if times.untimed:
        said = [f"{name} ×{count}, {why}" for (name, why), count in times.untimed.most_common(3)]
        yield f"of {times.untimed.total():,} operations it is not known how long they take ({'; '.join(said)})"
