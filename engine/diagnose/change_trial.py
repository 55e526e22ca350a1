"""Tries a change on the user's model and data: runs it, checks it against the original and times both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, prod
from typing import Any

import torch
from torch import Tensor

from ...inspector.capture.capture import capture
from ..api.make_loss import own_gradients, same_random_numbers
from ..api.time_backwards import Spread, turns, wait_for
from ..execution.backward_arguments import BackwardCall
from ..memory.measure_backward import Measurement
from ..memory.timeline import Timeline
from ..planning.policies import POLICIES
from ..session.native_engine import Plan, run_native
from .find_ensembles import Argument, Ensemble
from .generated_code import Change

_LONGEST_S = 1.0  # approximate time for the rounds of one trial
_ROUNDS = (7, 40)
LEAST_GAIN = 1.05  # the smallest speedup that is worth a change
_NOISE = 0.01  # share of the largest gradient below which a gradient is rounding noise
_UNSTEADY = 0.25  # largest half-width of the middle half, as a share of the median


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of calling the members in one way and of combining their outputs.

    Attributes:
        forward_ns, backward_ns, elapsed_ns: times in nanoseconds, median and middle half; `elapsed_ns` is their sum.
        forward_peak_bytes, backward_peak_bytes: the peaks of memory allocated since the start of the forward.
    """

    forward_ns: Spread
    backward_ns: Spread
    elapsed_ns: Spread
    forward_peak_bytes: int
    backward_peak_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The higher of the two peaks."""
        return max(self.forward_peak_bytes, self.backward_peak_bytes)


@dataclass(frozen=True, slots=True)
class Deviation:
    """The largest difference between a change's outputs and gradients and the original's.

    Attributes:
        share: the largest difference between elements of two tensors, relative to the largest element, over outputs
            and the gradients of parameters and inputs. For gradients below 1 % of the largest gradient, the difference
            is divided by that 1 % instead, because a gradient that should be zero (of the bias of an attention's keys,
            say) is rounding noise.
        where: the tensor with the largest difference.
        tolerance: the square root of the coarsest dtype's epsilon: 0.035 % for float32.
        tensors: the number of tensors compared.
    """

    share: float
    where: str
    tolerance: float
    tensors: int

    @property
    def ok(self) -> bool:
        """True if the difference is within the tolerance."""
        return self.share <= self.tolerance  # False for NaN


@dataclass(frozen=True, slots=True)
class Trial:
    """The comparison of a change with the original.

    Attributes:
        change: the change.
        check: the differences between the results.
        before, after: the cost of the original and of the change; None if the check failed.
        rounds: how often each was timed.
        parameter_bytes: bytes of the stacked parameters, which replace the members' own.
    """

    change: Change
    check: Deviation
    before: Cost | None = None
    after: Cost | None = None
    rounds: int = 0
    parameter_bytes: int = 0

    @property
    def speedup(self) -> float:
        """The speedup of forward and backward together."""
        if self.before is None or self.after is None or not self.after.elapsed_ns.middle:
            return 1.0
        return self.before.elapsed_ns.middle / self.after.elapsed_ns.middle

    @property
    def gains(self) -> bool:
        """True if the change is faster by more than the spread of the times: their middle halves do not overlap."""
        if self.before is None or self.after is None:
            return False
        return self.speedup >= LEAST_GAIN and self.after.elapsed_ns.high < self.before.elapsed_ns.low

    @property
    def steady(self) -> bool:
        """True if the middle half of each side's times is narrow. A wide one means that the machine was busy."""
        return all(cost is None or cost.elapsed_ns.half_width < _UNSTEADY for cost in (self.before, self.after))


