"""The solvers, which choose the storages to drop: a greedy one and a local search."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import exp, inf, log
from time import perf_counter
from typing import NamedTuple, Protocol

from ...inspector.garbage_collector import collector_paused
from .predicted_memory import RecomputedLevels, RecomputedMemory


class PeakAndTime(Protocol):
    """The peak and the time of a choice, which a goal compares."""

    @property
    def peak_bytes(self) -> int: ...

    @property
    def replay_ns(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Goal:
    """The limits and the objective of a search.

    Attributes:
        replay_ns: upper limit of the recompute time.
        peak_bytes: the peak to reach in as little time as possible; None for the lowest peak.
        products: whether matrix products and convolutions may be recomputed.
    """

    replay_ns: float = inf
    peak_bytes: int | None = None
    products: bool = True

    def rank(self, found: PeakAndTime) -> tuple[float, float, float]:
        """Return a sort key; lower is better: time above the limit, peak above the goal, then the objective."""
        late = max(0.0, found.replay_ns - self.replay_ns)
        if self.peak_bytes is None:
            return late, found.peak_bytes, found.replay_ns
        return late, max(0, found.peak_bytes - self.peak_bytes), found.replay_ns

    def met(self, found: PeakAndTime) -> bool:
        """Return whether a choice is within the time limit and the peak."""
        return found.replay_ns <= self.replay_ns and (self.peak_bytes is None or found.peak_bytes <= self.peak_bytes)


@dataclass(frozen=True, slots=True)
class FoundDrops:
    """The result of a solver.

    Attributes:
        dropped: numbers of the storages to drop.
        levels: the predicted levels of the backward.
        evaluations: number of choices that were simulated.
        seconds: time of the search.
        interrupted: whether the user stopped it (KeyboardInterrupt); this is the best choice until then.
    """

    dropped: frozenset[int]
    levels: RecomputedLevels
    evaluations: int
    seconds: float
    interrupted: bool = False


class Candidates:
    """The storages that may be dropped, and those to drop together with them.

    Args:
        memory: the predicted memory of the backward.
        products: whether matrix products and convolutions may be recomputed.
    """

    def __init__(self, memory: RecomputedMemory, products: bool = True) -> None:
        self.memory = memory
        self._storages = memory.storages
        self.may_drop = [
            each.droppable and not held and (products or not each.product)
            for each, held in zip(memory.storages, memory.held, strict=True)
        ]

    def kept(self) -> list[int]:
        """Return the storages that may be dropped and that nodes save."""
        return [number for number, may in enumerate(self.may_drop) if may and self.memory.places[number]]

    def lowest_peak_bytes(self) -> int:
        """Return a lower bound of the peak: all storages that may be dropped never exist, and nothing is recomputed."""
        return self.memory.without([number for number, may in enumerate(self.may_drop) if may])

    def with_makers(self, number: int, dropped: Collection[int] = (), stop_at_products: bool = False) -> set[int]:
        """Return a storage together with those inputs of its recomputation that no node saves and that may be dropped.

        With `stop_at_products`, outputs of matrix products are newly kept instead.
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


_GREEDY_LIMITS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Shares of the time limit that the greedy solver tries. With more time it keeps fewer bytes, but the peak may rise."""

# Parameters of the local search. They were chosen by hand, without theory, and no value is critical.

_LEAST_SHARE = 1 / 4096
"""Share of the peak. Smaller storages are not moved: a hundred of them together are 2 % of the peak."""

_PEAK_WIDTH = 0.004
"""Share of the plain peak. A level this far below the highest counts 1/e as much in the soft peak."""

_WIDTHS_COUNTED = 12
"""Levels more than this many widths below the highest are left out; each would count less than e^-12, 0.0006 %."""

_ALIKE_SHARE = 0.25
"""Share of moves that move all storages of one kind together, such as the same activation of each layer."""

_REPAIRED_SHARE = 0.8
"""Share of moves above the time limit that are repaired by keeping other storages. The others are only penalised, so
that two storages can change places."""

_FASTER = 0.97
"""Once the goal is reached, the time limit of the next choice as a share of the best choice's time."""

_LEAST_LIMIT = 0.001
"""Share of the time of recomputing everything; the smallest limit that an excess of time is divided by."""

_TIME_PRICE = 5.0
"""The penalty for twice the allowed time, in plain peaks. Such choices only lead to others."""

_FIRST_ROUND, _LONGER = 500, 1.3
"""Moves in the first round, and the factor by which each round is longer than the one before. Each round starts from
the best choice; short rounds search near it, long ones farther away."""

