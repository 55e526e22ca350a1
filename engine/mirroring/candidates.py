"""What a solver of mirror plans is given, and what it finds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Protocol

from .footprint import Mirrored, MirroredMemory


class PeakAndTime(Protocol):
    """What a choice comes to, as far as a goal is concerned."""

    @property
    def peak_bytes(self) -> int: ...

    @property
    def replay_ns(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted of a plan.

    Attributes:
        replay_ns: what all replays may take.
        peak_bytes: the peak that is enough, for as little time as possible; None: as low as it gets.
        products: whether matrix products and convolutions may be replayed.
    """

    replay_ns: float = inf
    peak_bytes: int | None = None
    products: bool = True

    def rank(self, found: PeakAndTime) -> tuple[float, float, float]:
        """The lower, the better: too much time, too high a peak, and then what is wanted least of."""
        late = max(0.0, found.replay_ns - self.replay_ns)
        if self.peak_bytes is None:
            return late, found.peak_bytes, found.replay_ns
        return late, max(0, found.peak_bytes - self.peak_bytes), found.replay_ns

    def met(self, found: PeakAndTime) -> bool:
        """Whether it takes no more time, and no more memory, than is allowed."""
        return found.replay_ns <= self.replay_ns and (self.peak_bytes is None or found.peak_bytes <= self.peak_bytes)


@dataclass(frozen=True, slots=True)
class FoundDrops:
    """What a planner found.

    Attributes:
        dropped: the numbers of the storages.
        mirrored: what the backward is like then.
        evaluations: how many choices were judged.
        seconds: how long it took.
        interrupted: the user stopped it (KeyboardInterrupt); this is the best until then.
    """

    dropped: frozenset[int]
    mirrored: Mirrored
    evaluations: int
    seconds: float
    interrupted: bool = False


class Candidates:
    """What may be dropped, and what else has to be so that no replay needs anything that is not there.

    Args:
        memory: the backward.
        products: whether matrix products and convolutions may be replayed.
    """

    def __init__(self, memory: MirroredMemory, products: bool = True) -> None:
        self.memory = memory
        self._storages = memory.storages
        self.may_drop = [
            each.droppable and not held and (products or not each.product)
            for each, held in zip(memory.storages, memory.held, strict=True)
        ]

    def kept(self) -> list[int]:
        """Those that nodes keep."""
        return [number for number, may in enumerate(self.may_drop) if may and self.memory.places[number]]

    def lowest_peak_bytes(self) -> int:
        """No choice has a lower peak: as if all that may be dropped were never there, and nothing replayed."""
        return self.memory.without([number for number, may in enumerate(self.may_drop) if may])

    def with_makers(self, number: int, dropped: Collection[int] = (), stop_at_products: bool = False) -> set[int]:
        """A storage, with all that its replay needs, is not kept by a node, and can be replayed, too.

        With `stop_at_products` the outputs of products are kept for the replay instead.
        """
        storages, places, may_drop = self._storages, self.memory.places, self.may_drop
        found = {number}
        stack = [number]
        while stack:
            for need in storages[stack.pop()].needs:
                if need in found or need in dropped or places[need] or not may_drop[need]:
                    continue
                if storages[need].start >= 0 or (stop_at_products and storages[need].product):
                    continue
                found.add(need)
                stack.append(need)
        return found
