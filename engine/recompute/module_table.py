"""A recompute plan as a table by module: memory dropped and newly kept, and operations recomputed, with their time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...inspector.graph.phrases import pattern
from ...inspector.text.sizes_and_counts import size_text

if TYPE_CHECKING:
    from .plan import PlannedStorage, RecomputePlan

HEADINGS = ("module", "dropped", "newly kept", "recomputed", "recompute time", "operations")
RIGHT = ("dropped", "newly kept", "recomputed", "recompute time")
"""Headings of the right-aligned columns, which hold numbers."""

_MOST_ROWS = 12  # all further modules share one row
_MOST_NAMES = 3  # operation names of one kind in a row


def module_cells(plan: RecomputePlan) -> list[list[str]]:
    """Return the table as text: headings, a row for each group of modules that differ only in a number, and the total.

    The measured recompute time of a step is distributed over the modules in proportion to the times of their
    operations. If nothing is dropped, there are only headings.
    """
    modules: dict[str, _Row] = {}
    for each in plan.storages:
        if each.fate != "kept":
            modules.setdefault(pattern(each.module or ""), _Row()).add(each)
    rows = sorted(modules.items(), key=lambda item: (-item[1].nbytes, -item[1].seconds, -item[1].kept_bytes))
    total = _Row()
    for _, row in rows:
        total.merge(row)
    if not total.replays:
        return [list(HEADINGS)]
    scale = 1.0  # predicted time, which includes the cost of calls, over the sum of the operations' times
    if plan.predicted is not None and total.seconds:
        scale = plan.predicted.replay_seconds / total.seconds
    shown = len(rows) if len(rows) == _MOST_ROWS + 1 else _MOST_ROWS  # a row "1 more" saves no space
    found = [row.cells(name or "outside any module", scale) for name, row in rows[:shown]]
    if rest := rows[shown:]:
        more = _Row()
        for _, row in rest:
            more.merge(row)
        found.append(more.cells(f"{len(rest)} more", scale))
    if len(rows) > 1:
        found.append([*total.cells("total", scale)[:-1], ""])
    return [list(HEADINGS), *found]


def module_sentences(plan: RecomputePlan) -> list[str]:
    """Explain the terms that occur in the table."""
    saved = {each.made_by for each in plan.storages if each.fate == "dropped"}
    found = []
    if any(each.fate == "intermediate" and each.made_by not in saved for each in plan.storages):
        found.append("Intermediate: no node saves it, but it is recomputed as an input of others.")
    if plan.newly_kept_bytes:
        found.append("Newly kept: no node saves it, but it outlives the forward as an input of recomputation.")
    return found


def operation_name(name: str) -> str:
    """Return `mul` for `aten.mul.Tensor`."""
    return name.split(".")[1] if "." in name else name


def ms_text(seconds: float) -> str:
    """Format a time as `5.2 ms` or `0.04 ms`."""
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e3 * seconds:.2g} ms"


class _Row:
    """The totals of the modules in one row.

    Attributes:
        nbytes: bytes of saved storages that are dropped.
        kept_bytes: bytes of newly kept storages.
        replays: number of operations that run again; an operation with several outputs counts once.
        seconds: time of these operations alone.
    """

    def __init__(self) -> None:
        self.nbytes = self.kept_bytes = 0
        self._again: dict[int, PlannedStorage] = {}  # by operation
        self._seconds: dict[int, float] = {}
        self._kept: list[PlannedStorage] = []

    @property
    def replays(self) -> int:
        return len(self._again)

    @property
    def seconds(self) -> float:
        return sum(self._seconds.values())

    def add(self, storage: PlannedStorage) -> None:
        """Add a storage that is dropped, intermediate or newly kept."""
        if storage.fate == "newly kept":
            self.kept_bytes += storage.nbytes
            self._kept.append(storage)
            return
        maker = storage.made_by
        if storage.fate == "dropped":
            self.nbytes += storage.nbytes
        if storage.fate == "dropped" or maker not in self._again:
            self._again[maker] = storage
        self._seconds[maker] = max(storage.seconds, self._seconds.get(maker, 0.0))

    def merge(self, other: _Row) -> None:
        """Add another row. An operation belongs to one module, so no operation is in both rows."""
        self.nbytes += other.nbytes
        self.kept_bytes += other.kept_bytes
        self._again |= other._again
        self._seconds |= other._seconds
        self._kept += other._kept

    def cells(self, module: str, scale: float) -> list[str]:
        """Return the row as text, with empty cells for zeros."""
        saved = [each for each in self._again.values() if each.fate == "dropped"]
        intermediate = [each for each in self._again.values() if each.fate != "dropped"]
        kinds = {"": saved, "intermediate: ": intermediate, "newly kept: ": self._kept}
        return [
            module,
            size_text(self.nbytes) if saved else "",
            size_text(self.kept_bytes) if self.kept_bytes else "",
            f"{self.replays:,}" if self.replays else "",
            ms_text(scale * self.seconds) if self.replays else "",
            "; ".join(word + _names(storages) for word, storages in kinds.items() if storages),
        ]


def _names(storages: list[PlannedStorage]) -> str:
    """Return the most frequent operations, such as `mul ×5, gelu, …`."""
    most = Counter(operation_name(each.operation) for each in storages).most_common()
    names = [name if count == 1 else f"{name} ×{count:,}" for name, count in most[:_MOST_NAMES]]
    return ", ".join([*names, "…"] if len(most) > _MOST_NAMES else names)
