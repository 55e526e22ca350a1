"""Comparison of a derivative with finite differences, and search for the element that differs most."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck

from ...inspector.torch_private.tensors import dense
from .float64_replay import OperationReplay

_MOST = 2**20  # elements of an input that is searched; each reading costs two forwards
_EACH = 256  # up to this many elements, each is tested
_LAST = 16  # halving stops at this many elements
_DIRECTIONS = 2  # along a single one, the differences of a half may cancel


@dataclass(frozen=True, slots=True)
class Element:
    """One element of an input.

    Attributes:
        index: its index.
        value: its value.
        given: its gradient, from the backward.
        expected: its gradient, from finite differences.
    """

    index: tuple[int, ...]
    value: float
    given: float
    expected: float

    @property
    def difference(self) -> float:
        """Difference of the two gradients; infinite if the backward's is NaN or infinite."""
        return abs(self.given - self.expected) if isfinite(self.given) else float("inf")


def furthest_element(differences: FiniteDifferences, place: int, gradient: Tensor) -> Element | None:
    """Return the element of an input whose gradient differs most from finite differences.

    For an input with many elements, the half that differs more is repeatedly halved, along random directions; the
    result is then one of the elements that differ much. Return None if nothing differs, or if the search would take
    long.
    """
    point, scale = differences.points[place], differences.scales[place]
    movable = scale.flatten().nonzero().flatten()
    if point.is_complex() or not len(movable) or point.numel() > _MOST:
        return None
    flat = gradient.flatten()[movable]
    lost = movable[~flat.isfinite()]
    if len(lost):
        some = lost[:_EACH]
    elif len(movable) <= _EACH:
        some = movable
    else:
        some = _narrowed(differences, place, gradient, movable)
    found = [each for each in _looked_at(differences, place, gradient, some) if isfinite(each.expected)]
    furthest = max(found, key=lambda each: each.difference, default=None)
    if furthest is None or furthest.difference <= ALLOWED * max(abs(furthest.given), abs(furthest.expected)):
        return None
    return furthest


def _looked_at(differences: FiniteDifferences, place: int, gradient: Tensor, elements: Tensor) -> Sequence[Element]:
    point, scale = differences.points[place], differences.scales[place]
    found = []
    for number in elements.tolist():
        direction = torch.zeros_like(point)
        direction.view(-1)[number] = 1
        size = scale.flatten()[number].item()
        index = tuple(int(each) for each in torch.unravel_index(torch.tensor(number, device="cpu"), point.shape))
        value, given = (each.flatten()[number].item() for each in (point, gradient))
        found.append(Element(index, value, given, differences.slope(place, direction) / size))
    return found


def _narrowed(differences: FiniteDifferences, place: int, gradient: Tensor, elements: Tensor) -> Tensor:
    """Halve the elements repeatedly, keeping the half that differs more."""
    directions = [differences.direction(place, number) for number in range(_DIRECTIONS)]

    def errors(some: Tensor) -> list[float]:
        """Return the difference in each direction if only these elements move."""
        only = torch.zeros_like(gradient, dtype=torch.bool)
        only.view(-1)[some] = True
        moves = [torch.where(only, direction, torch.zeros_like(direction)) for direction in directions]
        return [differences.along(place, gradient, move) - differences.slope(place, move) for move in moves]

    total = errors(elements)
    while len(elements) > _LAST:
        first, second = elements.tensor_split(2)
        of_first = errors(first)
        of_second = [both - one for both, one in zip(total, of_first, strict=True)]
        takes_first = sum(each * each for each in of_first) >= sum(each * each for each in of_second)
        elements, total = (first, of_first) if takes_first else (second, of_second)
    return elements


ALLOWED = 1e-3  # relative difference allowed between derivative and finite difference, as in gradcheck
DIRECTIONS = 5
STEP = 2e-7
_NOISE = 5e-5  # derivatives below this share of the output's size are lost in the rounding of finite differences
_MOST_FOR_EACH = 256  # up to this many elements of inputs and outputs, gradcheck perturbs each separately


