"""Compares a derivative with finite differences, and finds the element that differs most."""

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

_MOST = 2**20  # elements of an input: each look costs two forwards
_EACH = 256  # up to so many, all are looked at
_LAST = 16  # so many are looked at when halving is done
_DIRECTIONS = 2  # in one alone, the differences of a half may happen to cancel


@dataclass(frozen=True, slots=True)
class Element:
    """One element of an input.

    Attributes:
        index: where it is.
        value: what it is.
        given: its gradient, by the backward.
        expected: its gradient, by finite differences.
    """

    index: tuple[int, ...]
    value: float
    given: float
    expected: float

    @property
    def apart(self) -> float:
        """How far the two gradients are apart; infinite where the backward's is no number."""
        return abs(self.given - self.expected) if isfinite(self.given) else float("inf")


def furthest_element(differences: FiniteDifferences, place: int, gradient: Tensor) -> Element | None:
    """The element of an input for which this gradient is furthest from finite differences.

    In an input of many elements the half that differs more is halved again, along random directions: then the element
    is one of those that are far apart. None where nothing differs, or where to look would take long.
    """
    point, scale = differences.points[place], differences.scale(place)
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
    furthest = max(found, key=lambda each: each.apart, default=None)
    if furthest is None or furthest.apart <= ALLOWED * max(abs(furthest.given), abs(furthest.expected)):
        return None
    return furthest


def _looked_at(differences: FiniteDifferences, place: int, gradient: Tensor, elements: Tensor) -> Sequence[Element]:
    point, scale = differences.points[place], differences.scale(place)
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
    directions = [differences.direction(place, number) for number in range(_DIRECTIONS)]

    def apart(some: Tensor) -> list[float]:
        """How far apart in each direction, where only these elements move."""
        only = torch.zeros_like(gradient, dtype=torch.bool)
        only.view(-1)[some] = True
        moves = [torch.where(only, direction, torch.zeros_like(direction)) for direction in directions]
        return [differences.along(place, gradient, move) - differences.slope(place, move) for move in moves]

    total = apart(elements)
    while len(elements) > _LAST:
        first, second = elements.tensor_split(2)
        of_first = apart(first)
        of_second = [both - one for both, one in zip(total, of_first, strict=True)]
        takes_first = sum(each * each for each in of_first) >= sum(each * each for each in of_second)
        elements, total = (first, of_first) if takes_first else (second, of_second)
    return elements


ALLOWED = 1e-3  # as in gradcheck: so far apart, relatively, may a derivative and a finite difference be
DIRECTIONS = 5
STEP = 2e-7
_NOISE = 5e-5  # a derivative below this part of the output's own size drowns in the rounding of finite differences
_MOST_FOR_EACH = 256  # elements of all inputs, and of all outputs, up to which gradcheck takes one after the other


