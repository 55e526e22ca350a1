"""What to drop as a mixed-integer program: HiGHS, which the extra "mirror" brings with scipy."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from time import perf_counter

from .candidates import Candidates, FoundDrops, Goal
from .footprint import Mirrored, MirroredMemory

_MOST_ROUNDS = 30
_GAP = 1e-4  # a share of the peak: what is nearer to the bound is as good as it gets
_TIE = 1e-4  # of the objective: what the time counts where the peak is what matters


def has_scipy() -> bool:
    """Whether the solver is installed."""
    return find_spec("scipy") is not None


def milp(memory: MirroredMemory, goal: Goal, *, seconds: float = 10.0) -> FoundDrops:
    """Looks for what to drop, and for a bound that no choice is below.

    Of each storage there are two decisions: whether it is kept from the forward, and whether it is made again. What is
    saved is one or the other; what is made again needs its inputs to be so, too. The level is told for a few places of
    the order: of each storage, whether it has been made again by then, and whether it still lives. That is less than
    the simulation knows, so the solution is a bound; what it really comes to is simulated, the places where it is
    highest are told next time, and so on until the two meet. That is Checkmate (Jain et al., 2020) without its n²
    decisions, as in eager PyTorch each storage is made again once at most. Practical to some hundred storages.

    Args:
        memory: the backward.
        goal: what is wanted.
        seconds: how long at most.

    Raises:
        ModuleNotFoundError: scipy is not installed.
    """
    if not has_scipy():
        raise ModuleNotFoundError("the solver HiGHS is a part of scipy: pip install 'tapescope[mirror]'")
    began = perf_counter()
    dropped, found = frozenset[int](), memory.mirrored(())
    places = {max(range(len(found.peaks)), key=found.peaks.__getitem__)}
    tried: list[set[int]] = []
    bound = rounds = 0
    target = goal.peak_bytes
    while rounds < _MOST_ROUNDS and (left := seconds - (perf_counter() - began)) > 0:
        rounds += 1
        program = _Program(memory, replace(goal, peak_bytes=target), sorted(places), tried)
        chosen, at_least = program.solved(left)
        bound = max(bound, min(found.peak_bytes, at_least))  # what was tried is simulated, and no more in the program
        if chosen is None:
            break
        now = memory.mirrored(chosen)
        if goal.rank(now) < goal.rank(found):
            dropped, found = frozenset(memory.reached(chosen)), now
        enough = bound if goal.peak_bytes is None else goal.peak_bytes
        if now.peak_bytes <= enough + _GAP * memory.plain_peak_bytes * (goal.peak_bytes is None):
            break
        if new := _highest(now) - places:
            places |= new
        elif target is None:
            tried.append(chosen)
        else:  # by as much less is asked for as the replays themselves took
            target = max(1, target - (now.peak_bytes - enough))
    return FoundDrops(dropped, found, rounds, perf_counter() - began, bound_bytes=bound)


def _highest(found: Mirrored) -> set[int]:
    """The place of the peak, and of each quarter the highest, if it is nearly as high."""
    peaks, count = found.peaks, len(found.peaks)
    highest = set()
    for part in range(4):
        places = range(part * count // 4, (part + 1) * count // 4)
        place = max(places, key=peaks.__getitem__, default=0)
        if peaks[place] > 0.9 * found.peak_bytes:
            highest.add(place)
    return highest


class _Program:
    """Minimise c x, where each row is at least its bound, x is 0 or 1, or the peak in shares of the plain one."""

    def __init__(self, memory: MirroredMemory, goal: Goal, places: list[int], tried: list[set[int]]) -> None:
        self._memory, self._goal = memory, goal
        self._storages = storages = memory.storages
        self._may_drop = Candidates(memory, goal.products).may_drop
        self._scale = 1 / max(1, memory.plain_peak_bytes)
        self._costs: list[float] = []
        self._rows: list[tuple[dict[int, float], float]] = []
        longest = sum(each.replay_ns for each in storages) or 1.0
        wants_time = goal.peak_bytes is not None
        self._again = [self._variable((1.0 if wants_time else _TIE) * each.replay_ns / longest) for each in storages]
        self._kept = [self._variable() for _ in storages]
        self._peak = self._variable(_TIE if wants_time else 1.0)
        self._readers: list[list[int]] = [[] for _ in storages]
        for number, each in enumerate(storages):
            self._row({self._again[number]: -1.0, self._kept[number]: -1.0}, -1.0)  # not both
            if memory.places[number]:
                self._row({self._again[number]: 1.0, self._kept[number]: 1.0}, 1.0)
            for need in each.needs:
                self._row({self._kept[need]: 1.0, self._again[need]: 1.0, self._again[number]: -1.0}, 0.0)
                if self._may_drop[number]:
                    self._readers[need].append(number)
        if goal.replay_ns < math.inf:
            self._row(
                {self._again[number]: -each.replay_ns / longest for number, each in enumerate(storages)},
                -goal.replay_ns / longest,
            )
        if goal.peak_bytes is not None:
            self._row({self._peak: -1.0}, -goal.peak_bytes * self._scale)
        self._tell_start()
        for place in places:
            self._tell(place)
        for chosen in tried:
            signs = {self._again[number]: -1.0 if number in chosen else 1.0 for number in range(len(storages))}
            self._row(signs, 1.0 - len(chosen))

    def _variable(self, cost: float = 0.0) -> int:
        self._costs.append(cost)
        return len(self._costs) - 1

    def _row(self, coefficients: dict[int, float], at_least: float) -> None:
        self._rows.append((coefficients, at_least))

    def _tell_start(self) -> None:
        """The level as the backward starts."""
        row = {self._peak: 1.0}
        for number, each in enumerate(self._storages):
            nbytes = each.nbytes * self._scale
            if each.start < 0:
                row[self._kept[number]] = -nbytes
            elif self._may_drop[number]:
                row[self._again[number]] = nbytes
        self._row(row, self._memory.plain.start_bytes * self._scale)

    def _tell(self, place: int) -> None:
        """The level in a place: the plain one, less what is not made again yet, and what lives on besides."""
        memory, storages = self._memory, self._storages
        made = {number: self._variable() for number, may in enumerate(self._may_drop) if may}
        row = {self._peak: 1.0}
        for number, each in enumerate(storages):
            places, nbytes = memory.places[number], each.nbytes * self._scale
            again, kept = self._again[number], self._kept[number]
            if number in made:
                if places and places[0] <= place:
                    self._row({made[number]: 1.0, again: -1.0}, 0.0)
                for reader in self._readers[number]:
                    self._row({made[number]: 1.0, made[reader]: -1.0, again: -1.0}, -1.0)
            if places and place <= places[-1]:
                if number in made:
                    row[again] = nbytes
                    row[made[number]] = -nbytes
                continue
            if not self._readers[number] or memory.held[number]:
                continue
            lives = self._variable()  # for a replay to come
            row[lives] = -nbytes
            for reader in self._readers[number]:
                waits = {lives: 1.0, self._again[reader]: -1.0, made[reader]: 1.0}
                self._row({**waits, kept: -1.0}, -1.0)
                if number in made:
                    self._row({**waits, made[number]: -1.0}, -1.0)
        self._row(row, memory.plain.task_peaks[place] * self._scale)

    def solved(self, seconds: float) -> tuple[set[int] | None, int]:
        """What to drop, and the bytes below which no peak is; None: there is no solution, or none was found in time."""
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint
        from scipy.optimize import milp as highs
        from scipy.sparse import csr_array

        count = len(self._costs)
        places = [(row, column) for row, (entries, _) in enumerate(self._rows) for column in entries]
        values = [value for entries, _ in self._rows for value in entries.values()]
        rows = csr_array(
            (values, ([row for row, _ in places], [column for _, column in places])), (len(self._rows), count)
        )
        upper = np.ones(count)
        upper[self._peak] = np.inf
        for number, may in enumerate(self._may_drop):
            if not may:
                upper[self._again[number]] = 0
        whole = np.ones(count)
        whole[self._peak] = 0
        result = highs(
            np.array(self._costs),
            constraints=LinearConstraint(rows, np.array([least for _, least in self._rows]), np.inf),
            integrality=whole,
            bounds=Bounds(0, upper),
            options={"time_limit": seconds, "mip_rel_gap": _GAP},
        )
        bound = 0
        if self._goal.peak_bytes is None and result.mip_dual_bound is not None:
            # The time is a part of the objective, of at most _TIE.
            bound = max(0, math.floor((result.mip_dual_bound - _TIE) / self._scale))
        if result.x is None:
            return None, bound
        return {number for number, again in enumerate(self._again) if result.x[again] > 0.5}, bound