@dataclass(frozen=True, slots=True)
class _Side:
    """One way of calling the members, with separate inputs."""

    forward: Callable[[], Sequence[Tensor]]
    leaves: Sequence[Tensor]
    gradients: Sequence[Tensor]

    def run(self) -> tuple[int, int]:
        """Run a forward and its backward and return both times in nanoseconds, synchronizing accelerators."""
        for leaf in self.leaves:
            leaf.grad = None
        devices = {each.device for each in self.gradients if each.device.type != "cpu"}
        wait_for(devices)
        started = time.perf_counter_ns()
        outputs = self.forward()
        wait_for(devices)
        between = time.perf_counter_ns()
        torch.autograd.backward(outputs, self.gradients)
        wait_for(devices)
        return between - started, time.perf_counter_ns() - between

    def memory(self) -> Timeline:
        """Return the memory timeline of a forward and its backward."""
        for leaf in self.leaves:
            leaf.grad = None
        with Measurement(self.gradients[0].device) as measurement:
            with capture(observer=measurement.observe):
                measurement.begin_forward()
                outputs = self.forward()
                measurement.observe(None, outputs)
            call = BackwardCall(list(outputs), list(self.gradients))
            timeline = run_native(call, Plan.of(call, POLICIES["heap"]), measurement=measurement).timeline
        assert timeline is not None
        return timeline


def try_change(ensemble: Ensemble, change: Change, rounds: int | None = None) -> Trial:
    """Run a change, check its results, and time it beside the original if they are right.

    The .grad of the members' parameters and torch's random number generators are restored.

    Args:
        ensemble: the members.
        change: the way to call them as one.
        rounds: how often to time each, alternating. None: for about a second.

    Raises:
        Exception: whatever the change raises, for example for data-dependent control flow under vmap.
    """
    members = ensemble.members
    own = [parameter for member in members for parameter in member.parameters() if parameter.requires_grad]
    with own_gradients(own), same_random_numbers(), torch.enable_grad(), change.run(ensemble) as namespace:
        parameters: Mapping[str, Tensor] = namespace["parameters"]
        before, before_inputs = _original(ensemble, own)
        after, after_inputs = _changed(ensemble, namespace, parameters)
        check = _check(ensemble, (before, before_inputs), (after, after_inputs), parameters)
        if not check.ok:
            return Trial(change, check)
        sides = {"before": before, "after": after}
        warm = sum(sum(side.run()) for side in sides.values())
        count = rounds or min(max(int(_LONGEST_S * 1e9 / max(warm, 1)), _ROUNDS[0]), _ROUNDS[1])
        times: dict[str, list[tuple[int, int]]] = {name: [] for name in sides}
        for round_ in turns(list(sides), count):
            for name in round_:
                times[name].append(sides[name].run())
        costs = {name: _cost(times[name], sides[name].memory()) for name in sides}
        nbytes = sum(prod(each.shape) * each.element_size() for each in parameters.values())
        return Trial(change, check, costs["before"], costs["after"], count, nbytes)


def _cost(times: Sequence[tuple[int, int]], timeline: Timeline) -> Cost:
    forward, backward = zip(*times, strict=True)
    return Cost(
        Spread.of(forward),
        Spread.of(backward),
        Spread.of([sum(each) for each in times]),
        timeline.forward_peak_bytes or 0,
        timeline.peak_bytes,
    )


def _inputs(argument: Argument) -> tuple[Any, list[Tensor]]:
    """Return the value of one argument of the code, with its tensors detached as new leaves, and these leaves."""
    if argument.how == "plain" or not argument.requires_grad:
        return argument.value, []
    if argument.how == "stacked":
        leaves = [each.detach().clone().requires_grad_() for each in argument.value]
        return leaves, leaves
    leaf = argument.value.detach().clone().requires_grad_()
    return leaf, [leaf]