_NEW_SHARE = 0.02
"""Share of a round's moves. If fewer lead to new choices, the neighbourhood has been searched and the search ends."""

_BARREN_ROUNDS = 3
"""Number of rounds in a row without improvement that end the search."""

_LOWER = 0.0005
"""Share of the plain peak by which a round has to lower the best peak to count as an improvement."""

_MOST_KNOWN = 100_000
"""Number of simulated choices that are remembered: about 30 MB for a graph with a hundred droppable storages."""

_WARMEST, _COLDEST = 0.02, 0.0005
"""Temperatures at the start and end of a round, in plain peaks; in between they fall geometrically. A choice worse by
the temperature is accepted with probability 1/e (Kirkpatrick, Gelatt and Vecchi, Optimization by Simulated Annealing,
1983)."""


def greedy(memory: RecomputedMemory, goal: Goal) -> FoundDrops:
    """Drop the storages that save the most bytes per nanosecond while fewer bytes are kept (Echo, Zheng et al., 2020).

    Storages that recomputation would newly keep count against the dropped ones, over the whole graph. Storages whose
    recomputation would newly keep the same input are also one candidate together: attention scores do not pay off
    alone. Bytes kept are not the peak, so several time limits are tried and the choice with the best peak is returned.
    """
    began = perf_counter()
    candidates = Candidates(memory, goal.products)
    units = list(_units(candidates))
    limit = goal.replay_ns
    if limit == inf:
        limit = sum(each.replay_ns for each, may in zip(memory.storages, candidates.may_drop, strict=True) if may)
    chosen = [frozenset[int](), *(_greedy(memory, units, limit * share) for share in _GREEDY_LIMITS)]
    judged = [(memory.levels_if_dropped(each), each) for each in dict.fromkeys(chosen)]
    found, dropped = min(judged, key=lambda pair: goal.rank(pair[0]))
    return FoundDrops(dropped, found, len(judged), perf_counter() - began)


def _units(candidates: Candidates) -> Iterator[frozenset[int]]:
    """Yield the groups of storages that are dropped together."""
    memory = candidates.memory
    alone = dict.fromkeys(
        frozenset(candidates.with_makers(number, stop_at_products=stop))
        for number in candidates.kept()
        for stop in (False, True)
    )
    yield from alone
    sharing: dict[int, set[int]] = {}
    count: dict[int, int] = {}
    for unit in alone:
        for number in memory.newly_kept(unit):
            sharing.setdefault(number, set()).update(unit)
            count[number] = count.get(number, 0) + 1
    for number, together in sharing.items():
        if count[number] > 1:
            yield frozenset(together)


def _greedy(memory: RecomputedMemory, units: list[frozenset[int]], limit_ns: float) -> frozenset[int]:
    """Drop groups in order of bytes per nanosecond; a group is valued again when it is taken from the queue."""
    storages = memory.storages
    dropped: set[int] = set()
    needed: dict[int, int] = {}  # by storage how many dropped ones need it
    spent = 0.0

    def worth(unit: frozenset[int]) -> tuple[int, float]:
        new = unit - dropped
        saved, ns = 0, 0.0
        needs: set[int] = set()
        for number in new:
            each = storages[number]
            ns += each.replay_ns
            if each.start >= 0 or needed.get(number):
                saved += each.nbytes
            needs.update(each.needs)
        for number in needs - new:
            if number not in dropped and storages[number].start < 0 and not needed.get(number):
                saved -= storages[number].nbytes
        return saved, ns

    def rank(unit: frozenset[int]) -> float:
        saved, ns = worth(unit)
        return -saved / (ns + 1.0)

    queue = [(rank(unit), place) for place, unit in enumerate(units)]
    heapify(queue)
    looks = 20 * len(units)  # limit of revaluations
    while queue:
        _, place = heappop(queue)
        saved, ns = worth(units[place])
        if saved <= 0 or spent + ns > limit_ns:
            continue
        # A group's value changes as others are dropped: take it only if it is still the best in the queue.
        now = -saved / (ns + 1.0)
        looks -= 1
        if queue and now > queue[0][0] and looks > 0:
            heappush(queue, (now, place))
            continue
        for number in units[place] - dropped:
            for need in storages[number].needs:
                needed[need] = needed.get(need, 0) + 1
        dropped |= units[place]
        spent += ns
    return frozenset(memory.reached(dropped))


