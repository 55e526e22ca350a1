"""Comparison of backward times: measured in turns, each after a fresh forward."""

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
    """Three numbers that describe a sample, in the sample's unit.

    Attributes:
        low, high: the quartiles: a quarter of the values is below `low`, a quarter above `high`.
        middle: the median.
    """

    low: float
    middle: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Return the spread of these values; for a single value all three are equal."""
        if len(values) < 2:
            return Spread(*(float(values[0]),) * 3)
        low, _, high = quantiles(values, n=4, method="inclusive")
        return Spread(low, float(median(values)), high)

    def spans(self, value: float) -> bool:
        """Return whether the value is between the quartiles; for a ratio and 1, whether the difference is noise."""
        return self.low <= value <= self.high

    @property
    def half_width(self) -> float:
        """Half the distance between the quartiles, relative to the median: the ± of a table."""
        return (self.high - self.low) / (2 * self.middle) if self.middle else 0.0


def turns(each: Sequence[T], rounds: int) -> Iterator[list[T]]:
    """Yield the order in which all items run, round by round: forwards, backwards, then starting with another item.

    So a temporary slowdown of the machine, and effects of one run on the next, affect all items equally. For three
    items, six rounds are all possible orders.
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
    retain_graph: bool | None = None,
) -> int:
    """Return the nanoseconds of a backward alone, after a fresh forward, without reading the graph and planning.

    Kernels still running when backward returns are included; kernels of the forward are not.

    Args:
        make_loss: runs the forward and returns the loss, one element.
        policy: the policy.
        order: the order it has planned before for the same graph; None plans it.
        check: called with the graph, which it may refuse.
        queues, retain_graph: as in `ts.backward`.

    Raises:
        PolicyError: another order ran, see `as_asked`.
    """
    call = BackwardCall(real_loss_of(make_loss()), retain_graph=retain_graph)
    graph = call.graph()
    check(graph)
    accelerators = frozenset(device for device in graph.devices if device.type != "cpu")
    if order is None:
        plan = Plan.of(call, policy)
    else:
        plan = Plan(graph, policy, None, list(order), frozenset(map(str, graph.devices)))
    # Kernels of the forward may still be running and must not count.
    wait_for(accelerators)
    awaited = _Awaited(call.tensors, retain_graph=retain_graph, devices=accelerators)
    return as_asked(run_native(awaited, plan, queues=queues), policy).elapsed_ns


def as_asked(run: Run, policy: Policy | Choice) -> Run:
    """Return the run if it used this policy's order; otherwise its time would be another order's.

    Raises:
        PolicyError: the ranks of a process group did not agree on the order, and ran PyTorch's own.
    """
    if run.policy != order_name(policy):
        raise PolicyError(
            f"policy {policy_name(policy)} cannot be measured here: PyTorch's own order ran instead, because {run.note}"
            '. Measure the same policies on every rank at the same time, or "heap" alone, which needs no agreement'
        )
    return run


def time_stepped(
    make_loss: MakeLoss,
    policy: Policy | Choice,
    accumulation: Accumulation,
    check: Callable[[Graph], object] = lambda graph: None,
    retain_graph: bool | None = None,
) -> int:
    """Return the nanoseconds of a backward on the direct engine, under an accumulation rule; planning is done
    before."""
    call = BackwardCall(loss_or_tape(make_loss()), retain_graph=retain_graph)
    with Stepper(call, policy=policy, trace=None, accumulation=accumulation, queues="one") as stepper:
        check(stepper.graph)
        devices = [device for device in stepper.graph.devices if device.type != "cpu"]
        wait_for(devices)
        started_ns = time.perf_counter_ns()
        stepper.run()
        wait_for(devices)
        return time.perf_counter_ns() - started_ns


@dataclass(frozen=True)
class _Awaited(BackwardCall):
    """A backward that ends only when the devices have finished their kernels."""

    devices: frozenset[torch.device] = frozenset()

    def run(self) -> None:
        super().run()
        wait_for(self.devices)


def wait_for(devices: Iterable[torch.device]) -> None:
    """Wait until these devices have finished their kernels."""
    for device in devices:
        torch.accelerator.synchronize(device)