class _DenseGradient(torch.autograd.Function):
    """Passes a tensor on, and its gradient with all zeros: gradcheck calls a sparse one of a dense tensor wrong."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return dense(gradients[0])


class FiniteDifferences:
    """Finite differences of an operation at one place, along random directions.

    Instead of the outputs, their product with random `cotangents` is followed: its gradients are what a backward gives
    for these. An input is moved by parts of its elements' own sizes, so that a tensor of small numbers isn't left where
    the operation is another one.

    Why not `torch.autograd.gradcheck` alone: it takes all elements of inputs and outputs, one by one; its fast mode
    allows an absolute difference which grows with the sizes (from 10,000 elements on, a gradient of the wrong sign
    passes), and where it finds one it computes the whole Jacobian to say so. `each_element` calls it where it can.

    Args:
        symmetric: moves symmetric matrices in directions in which they stay symmetric.
        step: by which part of its size an element is moved.

    Attributes:
        cotangents: one for each output.
        left_out: how many elements of the outputs are NaN or infinite, and so not followed.
        count: how many elements the outputs have.
    """

    def __init__(
        self, replay: OperationReplay, points: Sequence[Tensor], symmetric: bool = False, step: float = STEP
    ) -> None:
        self._replay = replay
        self._symmetric = symmetric
        self._step = step
        self.points = points
        self._scales = [_sizes(each) for each in points]
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
        """The same at the same place, for other cotangents."""
        other = copy(self)
        other._follow(cotangents)
        return other

    def scale(self, place: int) -> Tensor:
        """The sizes of one input's elements, by parts of which they are moved; zero where one can't be."""
        return self._scales[place]

    def slopes(self, place: int) -> _Slopes:
        """The slopes along each direction of one input."""
        found = self._found.get(place)
        if found is None:
            found = self._found[place] = self._slopes(place)
        return found

    def slope(self, place: int, direction: Tensor) -> float:
        """The slope along one direction of one input, in units of its elements' sizes."""
        step = self._step * self._scales[place] * direction
        return self._difference(self._moved(place, step), self._moved(place, -step)) / (2 * self._step)

    def along(self, place: int, gradient: Tensor, direction: Tensor) -> float:
        """What the slope should be if this is the gradient for that input."""
        scale = self._scales[place]
        return _inner(torch.where(scale == 0, torch.zeros_like(gradient), gradient), scale * direction)

    def is_flat(self, place: int) -> bool:
        """Whether nothing changes in whichever direction that input is moved."""
        slopes = self.slopes(place)
        return not any([*slopes.before, *slopes.middle, *slopes.after])

    def apart(self, place: int, gradient: Tensor | None) -> float:
        """How far the gradient for that input is from finite differences, relative to the larger. NaN if either is."""
        expected = self.slopes(place).middle
        return _apart(expected, self._along_each(place, gradient), self._noise)

    def factor(self, place: int, gradient: Tensor) -> float | None:
        """By what the gradient has to be multiplied to be right; None if no number does it."""
        expected, given = self.slopes(place).middle, self._along_each(place, gradient)
        size = sum(each * each for each in given)
        if not isfinite(size) or size == 0:
            return None
        factor = sum(one * other for one, other in zip(expected, given, strict=True)) / size
        right = factor != 0 and _apart(expected, [factor * each for each in given], self._noise) <= ALLOWED
        return factor if right else None

    def is_defined(self, place: int) -> bool:
        """Whether the operation gives numbers on both sides of here."""
        return all(map(isfinite, self.slopes(place).middle))

    def has_kink(self, place: int, gradient: Tensor | None) -> bool:
        """Whether the slopes on the two sides differ by so much that this gradient is off for that."""
        slopes = self.slopes(place)
        given = self._along_each(place, gradient)
        gap = max(abs(after - before) for before, after in zip(slopes.before, slopes.after, strict=True))
        off = max(abs(one - other) for one, other in zip(slopes.middle, given, strict=True))
        smooth = 1e-4 * max(map(abs, slopes.middle)) + ALLOWED * self._noise
        return gap > smooth and gap > 0.2 * off

    @property
    def takes_each_element(self) -> bool:
        """Whether it is small enough for gradcheck, and what it gives is finite."""
        elements = max(self.count, sum(each.numel() for each in self.points))
        simple = not self.left_out and not self._symmetric
        return elements <= _MOST_FOR_EACH and simple and all(bool((each > 0).all()) for each in self._scales)

    def each_element(self) -> str | None:
        """What gradcheck says against the operation's backward; None if nothing, or if there are too many elements."""
        if not self.takes_each_element:
            return None
        largest = max(
            (abs(slope) for place in range(len(self.points)) for slope in self.slopes(place).middle), default=0
        )
        unit = 1 / largest if largest and isfinite(largest) else 1.0

        def moved(*steps: Tensor) -> tuple[Tensor, ...]:
            places = [
                _DenseGradient.apply(point + scale * step)  # type: ignore[no-untyped-call]
                for point, scale, step in zip(self.points, self._scales, steps, strict=True)
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
        """Places a small step away, where a kink at this one is none. Each number gives others."""
        return [
            point + 1e-3 * scale * _random(point, 1000 * (number + 1) + place)
            for place, (point, scale) in enumerate(zip(self.points, self._scales, strict=True))
        ]

    def direction(self, place: int, number: int) -> Tensor:
        """One of the random directions of an input."""
        point = self.points[place]
        direction = _random(point, 10 * (place + 1) + number)
        return direction + direction.mH if self._symmetric and is_symmetric(point) else direction

    def _along_each(self, place: int, gradient: Tensor | None) -> list[float]:
        if gradient is None:
            return [0.0] * DIRECTIONS
        return [self.along(place, gradient, self.direction(place, number)) for number in range(DIRECTIONS)]

    def _slopes(self, place: int) -> _Slopes:
        before, middle, after = [], [], []
        for number in range(DIRECTIONS):
            step = self._step * self._scales[place] * self.direction(place, number)
            high, low = self._moved(place, step), self._moved(place, -step)
            after.append(self._difference(high, self._outputs) / self._step)
            before.append(self._difference(self._outputs, low) / self._step)
            middle.append(self._difference(high, low) / (2 * self._step))
        return _Slopes(before, middle, after)

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
    """One number for each direction: from before to here, from before to after, from here to after."""

    before: list[float]
    middle: list[float]
    after: list[float]


def _apart(some: Sequence[float], others: Sequence[float], noise: float) -> float:
    values = [*some, *others]
    if not all(map(isfinite, values)):
        return float("nan")
    largest = max(noise, *map(abs, values))
    return max(abs(one - other) for one, other in zip(some, others, strict=True)) / largest if largest else 0.0


def is_symmetric(tensor: Tensor) -> bool:
    """Whether it is a symmetric (hermitian) matrix, or several."""
    square = tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] > 1
    return square and torch.allclose(tensor, tensor.mH, rtol=1e-5, atol=0)


def _inner(gradient: Tensor, step: Tensor) -> float:
    """By how much what has this gradient grows along the step: torch's gradients of complex tensors are conjugate."""
    return (gradient.conj() * step).sum().real.item()


def _sizes(tensor: Tensor) -> Tensor:
    """The size of each element: its own, where that is not much below the tensor's; zero where it is not finite."""
    finite = tensor.isfinite()
    size = torch.where(finite, tensor.abs(), torch.zeros((), dtype=torch.float64, device=tensor.device))
    usual = size.square().sum().div(finite.sum().clamp(min=1)).sqrt()
    usual = torch.where(usual == 0, torch.ones_like(usual), usual)
    return torch.where(finite, torch.where(size == 0, usual, size.maximum(1e-4 * usual)), torch.zeros_like(size))


def _random(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device="cpu").to(like.device)