def search(
    memory: RecomputedMemory,
    goal: Goal,
    *,
    start: Iterable[int] | None = None,
    seconds: float = 5.0,
    evaluations: int | None = None,
    progress: Callable[[FoundDrops], object] | None = None,
    seed: int = 0,
) -> FoundDrops:
    """Improve the greedy choice by moves that drop or keep storages, judged by the predicted levels near the peak.

    A move drops or keeps one storage, with the inputs to recompute for it, or all storages of one kind (the layers of a
    stack). If it takes too much time, other storages are kept. Once the goal's peak is reached, each further choice has
    to take less time. A choice is simulated once, however often moves lead to it. The search ends early if no choice
    can lower the peak, if a round finds hardly any new choices, or if several rounds in a row find no better one.
    Ctrl-C ends it with the best choice so far. The result is never worse than the greedy one.

    Args:
        memory: the predicted memory of the backward.
        goal: the limits and the objective.
        start: a choice to start from if it is better than the greedy one.
        seconds: time limit.
        evaluations: limit of moves; the result then depends only on `seed`, if there is enough time.
        progress: a callback that is called with the best choice from time to time.
        seed: the seed of the random numbers.
    """
    began = reported = perf_counter()
    first = greedy(memory, goal)
    if start is not None and goal.rank(memory.levels_if_dropped(start)) < goal.rank(first.levels):
        first = replace(first, dropped=frozenset(start))
    searching = _Search(memory, goal, random.Random(seed), first.dropped)
    interrupted = False
    try:
        with collector_paused():  # choices are many small objects without reference cycles
            while not searching.done and (evaluations is None or searching.tried < evaluations):
                searching.try_move()
                if not searching.tried & 15:  # read the clock every 16 moves
                    now = perf_counter()
                    if now - began >= seconds:
                        break
                    if progress is not None and now - reported >= 0.1:
                        reported = now
                        progress(searching.found(now - began))
    except KeyboardInterrupt:
        interrupted = True
    return searching.found(perf_counter() - began, interrupted)


class _Known(NamedTuple):
    """The figures of a simulated choice that the search uses."""

    soft_peak: float
    peak_bytes: int
    replay_ns: float
    peak_place: int


