"""What is in a gradient, in a few numbers: the least and the largest, the mean, the norm, NaN, a histogram."""

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
"""Where the bins of a histogram end on each side of zero: two bins per power of ten, from 1e-12 to 1e3."""

EDGES = (-math.inf, *(-edge for edge in reversed(MAGNITUDES)), 0.0, *MAGNITUDES, math.inf)
BINS = len(EDGES) - 1

SCALARS = 7
"""min, max, mean, norm and the numbers of NaN, infinite and zero elements."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many elements lie between one edge and the next. Elements that are zero, NaN or infinite are in no bin.

    Gradients span many powers of ten on both sides of zero, so the edges do, too, and are the same for all gradients:
    histograms can be compared bin by bin. The outermost bins take whatever is larger than 1000, the two innermost what
    is smaller than 1e-12.

    Attributes:
        counts: how many elements lie in each bin, the most negative values first.
        edges: of the bins, ascending, one more than there are bins: -inf, -1e3, two per power of ten, -1e-12, 0, 1e-12,
            and so on up to inf.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...] = field(default=EDGES, repr=False)


@dataclass(frozen=True, slots=True)
class Statistics:
    """A gradient in numbers.

    Of a DTensor they are those of this rank's part; of other wrapper subclasses those of the inner tensors
    (`__tensor_flatten__`), all of them together.

    Attributes:
        shape: None for nested tensors, which have none.
        dtype, device, layout: the gradient's own.
        count: the number of elements that were read; of a sparse tensor of all, stored or not.
        min, max, mean, norm: over the finite elements, of a complex gradient over absolute values, of a sparse one over
            the stored values (those of an index that comes twice are not added up). None where there are none. Computed
            in float32 for gradients of 16 or 32 bits, else in float64; the norm is the 2-norm.
        nan_count, inf_count, zero_count: what a sparse tensor doesn't store is zero.
        histogram: at level "full".
        unavailable: why there are no numbers (all of the above are None then).
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
    """A tensor's metadata and layout, and the number of elements that were read if its shape does not tell."""

    meta: TensorMeta
    layout: torch.layout
    elements: int | None = None


_NO_FORM = Form(TensorMeta(None, torch.float32, torch.device("cpu")), torch.strided)


@dataclass(frozen=True, slots=True)
class PendingStatistics:
    """Statistics that are on their way: the gradient itself is not kept, an accelerator is not waited for.

    `numbers` are min, max, mean, norm, the numbers of NaN, infinite and zero elements, and at level "full" the counts
    of the histogram: as floats, or as a vector on the gradient's accelerator. None where they are `unavailable`.
    """

    form: Form
    numbers: Sequence[float] | Tensor = ()
    unavailable: str | None = None

    def read(self) -> Statistics:
        """The numbers; waits for the accelerator."""
        if isinstance(self.numbers, Tensor):
            with unobserved():
                return PendingStatistics(self.form, self.numbers.tolist()).read()
        counts = self.numbers[SCALARS:]
        histogram = Histogram(tuple(map(int, counts))) if counts else None
        return as_statistics(self.form, self.numbers[:SCALARS], histogram, self.unavailable)


def statistics(gradient: Tensor | None, level: Level) -> Statistics | None:
    """The statistics of a gradient; None where there is no gradient, or at level "off".

    Raises:
        TypeError, ValueError: it is no tensor, or there is no such level. Nothing else: see `measure`.
    """
    if gradient is not None:
        expect(gradient, Tensor, "gradient", "a tensor or None")
    expect_choice(level, get_args(Level), "level")
    return None if gradient is None or level == "off" else measure(gradient, level).read()


