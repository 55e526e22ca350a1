"""Statistics of gradients: minimum, maximum, mean, norm, numbers of NaN, infinite and zero elements, a histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ...inspector.graph.graph import TensorMeta
from ...inspector.torch_private.tensors import SPARSE, computable, elements_of
from ...inspector.torch_private.thread_state import unobserved
from ...inspector.validation import expect, expect_choice
from ..execution.gradient_layouts import is_dense

Level = Literal["off", "cheap", "full"]

MAGNITUDES = tuple(10.0 ** (exponent / 2) for exponent in range(-24, 7))
"""The edges of a histogram's bins on each side of zero: two bins per power of ten, from 1e-12 to 1e3."""

EDGES = (-math.inf, *(-edge for edge in reversed(MAGNITUDES)), 0.0, *MAGNITUDES, math.inf)
BINS = len(EDGES) - 1

SCALARS = 7
"""min, max, mean, norm and the numbers of NaN, infinite and zero elements."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of elements between each edge and the next. Zero, NaN and infinite elements are in no bin.

    Gradients span many powers of ten on both sides of zero, and so do the edges, which are the same for all gradients:
    histograms can be compared bin by bin. The outermost bins contain absolute values above 1000, the two innermost
    those below 1e-12.

    Attributes:
        counts: the number of elements in each bin, most negative values first.
        edges: the ascending edges, one more than bins: -inf, -1e3, two per power of ten, -1e-12, 0, 1e-12, and so on up
            to inf.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...] = field(default=EDGES, repr=False)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of a gradient.

    For a DTensor they are those of this rank's part; for other wrapper subclasses, those of all inner tensors together
    (`__tensor_flatten__`).

    Attributes:
        shape: the shape; None for nested tensors.
        dtype, device, layout: those of the gradient.
        count: the number of elements that were read; for a sparse tensor, all elements, stored or not.
        min, max, mean, norm: over the finite elements; over absolute values for a complex gradient; over the stored
            values for a sparse one (values of a repeated index are not summed). None without finite elements. Computed
            in float32 for gradients of 16 or 32 bits, else in float64; the norm is the 2-norm.
        nan_count, inf_count, zero_count: the numbers of such elements; elements not stored in a sparse tensor are zero.
        histogram: the histogram at level "full".
        unavailable: the reason why there are no numbers (all of the above are None then).
    """

    shape: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    count: int | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    norm: float | None = None
    nan_count: int | None = None
    inf_count: int | None = None
    zero_count: int | None = None
    histogram: Histogram | None = None
    unavailable: str | None = None


class Form(NamedTuple):
    """A tensor's metadata and layout, and the number of elements read if it does not follow from the shape."""

    meta: TensorMeta
    layout: torch.layout
    elements: int | None = None


_NO_FORM = Form(TensorMeta(None, torch.float32, torch.device("cpu")), torch.strided)


@dataclass(frozen=True, slots=True)
class PendingStatistics:
    """Statistics that an accelerator may still be computing, without waiting for it or keeping the gradient.

    `numbers` are min, max, mean, norm, the numbers of NaN, infinite and zero elements, and at level "full" the counts
    of the histogram: as floats, or as a vector on the gradient's accelerator. None where they are `unavailable`.
    """

    form: Form
    numbers: Sequence[float] | Tensor = ()
    unavailable: str | None = None

    def read(self) -> Statistics:
        """Return the statistics; wait for the accelerator."""
        if isinstance(self.numbers, Tensor):
            with unobserved():
                return PendingStatistics(self.form, self.numbers.tolist()).read()
        counts = self.numbers[SCALARS:]
        histogram = Histogram(tuple(map(int, counts))) if counts else None
        return as_statistics(self.form, self.numbers[:SCALARS], histogram, self.unavailable)


def statistics(gradient: Tensor | None, level: Level) -> Statistics | None:
    """Return the statistics of a gradient; None without a gradient, or at level "off".

    Raises:
        TypeError, ValueError: If `gradient` is not a tensor, or `level` is unknown. Nothing else, see `measure`.
    """
    if gradient is not None:
        expect(gradient, Tensor, "gradient", "a tensor or None")
    expect_choice(level, get_args(Level), "level")
    return None if gradient is None or level == "off" else measure(gradient, level).read()


