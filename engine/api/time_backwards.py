"""How long backwards take, measured against each other: in turns, each after a fresh forward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TypeVar

import torch

from ...inspector.graph.graph import Graph
from ..execution.accumulation_rule import Accumulation
from ..execution.backward_arguments import BackwardCall
from ..planning.policies import order_name
from ..recording.run import Run
from ..schedule.device_queues import Queues
from ..schedule.policy import Choice, Policy, policy_name
from ..schedule.ready_queue import PolicyError
from ..session.direct_session import Stepper
from ..session.native_engine import Plan, run_native
from .make_loss import MakeLoss, loss_or_tape, real_loss_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """Some numbers in three, in the unit that they have.

    Attributes:
        low, high: the ends of their middle half: a quarter of them is below, a quarter above.
        middle: their median.
    """

    low: float
    middle: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of one number all three are that one."""
        if len(values) < 2:
            return Spread(*(float(values[0]),) * 3)
        low, _, high = quantiles(values, n=4, method="inclusive")
        return Spread(low, float(median(values)), high)

    def spans(self, value: float) -> bool:
        """Whether it is within the middle half: of a ratio, whether what differs from 1 is noise."""
        return self.low <= value <= self.high

    @property
    def half_width(self) -> float:
        """Half of the way between the ends, as a share of the median: the ± of a table."""
        return (self.high - self.low) / (2 * self.middle) if self.middle else 0.0


def turns(each: Sequence[T], rounds: int) -> Iterator[list[T]]:
    """In which order all have their turn, round by round: forwards, backwards, and then one starts who did not yet.

    So what slows the machine down for a while, and what a run leaves behind for the next one, meets all alike: of
    three, six rounds are all the orders that there are.
    """
    for number in range(rounds):
        first = number // 2 % len(each)
        turned = [*each[first:], *each[:first]]
        yield turned[::-1] if number % 2 else turned


def time_backward(
    make_loss: MakeLoss,
    policy: Policy | Choice,
    order: Sequence[int] | None = None,
    check: Callable[[Graph], object] = lambda graph: None,
    queues: Queues = "one",
) -> int:
    """Nanoseconds of a backward alone, after a fresh forward: reading the graph and planning are not in them.

    What accelerators still compute when backward returns is in them, and what the forward gave them to do is not.

    Args:
        make_loss: runs the forward and returns the loss, one element.
        policy: what picks the next task.
        order: what it has planned for the same graph before, so that it does not plan again; None: it plans.
        check: called with the graph, which may refuse it.
        queues: as in `ts.backward`.

    Raises:
        PolicyError: another order ran, see `as_asked`.
    """
    call = BackwardCall(real_loss_of(make_loss()))
    graph = call.graph()
    check(graph)
    accelerators = frozenset(device for device in graph.devices if device.type != "cpu")
    if order is None:
        plan = Plan.of(call, policy)
    else:
        plan = Plan(graph, policy, None, list(order), frozenset(map(str, graph.devices)))
    wait_for(accelerators)
    awaited = _Awaited(call.tensors, devices=accelerators)
    return as_asked(run_native(awaited, plan, queues=queues), policy).elapsed_ns


def as_asked(run: Run, policy: Policy | Choice) -> Run:
    """The run, if it was in this policy's order: what it took is not another's.

    Raises:
        PolicyError: the ranks of a process group did not agree on that order, and ran PyTorch's own.
    """
    if run.policy != order_name(policy):
        raise PolicyError(
            f"policy {policy_name(policy)} can't be measured here: PyTorch's own order ran in its place, as {run.note}"
            '. Measure the same policies on every rank at the same time, or "heap" alone, which needs no agreement'
        )
    return run


def time_stepped(
    make_loss: MakeLoss,
    policy: Policy | Choice,
    accumulation: Accumulation,
    check: Callable[[Graph], object] = lambda graph: None,
) -> int:
    """The same of the direct engine, under a rule of accumulation. A policy that plans has planned."""
    loss = loss_or_tape(make_loss())
    with Stepper(loss, policy=policy, trace=None, accumulation=accumulation, queues="one") as stepper:
        check(stepper.graph)
        devices = [device for device in stepper.graph.devices if device.type != "cpu"]
        wait_for(devices)
        started_ns = time.perf_counter_ns()
        stepper.run()
        wait_for(devices)
        return time.perf_counter_ns() - started_ns


@dataclass(frozen=True)
class _Awaited(BackwardCall):
    """A backward which only ends when the devices have done what it gave them to do."""

    devices: frozenset[torch.device] = frozenset()

    def run(self) -> None:
        super().run()
        wait_for(self.devices)


def wait_for(devices: Iterable[torch.device]) -> None:
    """Until these devices have done what they were given to do."""
    for device in devices:
        torch.accelerator.synchronize(device)