def measure(gradient: Tensor, level: Level) -> PendingStatistics:
    """Computes the statistics of a gradient without waiting for an accelerator ("full" does wait on CUDA).

    On the CPU it reads a finite gradient four times, and adds its elements up as they lie in memory. On an accelerator
    it holds for a moment several temporaries of the gradient's size. Modes and tensor subclasses of the user's don't
    see it. Never raises: what can't be measured says why not.
    """
    form = _NO_FORM
    try:
        with unobserved():
            form = form_of(gradient)
            parts, unread = elements_of(gradient)
            if unread:
                return PendingStatistics(form, unavailable=unread)
            values = _all_values(parts)
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
    except Exception as error:  # an exotic tensor may raise anything; a record of a backward must not stop it
        message = str(error).partition("\n")[0]
        return PendingStatistics(form, unavailable=f"{type(error).__name__}: {message}")


def numbers_at_once(gradient: Tensor, level: Level) -> list[float] | None:
    """What `measure` finds of the usual gradient, for half the price: dense floats on the CPU.

    None for any other, and where that fails. To be called without grad mode, where no mode of the user's is on.
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
    """What the gradient looks like. To be called `unobserved`."""
    shape = None if gradient.is_nested else tuple(gradient.shape)
    return Form(TensorMeta(shape, gradient.dtype, gradient.device), gradient.layout)


def as_statistics(
    form: Form, numbers: Sequence[float] = (), histogram: Histogram | None = None, unavailable: str | None = None
) -> Statistics:
    """Puts a name to each number."""
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


def _all_values(parts: Sequence[Tensor]) -> Tensor:
    flat = [_values(each) for each in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat) if flat else torch.empty(0)


def _values(values: Tensor) -> Tensor:
    """The elements as real numbers that can be summed: float32, or float64 where float32 would lose some."""
    dtype = values.dtype
    if dtype.is_complex:
        values = computable(values).abs()
    elif dtype not in (torch.float32, torch.float64):
        wide = not dtype.is_floating_point and dtype.itemsize > 2 and values.device.type != "mps"
        values = values.to(torch.float64 if wide else torch.float32)
    return in_memory_order(values).flatten()


def in_memory_order(values: Tensor) -> Tensor:
    """The elements as they lie in memory, where that has no gaps; else a copy. Of a tensor that is contiguous the
    kernels see one dimension anyway."""
    if values.is_contiguous():
        return values
    if is_dense(values.shape, values.stride()):
        return values.as_strided((values.numel(),), (1,))
    return values.flatten()


def _numbers_now(values: Tensor, unstored: int) -> list[float]:
    """On the CPU it is known at once whether all are finite, and most gradients are: then no mask is needed."""
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


_FEW = 1024  # elements: as bools they would be counted no faster
_PART = 2**20  # elements of which there are bools at once


def _nonzero(values: Tensor, count: int) -> int:
    """How many are not zero. torch asks floats one by one, at some ten times the price of a sum where it can't foresee
    the answer; what it makes bools of it looks at by the dozen."""
    if count <= _FEW:
        return int(values.count_nonzero().item())
    if count <= _PART:
        return int(values.bool().count_nonzero().item())
    flat = values.flatten()
    parts = [flat[start : start + _PART].bool().count_nonzero().item() for start in range(0, count, _PART)]
    return int(sum(parts))


def _bounds(values: Tensor) -> tuple[float, float]:
    """The least and the largest; NaN if one element is."""
    if not values.numel():
        return math.nan, math.nan
    low, high = values.aminmax()
    return low.item(), high.item()


def _numbers_later(values: Tensor, unstored: int) -> Tensor:
    """The same as a vector on the values' device, by kernels alone: nothing here waits for a result."""
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
        scaled.sum().to(wide) / count * largest,  # NaN where nothing is finite
        torch.linalg.vector_norm(scaled).to(wide) * largest,
        nan_count,
        values.numel() - count - nan_count,
        (values == 0).sum() + unstored,
    )
    return torch.stack([number.to(wide) for number in found])


def _histogram(values: Tensor) -> Tensor:
    bins = torch.bucketize(values.contiguous(), _inner_edges(values.dtype, values.device), right=True)
    bins = bins.where(values.isfinite() & (values != 0), BINS)  # one bin more, for what is in none
    return torch.bincount(bins, minlength=BINS + 1)[:BINS]


@cache
def _inner_edges(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(EDGES[1:-1], dtype=dtype, device=device)