class _Search:
    """Simulated annealing on a soft peak, in rounds that each start from the best choice.

    All levels near the highest count in the soft peak. So of two equal peaks one can be lowered after the other.
    """

    def __init__(self, memory: RecomputedMemory, goal: Goal, draw: random.Random, start: Iterable[int]) -> None:
        self._memory = memory
        self._goal = goal
        self._draw = draw
        self._candidates = candidates = Candidates(memory, goal.products)
        least = memory.plain_peak_bytes * _LEAST_SHARE
        storages = memory.storages
        self.moves = [
            number for number, may in enumerate(candidates.may_drop) if may and storages[number].nbytes >= least
        ]
        self._first = [places[0] if places else -1 for places in memory.places]
        self._last = [places[-1] if places else -1 for places in memory.places]
        self._alike: dict[int, list[int]] = {}
        for number in self.moves:
            self._alike.setdefault(storages[number].kind, []).append(number)
        self._every_ns = sum(storages[number].replay_ns for number in self.moves)
        self.tried = 0
        self._judged = 0  # number of simulated choices
        self._known: dict[frozenset[int], _Known] = {}
        self._best = frozenset(memory.reached(start))
        self._best_is = memory.levels_if_dropped(self._best)
        self.done = not self.moves or (not self._best and self._best_is.peak_bytes <= candidates.lowest_peak_bytes())
        self._barren = 0
        self._worth_it = self._best_is.peak_bytes  # the best peak after the last round that improved it
        self._round: float = _FIRST_ROUND
        self._new_round()

    def found(self, seconds: float, interrupted: bool = False) -> FoundDrops:
        return FoundDrops(self._best, self._best_is, self._judged, seconds, interrupted)

    def _new_round(self) -> None:
        self._dropped = self._best
        self._now = self._known[self._best] = self._judge(self._best_is)
        self._judged_before = self._judged
        self._limit_ns = min(self._goal.replay_ns, self._every_ns)
        if self._goal.peak_bytes is not None and self._goal.met(self._best_is):
            self._limit_ns = self._best_is.replay_ns * _FASTER
        self._energy = self._energy_of(self._now)
        self._round_starts, self._round_ends = self.tried, self.tried + int(self._round)
        self._round *= _LONGER

    def _is_exhausted(self) -> bool:
        """Return whether to end the search after a round.

        With a peak to reach it goes on while new choices are found: long rounds still find faster ones.
        """
        best = self._best_is.peak_bytes
        if self._worth_it - best > _LOWER * self._memory.plain_peak_bytes or self._goal.peak_bytes is not None:
            self._barren, self._worth_it = 0, best
        else:
            self._barren += 1
        new = self._judged - self._judged_before
        return self._barren >= _BARREN_ROUNDS or new < _NEW_SHARE * (self._round_ends - self._round_starts)

    def _judge(self, found: RecomputedLevels) -> _Known:
        """Return the figures of a choice, with its soft peak as a share of the plain peak."""
        plain = self._memory.plain_peak_bytes
        peak, width = found.peak_bytes, plain * _PEAK_WIDTH
        if self._goal.peak_bytes is not None and peak <= self._goal.peak_bytes:
            soft = float(self._goal.peak_bytes)
        else:
            least = peak - _WIDTHS_COUNTED * width
            soft = peak + width * log(1 + sum(exp((level - peak) / width) for level in found.peaks if level > least))
        return _Known(soft / plain, peak, found.replay_ns, found.peak_place)

    def _energy_of(self, known: _Known) -> float:
        """Return the soft peak plus the penalty for time above the limit."""
        late = known.replay_ns - self._limit_ns
        if late <= 0:
            return known.soft_peak
        return known.soft_peak + _TIME_PRICE * late / max(self._limit_ns, _LEAST_LIMIT * self._every_ns)

    def try_move(self) -> None:
        if self.tried >= self._round_ends:
            if self._is_exhausted():
                self.done = True
                return
            self._new_round()
        self.tried += 1
        dropped = frozenset(self._memory.reached(self._moved()))
        if dropped == self._dropped:
            return
        found = None
        known = self._known.get(dropped)
        if known is None:
            self._judged += 1
            found = self._memory.levels_if_dropped(dropped)
            known = self._judge(found)
            if len(self._known) < _MOST_KNOWN:
                self._known[dropped] = known
        energy = self._energy_of(known)
        share = (self.tried - self._round_starts) / (self._round_ends - self._round_starts)
        warmth = _WARMEST * (_COLDEST / _WARMEST) ** share
        # A worse choice is accepted with a probability that falls with the temperature (Metropolis criterion).
        if energy > self._energy and self._draw.random() >= exp((self._energy - energy) / warmth):
            return
        self._dropped, self._now, self._energy = dropped, known, energy
        if self._goal.rank(known) < self._goal.rank(self._best_is):
            found = found or self._memory.levels_if_dropped(dropped)
            self._best, self._best_is = dropped, found
            if self._goal.peak_bytes is not None and self._goal.met(found):
                self._new_round()

    def _moved(self) -> set[int]:
        draw, storages = self._draw, self._memory.storages
        dropped = set(self._dropped)
        peak = self._now.peak_place
        number = draw.choice(self.moves)
        for _ in range(3):
            if number in dropped or self._first[number] > peak:
                break
            number = draw.choice(self.moves)
        numbers = self._alike[storages[number].kind] if draw.random() < _ALIKE_SHARE else [number]
        if number in dropped:
            dropped.difference_update(numbers)
        else:
            stops = draw.random() < 0.5
            for each in numbers:
                if each not in dropped:
                    dropped |= self._candidates.with_makers(each, dropped, stops)
        if draw.random() < _REPAIRED_SHARE:
            self._shorten(dropped, peak)
        return dropped

    def _shorten(self, dropped: set[int], peak: int) -> None:
        """Keep dropped storages until the time fits, first those that the plain backward frees before the peak."""
        storages, draw = self._memory.storages, self._draw
        spent = sum(storages[number].replay_ns for number in dropped)
        if spent <= self._limit_ns:
            return
        queue = sorted(dropped, key=lambda number: (0 <= self._last[number] < peak) + draw.random())
        while queue and spent > self._limit_ns:
            number = queue.pop()
            spent -= storages[number].replay_ns
            dropped.discard(number)


Solver = Callable[
    [RecomputedMemory, Goal, float, Iterable[int] | None, Callable[[FoundDrops], object] | None],
    FoundDrops,
]
"""A solver: called with the memory, the goal, a time limit, a choice to start from and a progress callback."""


SOLVERS: dict[str, Solver] = {
    "search": lambda memory, goal, seconds, start, progress: search(
        memory, goal, start=start, seconds=seconds, progress=progress
    ),
    "greedy": lambda memory, goal, *_: greedy(memory, goal),
}
"""The solvers, by name."""