class _DenseGradient(torch.autograd.Function):
    """Passes a tensor on and makes its gradient dense: gradcheck reports a sparse gradient of a dense tensor as
    wrong."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return dense(gradients[0])


class FiniteDifferences:
    """Finite differences of an operation at one point, along random directions.

    Instead of the outputs, their product with random `cotangents` is differentiated; its gradients are what a backward
    returns for these. Elements are moved by steps relative to their own sizes, so that small numbers stay in the range
    of the same branch of the operation.

    `torch.autograd.gradcheck` alone is not enough. It perturbs all elements of inputs and outputs one by one. Its fast
    mode allows an absolute difference that grows with the sizes (from 10,000 elements on, a gradient with the wrong
    sign passes), and computes the full Jacobian to report a difference. `each_element` uses it if the operation is
    small enough.

    Args:
        replay: the operation.
        points: the values of the varied inputs.
        symmetric: move symmetric matrices only in symmetric directions.
        step: the step relative to an element's size.

    Attributes:
        cotangents: one per output.
        left_out: the number of output elements that are NaN or infinite and ignored.
        count: the number of output elements.
        scales: by input, the sizes of its elements, to which steps are relative; zero for those that cannot be moved.
    """

    def __init__(
        self, replay: OperationReplay, points: Sequence[Tensor], symmetric: bool = False, step: float = STEP
    ) -> None:
        self._replay = replay
        self._symmetric = symmetric
        self._step = step
        self.points = points
        self.scales = [_sizes(each) for each in points]
        self._outputs = [each.detach() for each in replay.run(points).outputs]
        self._finite = [each.isfinite() for each in self._outputs]
        self.count = sum(each.numel() for each in self._outputs)
        self.left_out = self.count - sum(int(each.sum()) for each in self._finite)
        self._follow([_random(output, number) for number, output in enumerate(self._outputs)])

    def _follow(self, cotangents: Sequence[Tensor]) -> None:
        self.cotangents = [
            torch.zeros_like(cotangent)
            if place in self._replay.unused
            else torch.where(finite, cotangent, torch.zeros_like(cotangent))
            for place, (cotangent, finite) in enumerate(zip(cotangents, self._finite, strict=True))
        ]
        sizes = [
            torch.where(finite, cotangent * output, torch.zeros_like(output)).norm().item()
            for finite, cotangent, output in zip(self._finite, self.cotangents, self._outputs, strict=True)
        ]
        self._noise = _NOISE * sqrt(sum(size**2 for size in sizes))
        self._found: dict[int, _Slopes] = {}

    def of_cotangents(self, cotangents: Sequence[Tensor]) -> FiniteDifferences:
        """Return the finite differences at the same point for other cotangents."""
        other = copy(self)
        other._follow(cotangents)
        return other

    def slopes(self, place: int) -> _Slopes:
        """Return the slopes along each direction of one input."""
        found = self._found.get(place)
        if found is None:
            before, middle, after = [], [], []
            for number in range(DIRECTIONS):
                step = self._step * self.scales[place] * self.direction(place, number)
                high, low = self._moved(place, step), self._moved(place, -step)
                after.append(self._difference(high, self._outputs) / self._step)
                before.append(self._difference(self._outputs, low) / self._step)
                middle.append(self._difference(high, low) / (2 * self._step))
            found = self._found[place] = _Slopes(before, middle, after)
        return found

    def slope(self, place: int, direction: Tensor) -> float:
        """Return the slope along one direction of one input, in units of its elements' sizes."""
        step = self._step * self.scales[place] * direction
        return self._difference(self._moved(place, step), self._moved(place, -step)) / (2 * self._step)

    def along(self, place: int, gradient: Tensor, direction: Tensor) -> float:
        """Return the slope expected from this gradient of the input."""
        scale = self.scales[place]
        return _inner(torch.where(scale == 0, torch.zeros_like(gradient), gradient), scale * direction)

    def is_flat(self, place: int) -> bool:
        """Return whether the result does not change in any direction of this input."""
        slopes = self.slopes(place)
        return not any([*slopes.before, *slopes.middle, *slopes.after])

    def relative_error(self, place: int, gradient: Tensor | None) -> float:
        """Return the difference between a gradient and finite differences, relative to the larger; NaN if either is."""
        expected = self.slopes(place).middle
        return _relative_error(expected, self._along_each(place, gradient), self._noise)

    def factor(self, place: int, gradient: Tensor) -> float | None:
        """Return the factor by which the gradient has to be multiplied to be right; None if there is none."""
        expected, given = self.slopes(place).middle, self._along_each(place, gradient)
        size = sum(each * each for each in given)
        if not isfinite(size) or size == 0:
            return None
        factor = sum(one * other for one, other in zip(expected, given, strict=True)) / size
        right = factor != 0 and _relative_error(expected, [factor * each for each in given], self._noise) <= ALLOWED
        return factor if right else None

    def has_kink(self, place: int, gradient: Tensor | None) -> bool:
        """Return whether the slopes on the two sides differ enough to explain the error of this gradient."""
        slopes = self.slopes(place)
        given = self._along_each(place, gradient)
        gap = max(abs(after - before) for before, after in zip(slopes.before, slopes.after, strict=True))
        off = max(abs(one - other) for one, other in zip(slopes.middle, given, strict=True))
        smooth = 1e-4 * max(map(abs, slopes.middle)) + ALLOWED * self._noise
        return gap > smooth and gap > 0.2 * off

    @property
    def takes_each_element(self) -> bool:
        """True if the operation is small enough for gradcheck, and its result is finite."""
        elements = max(self.count, sum(each.numel() for each in self.points))
        simple = not self.left_out and not self._symmetric
        return elements <= _MOST_FOR_EACH and simple and all(bool((each > 0).all()) for each in self.scales)

    def each_element(self) -> str | None:
        """Return gradcheck's message about the backward; None if it passes, or if there are too many elements."""
        if not self.takes_each_element:
            return None
        largest = max(
            (abs(slope) for place in range(len(self.points)) for slope in self.slopes(place).middle), default=0
        )
        unit = 1 / largest if largest and isfinite(largest) else 1.0

        def moved(*steps: Tensor) -> tuple[Tensor, ...]:
            places = [
                _DenseGradient.apply(point + scale * step)  # type: ignore[no-untyped-call]
                for point, scale, step in zip(self.points, self.scales, steps, strict=True)
            ]
            outputs = self._replay.run_on(places).outputs
            return tuple([unit * each for place, each in enumerate(outputs) if place not in self._replay.unused])

        steps = tuple([torch.zeros_like(point).requires_grad_() for point in self.points])
        try:
            gradcheck(moved, steps, eps=1e-6, atol=1e-6, rtol=ALLOWED, nondet_tol=1e-9, check_undefined_grad=False)
        except GradcheckError as error:
            return str(error).partition("\n")[0]
        return None

    def nearby(self, number: int = 0) -> list[Tensor]:
        """Return points a small step away, where a kink at this point has no effect; each number gives others."""
        return [
            point + 1e-3 * scale * _random(point, 1000 * (number + 1) + place)
            for place, (point, scale) in enumerate(zip(self.points, self.scales, strict=True))
        ]

    def direction(self, place: int, number: int) -> Tensor:
        """Return one of the random directions of an input."""
        point = self.points[place]
        direction = _random(point, 10 * (place + 1) + number)
        return direction + direction.mH if self._symmetric and is_symmetric(point) else direction

    def _along_each(self, place: int, gradient: Tensor | None) -> list[float]:
        if gradient is None:
            return [0.0] * DIRECTIONS
        return [self.along(place, gradient, self.direction(place, number)) for number in range(DIRECTIONS)]

    def _moved(self, place: int, step: Tensor) -> list[Tensor]:
        points = list(self.points)
        points[place] = points[place] + step
        return [each.detach() for each in self._replay.run(points).outputs]

    def _difference(self, high: Sequence[Tensor], low: Sequence[Tensor]) -> float:
        total = 0.0
        for cotangent, finite, one, other in zip(self.cotangents, self._finite, high, low, strict=True):
            total += _inner(cotangent, torch.where(finite, one - other, torch.zeros_like(one)))
        return total


