"""The report of `ts.recompute`: counts of dropped and recomputed storages, and deviations from the plan."""

from __future__ import annotations

from dataclasses import dataclass

from ...inspector.text.sizes_and_counts import counted, size_text
from .follow_forward import banned_sentence
from .plan import PlannedStorage


@dataclass(frozen=True, slots=True)
class RecomputeReport:
    """Counts of the storages that a plan dropped and recomputed so far.

    Attributes:
        forwards: number of forwards that ran as planned, to the end of the plan or of the `with` block.
        dropped, dropped_bytes: number and size of the saved storages that were dropped.
        replayed, replayed_bytes: number and size of the storages that were recomputed, intermediate ones included.
        operations, seconds: number of operations run for that, and the time on the host.
        banned: storages that the plan drops but that are kept, each with the reason: recomputing them failed or gave
            different bits.
        notes: other deviations from the plan, as sentences.
    """

    forwards: int
    dropped: int
    dropped_bytes: int
    replayed: int
    replayed_bytes: int
    operations: int
    seconds: float
    banned: tuple[tuple[PlannedStorage, str], ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        dropped, replayed = ("was" if number == 1 else "were" for number in (self.dropped, self.replayed))
        said = [
            f"{counted(self.dropped, 'saved storage')} {dropped} dropped, {size_text(self.dropped_bytes)}.",
            f"{counted(self.replayed, 'storage')} {replayed} recomputed, {size_text(self.replayed_bytes)}, by "
            f"{counted(self.operations, 'operation')} in {1e3 * self.seconds:.1f} ms.",
        ]
        if self.banned:
            said.append(f"{banned_sentence(self.banned)}.")
        return "\n".join([*said, *self.notes])


def _count(number: int, what: str) -> str:
    return f"1 {what} was" if number == 1 else f"{number:,} {what}s were"