def measure(gradient: Tensor, level: Level) -> PendingStatistics:
    """Compute the statistics of a gradient without waiting for an accelerator ("full" does wait on CUDA).

    On the CPU this reads a finite gradient four times and sums its elements in memory order. On an accelerator it needs
    several temporaries of the gradient's size for a moment. The user's modes and tensor subclasses do not see these
    operations. It never raises: the result has the reason if the gradient cannot be measured.
    """
    form = _NO_FORM
    try:
        with unobserved():
            form = form_of(gradient)
            parts, unread = elements_of(gradient)
            if unread:
                return PendingStatistics(form, unavailable=unread)
            flat = [_values(each) for each in parts]
            values = flat[0] if len(flat) == 1 else torch.cat(flat) if flat else torch.empty(0)
            del flat  # with several parts, these are other tensors
            unstored = gradient.numel() - values.numel() if gradient.layout in SPARSE else 0
            if gradient.is_nested or values.numel() + unstored != gradient.numel():
                form = form._replace(elements=values.numel())
            on_cpu = values.device.type == "cpu"
            numbers = _numbers_now(values, unstored) if on_cpu else _numbers_later(values, unstored)
            if level == "full":
                counts = _histogram(values)
                if isinstance(numbers, Tensor):
                    numbers = torch.cat([numbers, counts.to(numbers.dtype)])
                else:
                    numbers = [*numbers, *counts.tolist()]
            return PendingStatistics(form, numbers)
    except Exception as error:  # an unusual tensor may raise anything; recording must not stop the backward
        message = str(error).partition("\n")[0]
        return PendingStatistics(form, unavailable=f"{type(error).__name__}: {message}")


def numbers_at_once(gradient: Tensor, level: Level) -> list[float] | None:
    """Return the result of `measure` for a usual gradient (dense floats on the CPU), at half the cost.

    None for any other gradient, or if that fails. Must be called without grad mode and without user modes.
    """
    if type(gradient) is not Tensor or gradient.layout is not torch.strided or gradient.dtype not in _FLOATS:
        return None
    if not gradient.is_cpu or gradient.is_nested:
        return None
    try:
        values = in_memory_order(gradient)
        numbers = _numbers_now(values, 0)
        return numbers if level == "cheap" else [*numbers, *_histogram(values.flatten()).tolist()]
    except Exception:  # as in `measure`, which says why
        return None


_FLOATS = torch.float32, torch.float64


def form_of(gradient: Tensor) -> Form:
    """Return the gradient's form. Must be called inside `unobserved`."""
    shape = None if gradient.is_nested else tuple(gradient.shape)
    return Form(TensorMeta(shape, gradient.dtype, gradient.device), gradient.layout)


def as_statistics(
    form: Form, numbers: Sequence[float] = (), histogram: Histogram | None = None, unavailable: str | None = None
) -> Statistics:
    """Convert a list of numbers to `Statistics`."""
    shape, dtype, device, layout = form.meta.shape, form.meta.dtype, form.meta.device, form.layout
    if unavailable is not None:
        return Statistics(shape, dtype, device, layout, unavailable=unavailable)
    low, high, mean, norm, nan_count, inf_count, zero_count = numbers
    some = not math.isnan(mean)
    return Statistics(
        shape,
        dtype,
        device,
        layout,
        prod(shape or ()) if form.elements is None else form.elements,
        low if some else None,
        high if some else None,
        mean if some else None,
        norm if some else None,
        int(nan_count),
        int(inf_count),
        int(zero_count),
        histogram,
    )


def _values(values: Tensor) -> Tensor:
    """Return the elements as real numbers that can be summed: float32, or float64 if float32 would lose precision."""
    dtype = values.dtype
    if dtype.is_complex:
        values = computable(values).abs()
    elif dtype not in (torch.float32, torch.float64):
        wide = not dtype.is_floating_point and dtype.itemsize > 2 and values.device.type != "mps"
        values = values.to(torch.float64 if wide else torch.float32)
    return in_memory_order(values).flatten()


