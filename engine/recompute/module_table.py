"""A recompute plan as a table by module: what is let go of and newly kept there, what runs again, and how long."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...inspector.graph.phrases import pattern
from ...inspector.text.sizes_and_counts import size_text

if TYPE_CHECKING:
    from .plan import PlannedStorage, RecomputePlan

HEADINGS = ("module", "let go", "newly kept", "replays", "replay time", "operations")
RIGHT = ("let go", "newly kept", "replays", "replay time")
"""The headings of columns of numbers."""

_MOST_ROWS = 12  # the others are one
_MOST_NAMES = 3  # of operations of one kind in a row


def module_cells(plan: RecomputePlan) -> list[list[str]]:
    """The table as text, its headings first: by module, those that differ in a number in one row, and their sum.

    What a step was measured to take longer for replays is told to the modules as their operations take time. There are
    no rows where nothing is dropped.
    """
    modules: dict[str, _Row] = {}
    for each in plan.storages:
        if each.fate != "kept":
            modules.setdefault(pattern(each.module or ""), _Row()).add(each)
    rows = sorted(modules.items(), key=lambda item: (-item[1].nbytes, -item[1].seconds, -item[1].kept_bytes))
    whole = _Row()
    for _, row in rows:
        whole.merge(row)
    if not whole.replays:
        return [list(HEADINGS)]
    scale = 1.0
    if plan.predicted is not None and whole.seconds:
        scale = plan.predicted.replay_seconds / whole.seconds
    shown = len(rows) if len(rows) == _MOST_ROWS + 1 else _MOST_ROWS  # "1 more" would take a row, too
    found = [row.cells(name or "outside any module", scale) for name, row in rows[:shown]]
    if rest := rows[shown:]:
        more = _Row()
        for _, row in rest:
            more.merge(row)
        found.append(more.cells(f"{len(rest)} more", scale))
    if len(rows) > 1:
        found.append([*whole.cells("in all", scale)[:-1], ""])
    return [list(HEADINGS), *found]


def module_sentences(plan: RecomputePlan) -> list[str]:
    """What words of the table mean, where they are in it."""
    saved = {each.made_by for each in plan.storages if each.fate == "dropped"}
    found = []
    if any(each.fate == "dropped on the way" and each.made_by not in saved for each in plan.storages):
        found.append("On the way: no node saves it, but a replay reads it, and so it is made again first.")
    if plan.newly_kept_bytes:
        found.append("Newly kept: no node saves it, but a replay reads it, and so it now outlives the forward.")
    return found


def operation_name(name: str) -> str:
    """`mul` of `aten.mul.Tensor`."""
    return name.split(".")[1] if "." in name else name


def ms_text(seconds: float) -> str:
    """`5.2 ms`, `0.04 ms`."""
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e3 * seconds:.2g} ms"


class _Row:
    """What is dropped and kept of the modules of one pattern.

    Attributes:
        nbytes: of what nodes save, and is let go of.
        kept_bytes: of what is newly kept.
        replays: the operations that run again: one that makes several storages does so at once.
        seconds: what they take by themselves.
    """

    def __init__(self) -> None:
        self.nbytes = self.kept_bytes = 0
        self._again: dict[int, PlannedStorage] = {}  # by the operation that makes it
        self._seconds: dict[int, float] = {}
        self._kept: list[PlannedStorage] = []

    @property
    def replays(self) -> int:
        return len(self._again)

    @property
    def seconds(self) -> float:
        return sum(self._seconds.values())

    def add(self, storage: PlannedStorage) -> None:
        """Counts a storage that is not simply kept."""
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
        """Adds what another one has. An operation belongs to one module, so none is in both."""
        self.nbytes += other.nbytes
        self.kept_bytes += other.kept_bytes
        self._again |= other._again
        self._seconds |= other._seconds
        self._kept += other._kept

    def cells(self, module: str, scale: float) -> list[str]:
        """The row as text. A number that says nothing is left out."""
        saved = [each for each in self._again.values() if each.fate == "dropped"]
        on_the_way = [each for each in self._again.values() if each.fate != "dropped"]
        kinds = {"": saved, "on the way: ": on_the_way, "newly kept: ": self._kept}
        return [
            module,
            size_text(self.nbytes) if saved else "",
            size_text(self.kept_bytes) if self.kept_bytes else "",
            f"{self.replays:,}" if self.replays else "",
            ms_text(scale * self.seconds) if self.replays else "",
            "; ".join(word + _names(storages) for word, storages in kinds.items() if storages),
        ]


def _names(storages: list[PlannedStorage]) -> str:
    """`mul ×5, gelu, …`."""
    most = Counter(operation_name(each.operation) for each in storages).most_common()
    names = [name if count == 1 else f"{name} ×{count:,}" for name, count in most[:_MOST_NAMES]]
    return ", ".join([*names, "…"] if len(most) > _MOST_NAMES else names)
