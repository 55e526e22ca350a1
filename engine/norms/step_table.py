"""Numbers of each step, as many as there are, in bounded memory: the older, the coarser."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ABSENT = -1.0
"""Where a step has no number. Norms are none of that; NaN and Inf are numbers like others."""

_FIRST_ROWS = 256
_FEWEST_ROWS = 64


class StepTable:
    """A row of numbers a step. When it is full the older half of its rows is pooled by two, four, eight, ... steps,
    until a quarter of the table has room again: the newer half stays single steps, and at least an eighth of the rows
    tells evenly of all that was before. Pooled rows hold the largest of each number; where one was NaN, NaN.

    Args:
        most: how many numbers it may hold.
        absent: stands where a step has none.

    Attributes:
        count: how many rows there are.
    """

    def __init__(self, most: int, absent: float = ABSENT) -> None:
        self._most = most
        self._absent = absent
        self.count = 0
        self._values = torch.empty(0, 0, dtype=torch.float32, device="cpu")
        self._firsts = torch.empty(0, dtype=torch.int64, device="cpu")
        self._lasts = torch.empty(0, dtype=torch.int64, device="cpu")

    @property
    def values(self) -> Tensor:
        """float32 of (rows, numbers)."""
        return self._values[: self.count]

    @property
    def firsts(self) -> Tensor:
        """The first step of each row."""
        return self._firsts[: self.count]

    @property
    def lasts(self) -> Tensor:
        """The last one."""
        return self._lasts[: self.count]

    def add(self, steps: Sequence[int], rows: Tensor) -> None:
        """More rows, of later steps. They may have more numbers than those before: of these they had none."""
        numbers = rows.shape[1]
        if numbers > self._values.shape[1]:
            self._resize(self._values.shape[0], numbers)
        limit = max(_FEWEST_ROWS, self._most // max(1, numbers))
        start = 0
        while start < len(steps):
            if self.count == self._values.shape[0]:
                if self.count >= limit:
                    self._pool(limit)
                else:
                    self._resize(min(limit, max(_FIRST_ROWS, 2 * self.count)), self._values.shape[1])
            more = min(len(steps) - start, self._values.shape[0] - self.count)
            place, taken = slice(self.count, self.count + more), slice(start, start + more)
            self._values[place, :numbers] = rows[taken]
            self._values[place, numbers:] = self._absent
            self._firsts[place] = self._lasts[place] = torch.tensor(steps[taken], dtype=torch.int64, device="cpu")
            self.count += more
            start += more

    def _resize(self, rows: int, numbers: int) -> None:
        values = torch.full((rows, numbers), self._absent, dtype=torch.float32, device="cpu")
        values[: self.count, : self._values.shape[1]] = self.values
        firsts, lasts = (torch.zeros(rows, dtype=torch.int64, device="cpu") for _ in range(2))
        firsts[: self.count], lasts[: self.count] = self.firsts, self.lasts
        self._values, self._firsts, self._lasts = values, firsts, lasts

    def _pool(self, limit: int) -> None:
        """The older half becomes at most a quarter of the table's rows."""
        older = self.count // 2
        steps = int(self._lasts[older - 1] - self._firsts[0]) + 1
        size = 2
        while -(-steps // size) > max(1, limit // 4):
            size *= 2
        groups = (self._firsts[:older] - self._firsts[0]) // size
        _, places, counts = torch.unique_consecutive(groups, return_inverse=True, return_counts=True)
        ends = counts.cumsum(0)
        pooled = ends.numel()
        values = torch.full((pooled, self._values.shape[1]), self._absent, dtype=torch.float32, device="cpu")
        values.scatter_reduce_(0, places[:, None].expand(-1, values.shape[1]), self._values[:older], "amax")
        firsts, lasts = self._firsts[ends - counts], self._lasts[ends - 1]
        kept = self.count - older
        for table, new in ((self._values, values), (self._firsts, firsts), (self._lasts, lasts)):
            table[pooled : pooled + kept] = table[older : self.count].clone()
            table[:pooled] = new
        self.count = pooled + kept