@dataclass(frozen=True, slots=True)
class _Slopes:
    """Slopes for each direction: on the side before the point, across it, and on the side after it."""

    before: list[float]
    middle: list[float]
    after: list[float]


def _relative_error(some: Sequence[float], others: Sequence[float], noise: float) -> float:
    values = [*some, *others]
    if not all(map(isfinite, values)):
        return float("nan")
    largest = max(noise, *map(abs, values))
    return max(abs(one - other) for one, other in zip(some, others, strict=True)) / largest if largest else 0.0


def is_symmetric(tensor: Tensor) -> bool:
    """Return whether the tensor is a symmetric (Hermitian) matrix or a batch of them."""
    square = tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] > 1
    return square and torch.allclose(tensor, tensor.mH, rtol=1e-5, atol=0)


def _inner(gradient: Tensor, step: Tensor) -> float:
    """Return the growth along the step of a function with this gradient; torch's complex gradients are conjugate."""
    return (gradient.conj() * step).sum().real.item()


def _sizes(tensor: Tensor) -> Tensor:
    """Return the size of each element: its absolute value, but not much below the tensor's; zero if it is not
    finite."""
    finite = tensor.isfinite()
    size = torch.where(finite, tensor.abs(), torch.zeros((), dtype=torch.float64, device=tensor.device))
    usual = size.square().sum().div(finite.sum().clamp(min=1)).sqrt()
    usual = torch.where(usual == 0, torch.ones_like(usual), usual)
    return torch.where(finite, torch.where(size == 0, usual, size.maximum(1e-4 * usual)), torch.zeros_like(size))


def _random(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device="cpu").to(like.device)
