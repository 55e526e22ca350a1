"""Cheap readings of gradients for watchpoints: at once, or without waiting for a device."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ....inspector.torch_private.tensors import LateTensor, computable, elements_of
from ...recording.statistics import measure

Need = Literal["finite", "inf", "zero", "norm"]
"""The values to read: whether all elements are finite; whether one is infinite even if another is NaN; whether all are
zero; the 2-norm."""

PLAIN = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Dtypes that torch can sum without a conversion; float8 is not one."""

_TOGETHER = 32  # readings copied from a device at once


@dataclass(frozen=True, slots=True)
class Reading:
    """The values read from a gradient; those not requested are as in a finite, non-zero gradient with NaN as its
    norm."""

    nan: bool = False
    inf: bool = False
    zero: bool = False
    norm: float = math.nan


FINITE = Reading()


def read_now(gradient: Tensor, needs: frozenset[Need]) -> Reading | None:
    """Read a gradient at once, waiting for its device; None if it cannot be read. Must be called `unobserved`.

    A finite sum shows that all elements are finite, in one pass at memory speed. Only other gradients are examined
    further, also because sums overflow: those of 16-bit gradients, and of large numbers.
    """
    plain = type(gradient) is Tensor and gradient.layout is torch.strided and gradient.dtype in PLAIN
    if not plain or gradient.is_meta or gradient.is_nested:
        return _read_exotic(gradient)
    nan = inf = zero = False
    norm = math.nan
    if needs != {"norm"}:
        total = gradient.sum().item()
        if not math.isfinite(total):
            nan = bool(gradient.isnan().any())
            inf = bool(gradient.isinf().any())
        elif total == 0 and "zero" in needs:
            zero = gradient.numel() > 0 and not gradient.count_nonzero()
    if "norm" in needs:
        norm = float(torch.linalg.vector_norm(gradient, dtype=_wide(gradient.dtype)))
        if norm == 0 or math.isinf(norm):  # the squares may have left the dtype's range
            exact = _read_exotic(gradient)
            norm = norm if exact is None else exact.norm
    return Reading(nan, inf, zero, norm)


def why_unread(gradient: Tensor) -> str:
    """Return the reason why `read_now` cannot read a gradient; "" if it can."""
    return measure(gradient, "cheap").unavailable or ""


def _read_exotic(gradient: Tensor) -> Reading | None:
    """Read a gradient of a rare layout, dtype or subclass, as the statistics do."""
    found = measure(gradient, "cheap").read()
    if found.unavailable is not None:
        return None
    nan, inf = bool(found.nan_count), bool(found.inf_count)
    norm = math.nan if nan else math.inf if inf else found.norm or 0.0
    return Reading(nan, inf, bool(found.count) and found.zero_count == found.count, norm)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a gradient's norm is summed."""
    return torch.float32 if dtype.itemsize < 4 else dtype


class LateReadings:
    """Readings of gradients on accelerators: kernels are launched now, many results are copied at once, without
    waiting.

    Each reading is passed to its `judge` after it has been copied, in the order of the requests on one stream. The
    gradient itself is not kept.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[torch.device, torch.dtype, int], _Batch] = {}
        self._coming: deque[_Batch] = deque()

    def __bool__(self) -> bool:
        return bool(self._open or self._coming)

    def ask(self, gradient: Tensor, needs: frozenset[Need], judge: Callable[[Reading], None]) -> str:
        """Launch the reading of a gradient and return ""; or return the reason why it cannot be read. Must be called
        `unobserved`."""
        values = _plain_values(gradient)
        if isinstance(values, str):
            return values
        if not values.numel():
            judge(Reading(norm=0.0))
            return ""
        # One kernel, the largest absolute value, decides "finite" and "zero": it is NaN if an element is.
        numbers = [torch.linalg.vector_norm(values, math.inf, dtype=_real(values.dtype))]
        if "norm" in needs:
            numbers.append(torch.linalg.vector_norm(values, dtype=_real(values.dtype)))
        if "inf" in needs:
            numbers.append(values.isinf().any().to(numbers[0].dtype))
        # Kernels of one stream finish in order, so one copy after the last of them has all results.
        key = values.device, numbers[0].dtype, _stream(values.device)
        batch = self._open.get(key)
        if batch is None:
            batch = self._open[key] = _Batch(values.device)
        batch.add(numbers, needs, judge)
        if len(batch) >= _TOGETHER:
            del self._open[key]
            batch.send()
            self._coming.append(batch)
        return ""

    def look(self, wait: bool) -> None:
        """Pass on the readings that have been copied; with `wait`, all that were requested."""
        if wait and self._open:
            for device in {batch.device for batch in self._open.values()}:
                if device.type != "cpu":  # the numbers may be from several streams
                    torch.accelerator.synchronize(device)
            for batch in self._open.values():
                batch.send()
                self._coming.append(batch)
            self._open.clear()
        while self._coming and (wait or self._coming[0].is_ready()):
            self._coming.popleft().judge()

    def forget(self) -> None:
        """Discard all pending readings."""
        self._open.clear()
        self._coming.clear()


class _Batch:
    """Readings that are copied together."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._numbers: list[Tensor] = []
        self._asked: list[tuple[frozenset[Need], Callable[[Reading], None]]] = []
        self._sent: LateTensor | None = None

    def __len__(self) -> int:
        return len(self._asked)

    def add(self, numbers: list[Tensor], needs: frozenset[Need], judge: Callable[[Reading], None]) -> None:
        self._numbers.extend(numbers)
        self._asked.append((needs, judge))

    def send(self) -> None:
        self._sent = LateTensor(torch.stack(self._numbers))
        self._numbers.clear()

    def is_ready(self) -> bool:
        return self._sent is not None and self._sent.is_ready()

    def judge(self) -> None:
        assert self._sent is not None
        numbers = iter(self._sent.read().tolist())
        for needs, judge in self._asked:
            largest = next(numbers)
            norm = next(numbers) if "norm" in needs else math.nan
            inf = bool(next(numbers)) if "inf" in needs else math.isinf(largest)
            judge(Reading(math.isnan(largest), inf, largest == 0, norm))


def _plain_values(gradient: Tensor) -> Tensor | str:
    """Return the elements as a tensor that has a norm, or the reason why they cannot be read."""
    parts, unread = elements_of(gradient)
    if unread:
        return unread
    values = [_of_plain_dtype(each) for each in parts]
    return values[0] if len(values) == 1 else torch.cat([each.flatten() for each in values or [torch.empty(0)]])


def _of_plain_dtype(values: Tensor) -> Tensor:
    values = computable(values)
    return values if values.dtype in PLAIN or values.is_complex() else values.to(torch.float32)


def _real(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which norms of this dtype are summed; torch needs a complex dtype for complex tensors.

    Known limitation: elements beyond 1e19 or below 1e-19 have squares outside the range of float32.
    """
    if dtype.is_complex:
        return dtype
    return _wide(dtype)


def _stream(device: torch.device) -> int:
    return 0 if device.type == "cpu" else torch.accelerator.current_stream(device).stream_id
