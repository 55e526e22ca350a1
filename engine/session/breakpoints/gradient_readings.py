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

    Known limitation: elements beyond 1e19 or below 1e-19 have squares outside the range of float32, in which norms are
    summed.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[torch.device, torch.dtype, int], _Batch] = {}
        self._coming: deque[_Batch] = deque()

    def __bool__(self) -> bool:
        return bool(self._open or self._coming)

    def ask(self, gradient: Tensor, needs: frozenset[Need], judge: Callable[[Reading], None]) -> str:
        """Launch the reading of a gradient and return ""; or return the reason why it cannot be read. Must be called
        `unobserved`."""
        parts, unread = elements_of(gradient)
        if unread:
            return unread
        plain = [each if each.dtype in PLAIN or each.is_complex() else each.float() for each in map(computable, parts)]
        values = plain[0] if len(plain) == 1 else torch.cat([each.flatten() for each in plain or [torch.empty(0)]])
        if not values.numel():
            judge(Reading(norm=0.0))
            return ""
        # One kernel, the largest absolute value, decides "finite" and "zero": it is NaN if an element is.
        # torch needs a complex dtype for complex tensors.
        dtype = values.dtype if values.is_complex() else _wide(values.dtype)
        numbers = [torch.linalg.vector_norm(values, math.inf, dtype=dtype)]
        if "norm" in needs:
            numbers.append(torch.linalg.vector_norm(values, dtype=dtype))
        if "inf" in needs:
            numbers.append(values.isinf().any().to(numbers[0].dtype))
        # Kernels of one stream finish in order, so one copy after the last of them has all results.
        device = values.device
        stream = 0 if device.type == "cpu" else torch.accelerator.current_stream(device).stream_id
        key = device, numbers[0].dtype, stream
        batch = self._open.get(key)
        if batch is None:
            batch = self._open[key] = _Batch(device)
        batch.numbers += numbers
        batch.asked.append((needs, judge))
        if len(batch.asked) >= _TOGETHER:
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
        while self._coming and (wait or ((sent := self._coming[0].sent) is not None and sent.is_ready())):
            self._coming.popleft().judge()

    def forget(self) -> None:
        """Discard all pending readings."""
        self._open.clear()
        self._coming.clear()


class _Batch:
    """Readings that are copied together."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.numbers: list[Tensor] = []
        self.asked: list[tuple[frozenset[Need], Callable[[Reading], None]]] = []
        self.sent: LateTensor | None = None

    def send(self) -> None:
        self.sent = LateTensor(torch.stack(self.numbers))
        self.numbers.clear()

    def judge(self) -> None:
        assert self.sent is not None
        numbers = iter(self.sent.read().tolist())
        for needs, judge in self.asked:
            largest = next(numbers)
            norm = next(numbers) if "norm" in needs else math.nan
            inf = bool(next(numbers)) if "inf" in needs else math.isinf(largest)
            judge(Reading(math.isnan(largest), inf, largest == 0, norm))