def _original(ensemble: Ensemble, own: Sequence[Tensor]) -> tuple[_Side, list[list[Tensor]]]:
    made = [_inputs(argument) for argument in ensemble.arguments]
    by_place = [number for number, each in enumerate(ensemble.arguments) if each.keyword is None]
    by_keyword = {each.keyword: number for number, each in enumerate(ensemble.arguments) if each.keyword is not None}

    def forward() -> Sequence[Tensor]:
        parts = [
            list(value.unbind(0)) if argument.how == "sliced" else value
            for argument, (value, _) in zip(ensemble.arguments, made, strict=True)
        ]

        def given(number: int, member: int) -> Any:
            return parts[number][member] if ensemble.arguments[number].how in ("sliced", "stacked") else parts[number]

        outputs = [
            each(
                *(given(number, member) for number in by_place),
                **{str(keyword): given(number, member) for keyword, number in by_keyword.items()},
            )
            for member, each in enumerate(ensemble.members)
        ]
        combined = ensemble.combination.of(outputs)
        return [combined] if isinstance(combined, Tensor) else list(combined)

    leaves = [leaf for _, leaves in made for leaf in leaves]
    gradients = ensemble.combination.gradient(ensemble.gradients)
    return _Side(forward, [*own, *leaves], gradients), [leaves for _, leaves in made]


def _changed(
    ensemble: Ensemble, namespace: Mapping[str, Any], parameters: Mapping[str, Tensor]
) -> tuple[_Side, list[list[Tensor]]]:
    made = [_inputs(argument) for argument in ensemble.arguments]
    batched = namespace["batched"]

    def forward() -> Sequence[Tensor]:
        outputs = batched(*(value for value, _ in made))
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)

    leaves = [leaf for _, leaves in made for leaf in leaves]
    stacked = [each for each in parameters.values() if each.requires_grad]
    gradients = ensemble.combination.gradient(ensemble.gradients)
    return _Side(forward, [*stacked, *leaves], gradients), [leaves for _, leaves in made]


def _check(
    ensemble: Ensemble,
    before: tuple[_Side, list[list[Tensor]]],
    after: tuple[_Side, list[list[Tensor]]],
    parameters: Mapping[str, Tensor],
) -> Deviation:
    outputs = []
    for side, _ in (before, after):
        for leaf in side.leaves:
            leaf.grad = None
        found = side.forward()
        torch.autograd.backward(found, side.gradients)
        outputs.append([each.detach() for each in found])
    made = [("outputs", one, other) for one, other in zip(*outputs, strict=True)]
    pairs: list[tuple[str, Tensor | None, Tensor | None]] = []
    for name, stacked in parameters.items():
        for number, member in enumerate(ensemble.members):
            own = member.get_parameter(name)
            if own.requires_grad:
                gradient = None if stacked.grad is None else stacked.grad[number]
                pairs.append((f"the gradient of {name!r} of member {number}", own.grad, gradient))
    for argument, ones, others in zip(ensemble.arguments, before[1], after[1], strict=True):
        name = f"the gradient of {argument.name!r}"
        pairs += [(name, one.grad, other.grad) for one, other in zip(ones, others, strict=True)]
    noise = _NOISE * max((_largest(gradient) for _, *both in pairs for gradient in both), default=0.0)
    dtypes = [
        one.dtype for _, one, _ in (*made, *pairs) if one is not None and (one.is_floating_point() or one.is_complex())
    ]
    tolerance = max((torch.finfo(dtype).eps ** 0.5 for dtype in dtypes), default=0.0)
    share, where = 0.0, "outputs"
    for name, one, other in (*made, *pairs):
        apart = _apart(one, other, 0.0 if name == "outputs" else noise)
        if not apart <= share:
            share, where = apart, name
        if isnan(share):  # NaN is worse than any number
            break
    return Deviation(share, where, tolerance, len(made) + len(pairs))


def _largest(tensor: Tensor | None) -> float:
    return float(tensor.abs().max()) if tensor is not None and tensor.numel() else 0.0


def _apart(one: Tensor | None, other: Tensor | None, least: float) -> float:
    """Return the largest difference between elements, relative to the largest element or to `least`.

    A missing tensor counts as zeros, because a stack gives an unused parameter a gradient of zeros.
    """
    if one is None or other is None:
        present = other if one is None else one
        return 0.0 if present is None or not bool(present.count_nonzero()) else float("inf")
    if not one.numel():
        return 0.0
    difference = _largest(one - other)
    return difference / max(_largest(one), _largest(other), least) if difference else 0.0
