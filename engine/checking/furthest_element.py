"""Where a gradient and finite differences are furthest apart: one element, to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from .derivative import ALLOWED, FiniteDifferences

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