def in_memory_order(values: Tensor) -> Tensor:
    """Return the elements in memory order, without a copy if memory has no gaps. For a contiguous tensor, kernels use
    one dimension anyway."""
    if values.is_contiguous():
        return values
    if is_dense(values.shape, values.stride()):
        return values.as_strided((values.numel(),), (1,))
    return values.flatten()


def _numbers_now(values: Tensor, unstored: int) -> list[float]:
    """Compute the numbers on the CPU, without a mask if all elements are finite, as in most gradients."""
    count = values.numel()
    nan_count = inf_count = 0
    low, high = _bounds(values)
    if count and not (math.isfinite(low) and math.isfinite(high)):
        nan_count = int(values.isnan().sum())
        values = values[values.isfinite()]
        inf_count = count - nan_count - values.numel()
        count = values.numel()
        low, high = _bounds(values)
    if not count:
        return [math.nan, math.nan, math.nan, math.nan, nan_count, inf_count, unstored]
    zero_count = unstored + count - _nonzero(values, count)
    largest = max(-low, high)
    if largest and not 1e-12 < largest < 1e12:  # squares and sums might leave the range of the numbers
        values = values / largest
    else:
        largest = 1.0
    mean = values.sum().item() / count * largest
    norm = torch.linalg.vector_norm(values).item() * largest
    return [low, high, mean, norm, nan_count, inf_count, zero_count]


_FEW = 1024  # elements up to which a conversion to bools is not faster
_PART = 2**20  # elements converted to bools at a time


def _nonzero(values: Tensor, count: int) -> int:
    """Return the number of non-zero elements. torch tests floats one by one, at about ten times the cost of a sum if
    branches are mispredicted; the conversion to bools is vectorized."""
    if count <= _FEW:
        return int(values.count_nonzero().item())
    if count <= _PART:
        return int(values.bool().count_nonzero().item())
    flat = values.flatten()
    parts = [flat[start : start + _PART].bool().count_nonzero().item() for start in range(0, count, _PART)]
    return int(sum(parts))


def _bounds(values: Tensor) -> tuple[float, float]:
    """Return the minimum and the maximum; NaN if an element is NaN."""
    if not values.numel():
        return math.nan, math.nan
    low, high = values.aminmax()
    return low.item(), high.item()


def _numbers_later(values: Tensor, unstored: int) -> Tensor:
    """Compute the same numbers as a vector on the values' device, with kernels only, without waiting for results."""
    wide = torch.float32 if values.device.type == "mps" else torch.float64
    if not values.numel():
        numbers = torch.full((SCALARS,), math.nan, dtype=wide, device=values.device)
        numbers[4:6] = 0
        numbers[6] = unstored
        return numbers
    finite = values.isfinite()
    kept = values.where(finite, 0)
    count = finite.sum()
    nan_count = values.isnan().sum()
    largest = kept.abs().amax()
    scaled = kept / largest.where(largest > 0, 1)
    largest = largest.to(wide)
    found = (
        values.where(finite, math.inf).amin(),
        values.where(finite, -math.inf).amax(),
        scaled.sum().to(wide) / count * largest,  # NaN if no element is finite
        torch.linalg.vector_norm(scaled).to(wide) * largest,
        nan_count,
        values.numel() - count - nan_count,
        (values == 0).sum() + unstored,
    )
    return torch.stack([number.to(wide) for number in found])


def _histogram(values: Tensor) -> Tensor:
    bins = torch.bucketize(values.contiguous(), _inner_edges(values.dtype, values.device), right=True)
    bins = bins.where(values.isfinite() & (values != 0), BINS)  # one more bin, for elements that belong to none
    return torch.bincount(bins, minlength=BINS + 1)[:BINS]


@cache
def _inner_edges(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(EDGES[1:-1], dtype=dtype, device=device)
