"""The search for a plan: which storages to drop, greedily or by local search."""

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
        recomputed: what the backward is like then.
        evaluations: how many choices were judged.
        seconds: how long it took.
        interrupted: the user stopped it (KeyboardInterrupt); this is the best until then.
    """

    dropped: frozenset[int]
    levels: RecomputedLevels
    evaluations: int
    seconds: float
    interrupted: bool = False


class Candidates:
    """What may be dropped, and what else has to be so that no replay needs anything that is not there.

    Args:
        memory: the backward.
        products: whether matrix products and convolutions may be replayed.
    """

    def __init__(self, memory: RecomputedMemory, products: bool = True) -> None:
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


_GREEDY_LIMITS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Shares of the time that replays may take, with each of which the greedy planner is tried: what it keeps falls with
more time, the peak need not."""

# What the search by moves goes by. The choices were made by hand: there is no theory for them, and none is critical.

_LEAST_SHARE = 1 / 4096
"""Of the peak: a smaller storage is never a move of its own. A hundred of them together are 2 % of it."""

_PEAK_WIDTH = 0.004
"""Of the plain peak: how far below the highest level another one counts 1/e as much as that in the soft peak."""

_WIDTHS_COUNTED = 12
"""So many of these widths below the highest level the sum stops: what is left out counts under e^-12 each, 0.0006 %."""

_ALIKE_SHARE = 0.25
"""Of the moves: all storages that are made in one way go together, such as the same activation of each layer."""

_REPAIRED_SHARE = 0.8
"""Of the moves whose replays take too much time: something else is kept again until they fit. The others stay, at a
price, or two storages would never change places."""

_FASTER = 0.97
"""Once the wanted peak is reached: the share of the best choice's time that the next one may take."""

_LEAST_LIMIT = 0.001
"""Of the time that replaying everything takes: where less is allowed, too much is measured against this, not by 0."""

_TIME_PRICE = 5.0
"""What it costs to take twice the time that is allowed, in plain peaks. Such a choice is only a way."""

_FIRST_ROUND, _LONGER = 500, 1.3
"""Moves until the search starts again from the best, and by what factor each round is longer than the last: short
rounds find what is near, long ones what is not."""

_NEW_SHARE = 0.02
"""Of a round's moves: where fewer lead to a choice that was not judged before, all that is near has been looked at."""

_BARREN_ROUNDS = 3
"""So many rounds in a row that better nothing end the search: the last alone is longer than the first two."""

_LOWER = 0.0005
"""Of the plain peak: by so much less a round betters it."""

_MOST_KNOWN = 100_000
"""Choices that are known again: some 30 MB of a graph with a hundred storages that may be dropped."""

_WARMEST, _COLDEST = 0.02, 0.0005
"""The temperatures of a round's start and end, in plain peaks: a choice worse by so much is taken with probability 1/e
(Kirkpatrick, Gelatt and Vecchi, Optimization by Simulated Annealing, 1983). In between it falls geometrically."""


