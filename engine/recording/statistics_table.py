"""The statistics of many gradients in columns: about 80 bytes per gradient, plus the non-empty bins of histograms."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from ...inspector.torch_private.thread_state import unobserved
from .statistics import BINS, SCALARS, Form, Histogram, PendingStatistics, Statistics, as_statistics

_UNKNOWN = (0.0,) * SCALARS
_MOST_PENDING = 4096  # measurements per device: each is a separate tensor until they are stacked


@dataclass(slots=True)
class StatisticsColumns:
    """One row per gradient. The bins of row i from `first_bin[i]` on are in `bins` from `bins_at[i]` on."""

    form: array[int] = field(default_factory=lambda: array("i"))
    low: array[float] = field(default_factory=lambda: array("d"))
    high: array[float] = field(default_factory=lambda: array("d"))
    mean: array[float] = field(default_factory=lambda: array("d"))
    norm: array[float] = field(default_factory=lambda: array("d"))
    nan_count: array[int] = field(default_factory=lambda: array("q"))
    inf_count: array[int] = field(default_factory=lambda: array("q"))
    zero_count: array[int] = field(default_factory=lambda: array("q"))
    first_bin: array[int] = field(default_factory=lambda: array("b"))
    bin_count: array[int] = field(default_factory=lambda: array("b"))  # -1 without a histogram
    bins_at: array[int] = field(default_factory=lambda: array("q"))
    bins: array[int] = field(default_factory=lambda: array("q"))

    def copy(self) -> StatisticsColumns:
        return StatisticsColumns(*(getattr(self, column.name)[:] for column in fields(self)))


class StatisticsTable:
    """Rows of statistics, added without waiting for an accelerator and read on access.

    Numbers that an accelerator computes stay there until they are read, 56 bytes per gradient (568 with a histogram).

    Args:
        columns, forms, unavailable: the first rows: each gradient's form is an index into `forms`; `unavailable` has
            the reasons for rows without numbers.
    """

    def __init__(
        self,
        columns: StatisticsColumns | None = None,
        forms: Iterable[Form] = (),
        unavailable: Mapping[int, str] | None = None,
    ) -> None:
        self.columns = columns or StatisticsColumns()
        self.forms = list(forms)
        self.unavailable = dict(unavailable or {})
        self._form_numbers = {form: number for number, form in enumerate(self.forms)}
        self._pending: dict[torch.device, list[tuple[int, Tensor]]] = {}
        self._stacked: list[tuple[list[int], Tensor]] = []
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.columns.form)

    def add(self, measurements: Sequence[PendingStatistics]) -> int:
        """Add one row per measurement and return the number of the first."""
        with self._lock:
            first = len(self)
            for row, measurement in enumerate(measurements, first):
                numbers = measurement.numbers
                known = measurement.unavailable is None and not isinstance(numbers, Tensor)
                form = self.form_number(measurement.form)
                self.add_numbers(form, numbers if known else _UNKNOWN)  # type: ignore[arg-type]
                if measurement.unavailable is not None:
                    self.unavailable[row] = measurement.unavailable
                elif isinstance(numbers, Tensor):
                    pending = self._pending.setdefault(numbers.device, [])
                    pending.append((row, numbers))
                    if len(pending) >= _MOST_PENDING:
                        with unobserved():
                            self._stack(numbers.device)
            return first

    def form_number(self, form: Form) -> int:
        """Return the index of this form in `forms`."""
        with self._lock:
            number = self._form_numbers.get(form)
            if number is None:
                number = self._form_numbers[form] = len(self.forms)
                self.forms.append(form)
            return number

    def add_numbers(self, form_number: int, numbers: Sequence[float]) -> None:
        """Add a row of known numbers for a gradient of this form."""
        columns = self.columns
        with self._lock:
            columns.low.append(numbers[0])
            columns.high.append(numbers[1])
            columns.mean.append(numbers[2])
            columns.norm.append(numbers[3])
            columns.nan_count.append(int(numbers[4]))
            columns.inf_count.append(int(numbers[5]))
            columns.zero_count.append(int(numbers[6]))
            columns.first_bin.append(0)
            columns.bins_at.append(0)
            columns.bin_count.append(-1)
            columns.form.append(form_number)  # last, because its length is the number of rows
            if len(numbers) > SCALARS:
                self._fill_bins(len(self) - 1, numbers[SCALARS:])

    def row(self, number: int) -> Statistics:
        """Return the statistics of one row; wait for the accelerator that computes them."""
        with self._lock:
            self._read_all()
        columns = self.columns
        form = self.forms[columns.form[number]]
        if number in self.unavailable:
            return as_statistics(form, unavailable=self.unavailable[number])
        numbers = (
            columns.low[number],
            columns.high[number],
            columns.mean[number],
            columns.norm[number],
            columns.nan_count[number],
            columns.inf_count[number],
            columns.zero_count[number],
        )
        histogram, length = None, columns.bin_count[number]
        if length >= 0:
            first, start = columns.first_bin[number], columns.bins_at[number]
            empty_after = BINS - first - length
            histogram = Histogram((0,) * first + tuple(columns.bins[start : start + length]) + (0,) * empty_after)
        return as_statistics(form, numbers, histogram)

    def snapshot(self) -> StatisticsTable:
        """Return a copy of the current rows, read from the accelerators."""
        with self._lock:
            self._read_all()
            return StatisticsTable(self.columns.copy(), self.forms, self.unavailable)

    def _read_all(self) -> None:
        """Read the numbers that accelerators have computed."""
        if not self._pending and not self._stacked:
            return
        columns = self.columns
        with unobserved():
            for device in list(self._pending):
                self._stack(device)
            for rows, numbers in self._stacked:
                for row, found in zip(rows, numbers.tolist(), strict=True):
                    columns.low[row], columns.high[row], columns.mean[row], columns.norm[row] = found[:4]
                    columns.nan_count[row] = int(found[4])
                    columns.inf_count[row] = int(found[5])
                    columns.zero_count[row] = int(found[6])
                    if len(found) > SCALARS:
                        self._fill_bins(row, found[SCALARS:])
            self._stacked.clear()

    def _stack(self, device: torch.device) -> None:
        pending = self._pending.pop(device)
        self._stacked.append(([row for row, _ in pending], torch.stack([numbers for _, numbers in pending])))

    def _fill_bins(self, row: int, counts: Sequence[float]) -> None:
        columns = self.columns
        full = [number for number, count in enumerate(counts) if count] or [0]
        columns.first_bin[row] = full[0]
        columns.bin_count[row] = full[-1] + 1 - full[0]
        columns.bins_at[row] = len(columns.bins)
        columns.bins.extend(map(int, counts[full[0] : full[-1] + 1]))