def greedy(memory: RecomputedMemory, goal: Goal) -> FoundDrops:
    """Drops what saves most bytes per nanosecond, as long as what is kept falls (Zheng et al., Echo, ISCA 2020).

    What a replay would newly keep alive counts against what it drops, over the whole graph. Where several replays would
    newly keep the same storage, they are one candidate, too: attention scores, none of which pays alone. What is kept
    is not the peak, so it is tried with several limits on the time, and the best peak is taken.
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
    """What is dropped together."""
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
    """Takes units by bytes per nanosecond; what a unit is worth is looked at again when its turn has come."""
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
    looks = 20 * len(units)
    while queue:
        _, place = heappop(queue)
        saved, ns = worth(units[place])
        if saved <= 0 or spent + ns > limit_ns:
            continue
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
    """Drops a storage more or one less, and simulates what the levels near the peak become. Never worse than greedy.

    A move is of one storage, with what has to be replayed for it, or of all that are made in the same way (the layers
    of a stack); if it takes too much time, others are kept again. Where a peak is wanted, each choice that reaches it
    has to take less time than the one before. A choice is simulated once, however often moves lead to it. It ends early
    where no choice at all could lower the peak, where a whole round finds next to none that is new, or several rounds
    in a row none that is better. Ctrl-C ends it with the best choice so far.

    Args:
        memory: the backward.
        goal: what is wanted.
        start: what to begin with if it is better than what `greedy` finds.
        seconds: how long at most.
        evaluations: how many moves at most; what is found then depends on `seed` alone, given enough seconds.
        progress: is told what has been found, now and then.
        seed: of the random numbers.
    """
    began = told = perf_counter()
    first = greedy(memory, goal)
    if start is not None and goal.rank(memory.levels_if_dropped(start)) < goal.rank(first.levels):
        first = replace(first, dropped=frozenset(start))
    searching = _Search(memory, goal, random.Random(seed), first.dropped)
    interrupted = False
    try:
        with collector_paused():
            while not searching.done and (evaluations is None or searching.tried < evaluations):
                searching.try_move()
                if not searching.tried & 15:
                    now = perf_counter()
                    if now - began >= seconds:
                        break
                    if progress is not None and now - told >= 0.1:
                        told = now
                        progress(searching.found(now - began))
    except KeyboardInterrupt:
        interrupted = True
    return searching.found(perf_counter() - began, interrupted)


class _Known(NamedTuple):
    """What the search goes by of a choice that it has simulated."""

    soft_peak: float
    peak_bytes: int
    replay_ns: float
    peak_place: int


class _Search:
    """Simulated annealing in rounds that each start from the best, on a soft peak: all levels near the highest count,
    so that of two equal peaks one can be lowered after the other."""

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
        self._judged = 0  # choices that were simulated
        self._known: dict[frozenset[int], _Known] = {}
        self._best = frozenset(memory.reached(start))
        self._best_is = memory.levels_if_dropped(self._best)
        self.done = not self.moves or (not self._best and self._best_is.peak_bytes <= candidates.lowest_peak_bytes())
        self._barren = 0
        self._worth_it = self._best_is.peak_bytes  # as a round last bettered it
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
        """After a round. Where a peak is wanted, long rounds still find choices that take less time."""
        best = self._best_is.peak_bytes
        if self._worth_it - best > _LOWER * self._memory.plain_peak_bytes or self._goal.peak_bytes is not None:
            self._barren, self._worth_it = 0, best
        else:
            self._barren += 1
        new = self._judged - self._judged_before
        return self._barren >= _BARREN_ROUNDS or new < _NEW_SHARE * (self._round_ends - self._round_starts)

    def _judge(self, found: RecomputedLevels) -> _Known:
        """What a choice costs but for its time: its soft peak as a share of the plain one."""
        plain = self._memory.plain_peak_bytes
        peak, width = found.peak_bytes, plain * _PEAK_WIDTH
        if self._goal.peak_bytes is not None and peak <= self._goal.peak_bytes:
            soft = float(self._goal.peak_bytes)
        else:
            least = peak - _WIDTHS_COUNTED * width
            soft = peak + width * log(1 + sum(exp((level - peak) / width) for level in found.peaks if level > least))
        return _Known(soft / plain, peak, found.replay_ns, found.peak_place)

    def _energy_of(self, known: _Known) -> float:
        """With the price of time that is too much."""
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
        """Keeps again some of what is dropped, first what is gone by the peak, until the replays fit the time."""
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
"""Takes the backward, what is wanted, for how many seconds, what to begin with, and whom to tell."""


def _by_greedy(memory: RecomputedMemory, goal: Goal, seconds: float, start: object, progress: object) -> FoundDrops:
    return greedy(memory, goal)


def _by_search(
    memory: RecomputedMemory,
    goal: Goal,
    seconds: float,
    start: Iterable[int] | None,
    progress: Callable[[FoundDrops], object] | None,
) -> FoundDrops:
    return search(memory, goal, start=start, seconds=seconds, progress=progress)


SOLVERS: dict[str, Solver] = {"search": _by_search, "greedy": _by_greedy}
"""By name."""
