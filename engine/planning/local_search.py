"""Local search for graphs too large for the exact search: moves tasks near the highest memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log
from time import perf_counter

from ...inspector.garbage_collector import collector_paused
from ..schedule.policy import Policy
from .lower_bound import lower_bound
from .policy_orders import order_of
from .scheduling_problem import Problem

_TELL_EVERY = 0.1  # seconds
_FIRST_ROUND = 2_000  # moves before a restart from the best order; each round is longer than the last
_LONGER = 1.3
_WARM, _COLD = 0.02, 0.0005  # temperature as a share of the peak, at the start and the end of a round
_ELSEWHERE = 0.4  # share of moves at a random high level; the others are at the peak
_BLOCKS = 0.4  # share of moves of all makers or users of a block; the others move one task
_SUMS = 0.05  # share of moves that make another of several gradients arrive first
_FARTHEST = 4_096  # the largest number of places by which a task is moved
_TOLERANCE = 0.1  # scale of the random increase of the weight that is accepted


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        order: ids of tasks, in a legal order.
        peak_bytes: its peak, as `simulate` predicts it.
        start_bytes: the peak of the order from which the search started.
        bound_bytes: no order has a lower peak than this.
        evaluations: the number of moves tried.
        seconds: the time of the search.
        interrupted: whether KeyboardInterrupt ended the search; the result is then the best so far.
    """

    order: tuple[int, ...]
    peak_bytes: int
    start_bytes: int
    bound_bytes: int
    evaluations: int
    seconds: float
    interrupted: bool = False


def search(
    problem: Problem,
    order: Sequence[int],
    *,
    ran: int = 0,
    seconds: float = 10.0,
    evaluations: int | None = None,
    progress: Callable[[SearchResult], object] | None = None,
    seed: int = 0,
) -> SearchResult:
    """Lower the peak of an order by moving tasks. The result is never worse than `order`.

    A move puts a task that frees memory, with everything it depends on, before the peak; or a task that allocates, with
    everything that depends on it, after the peak; or does the same at another high level. A move is judged by the
    blocks of the part of the order that changes, in O(its tasks + their blocks). Moves that lower the levels near the
    peak are accepted, and with some probability others (simulated annealing, in rounds that each start from the best
    order). An order that looks better than the best is simulated, and the simulation decides. An order in which another
    of several gradients arrives first is also simulated, because the blocks do not show on which block they are summed.

    Ctrl-C ends the search with the best order so far. The search ends at once if the bound shows that no order is
    better (`lower_bound`).

    Args:
        problem: the backward.
        order: a legal order of it.
        ran: the number of first tasks that stay in place.
        seconds: the time limit.
        evaluations: the limit on moves; with enough seconds the result then depends only on `seed`.
        progress: called with the result so far, at most ten times a second.
        seed: the seed of the random numbers.

    Raises:
        ValueError: the order is not legal.
    """
    began = perf_counter()
    peak = problem.peak_bytes(order)
    searching = _Search(problem, order, ran, peak, random.Random(seed))
    last_report = began
    interrupted = False
    try:
        with collector_paused():
            searching.bound = lower_bound(problem).nbytes
            while not searching.done and (evaluations is None or searching.tried < evaluations):
                searching.try_move()
                if not searching.tried & 15:
                    now = perf_counter()
                    if now - began >= seconds:
                        break
                    if progress is not None and now - last_report >= _TELL_EVERY:
                        last_report = now
                        progress(searching.found(now - began))
    except KeyboardInterrupt:
        interrupted = True
    return searching.found(perf_counter() - began, interrupted)


def searched_order(problem: Problem, ran: Sequence[int], seconds: float, portfolio: Iterable[Policy]) -> list[int]:
    """Plan the order of the policy "search": the best order of the portfolio, improved for `seconds`."""
    known = Problem(problem.graph, problem.footprints, problem.needed)
    orders = [order_of(policy, known, ran) for policy in portfolio]
    best = min(orders, key=problem.peak_bytes)
    found = search(problem, best, ran=len(ran), seconds=seconds)
    if found.interrupted:  # Ctrl-C before a backward cancels the backward
        raise KeyboardInterrupt
    return list(found.order)


class _Levels:
    """An order with its memory levels, parts of which can be rearranged.

    Attributes:
        order: the tasks.
        place: the place of each task in the order.
        peaks: the highest level within the task at each place.
        changes: for each task, allocated minus freed bytes of blocks that have one maker and one user.
    """

    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        self.order = list(order)
        self.place = [-1] * len(problem.graph)
        self._needs = problem.blocks.needs
        self.changes = [0] * len(problem.graph)
        self._makes: list[list[tuple[int, int, tuple[int, ...]]]] = [[] for _ in self.place]
        self._frees: list[list[tuple[int, int, tuple[int, ...]]]] = [[] for _ in self.place]
        blocks = zip(problem.blocks.sizes, problem.blocks.makers, problem.blocks.users, strict=True)
        for block, (nbytes, makers, users) in enumerate(blocks):
            for tasks, shared, sign in ((makers, self._makes, 1), (users, self._frees, -1)):
                if len(tasks) == 1:
                    self.changes[tasks[0]] += sign * nbytes
                else:
                    for task in tasks:
                        shared[task].append((block, nbytes, tasks))
        self._before: list[int] = []
        self.peaks: list[int] = []
        for place, task in enumerate(self.order):
            self.place[task] = place
        self._before, self.peaks = self._levels(0, self.order, problem.start_bytes)

    def _levels(self, first: int, tasks: Sequence[int], level: int) -> tuple[list[int], list[int]]:
        """Return the levels before and within these tasks, which start at place `first`."""
        needs, changes, makes, frees, place_of = self._needs, self.changes, self._makes, self._frees, self.place
        before, peaks = [], []
        # Found once per block: the sum of many gradients has as many makers, and each would look at all of them.
        first_made: dict[int, int] = {}
        last_used: dict[int, int] = {}
        for place, task in enumerate(tasks, first):
            before.append(level)
            peaks.append(level + needs[task])
            level += changes[task]
            for block, nbytes, makers in makes[task]:
                if block not in first_made:
                    first_made[block] = min(map(place_of.__getitem__, makers))
                if first_made[block] == place:
                    level += nbytes
            for block, nbytes, users in frees[task]:
                if block not in last_used:
                    last_used[block] = max(map(place_of.__getitem__, users))
                if last_used[block] == place:
                    level -= nbytes
        return before, peaks

    def tried(self, first: int, tasks: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the levels if these tasks ran in this order from place `first` on. Call `keep` or `undo` next."""
        place_of = self.place
        for place, task in enumerate(tasks, first):
            place_of[task] = place
        return self._levels(first, tasks, self._before[first])

    def keep(self, first: int, tasks: Sequence[int], levels: tuple[list[int], list[int]]) -> None:
        """Accept the arrangement of the last `tried`."""
        end = first + len(tasks)
        self.order[first:end] = tasks
        self._before[first:end], self.peaks[first:end] = levels

    def undo(self, first: int, end: int) -> None:
        """Reject the arrangement of the last `tried`."""
        for place in range(first, end):
            self.place[self.order[place]] = place


class _Search:
    """Simulated annealing. A level `l` has the weight `exp((l - best) / width)`, so the highest levels decide."""

    def __init__(self, problem: Problem, order: Sequence[int], ran: int, peak: int, draw: random.Random) -> None:
        self._problem = problem
        self._ran = ran
        self._draw = draw
        self._nexts = problem.nexts
        self._waits_for: list[list[int]] = [[] for _ in problem.nexts]
        for task in problem.tasks:
            for next_task in problem.nexts[task]:
                self._waits_for[next_task].append(task)
        self._best = list(order)
        self._peak = self._start = peak
        self.bound = 0
        self.tried = 0
        self._round: float = _FIRST_ROUND
        self._round_ends = 0  # a round starts with the first move
        givers: dict[tuple[int, int], dict[int, None]] = {}
        for edge in problem.graph.edges:
            givers.setdefault((edge.next_task, edge.input), {})[edge.task] = None
        runs = set(problem.tasks)
        # For each input with several gradients, the tasks that return them.
        self._sums = [list(tasks) for (task, _), tasks in givers.items() if len(tasks) > 1 and task in runs]
        self._go_by(problem, order)
        self._highest = self._at = 0  # the highest level that can be lowered, and its place

    @property
    def done(self) -> bool:
        """True if no order can be better."""
        return self._peak <= self.bound or len(self._best) - self._ran < 2

    def found(self, seconds: float, interrupted: bool = False) -> SearchResult:
        return SearchResult(tuple(self._best), self._peak, self._start, self.bound, self.tried, seconds, interrupted)

    def _go_by(self, model: Problem, order: Sequence[int]) -> None:
        """Judge further moves of this order by the blocks of this model."""
        self._model = model
        self._levels = _Levels(model, order)
        self._blocks = [block for block, size in enumerate(model.blocks.sizes) if size]
        self._sizes = list(accumulate(model.blocks.sizes[block] for block in self._blocks))

    def _new_round(self) -> None:
        self._levels = _Levels(self._model, self._best)
        self._round_starts = self.tried
        self._round_ends = self.tried + int(self._round)
        self._round *= _LONGER
        self._goal = min(self._peak, max(self._levels.peaks))  # an order below it is simulated
        self._cool()

    def _cool(self) -> None:
        share = (self.tried - self._round_starts) / (self._round_ends - self._round_starts)
        self._width = max(1.0, self._peak * _WARM * (_COLD / _WARM) ** share)
        self._weight = self._weighed(self._levels.peaks)
        self._find_highest()
        self._next_cooling = min(
            self._round_ends, self.tried + max(200, int((self._round_ends - self._round_starts) / 20))
        )

    def _weighed(self, peaks: Sequence[int]) -> float:
        goal, width = self._goal, self._width
        least = goal - 30 * width  # lower levels have no weight
        return sum([exp(min((peak - goal) / width, 600.0)) for peak in peaks if peak > least])

    def try_move(self) -> None:
        """Try one move, and accept or reject it."""
        if self.tried >= self._round_ends:
            self._new_round()
        elif self.tried >= self._next_cooling:
            self._cool()
        self.tried += 1
        another_first = bool(self._sums) and self._draw.random() < _SUMS
        move = self._another_first() if another_first else self._move()
        if move is None:
            return
        first, tasks = move
        levels = self._levels
        now = levels.tried(first, tasks)
        end = first + len(tasks)
        weight = self._weight - self._weighed(levels.peaks[first:end]) + self._weighed(now[1])
        # The logarithm of the weight is a smoothed maximum; an increase is accepted with a falling probability.
        chance = 1 - self._draw.random()
        if weight > self._weight * chance**-_TOLERANCE:
            levels.undo(first, end)
            return
        levels.keep(first, tasks, now)
        self._weight = max(weight, 0.0)
        highest = max(now[1])
        if highest >= self._highest:
            self._highest, self._at = highest, first + now[1].index(highest)
        elif first <= self._at < end:
            self._find_highest()
        if self._highest < self._goal or (another_first and self._highest <= self._peak):
            self._judge()

    def _find_highest(self) -> None:
        peaks = self._levels.peaks
        self._highest = max(peaks[self._ran :])
        self._at = peaks.index(self._highest, self._ran)

    def _judge(self) -> None:
        """Simulate the order, and return to the best one if it is not as good as the blocks suggest."""
        order = list(self._levels.order)
        peak, thought = self._problem.peak_bytes(order), self._highest
        better, hoped = peak < self._peak, thought < self._goal
        if better:
            self._peak, self._best = peak, order
        self._goal = min(self._goal, thought)
        if better and peak < thought:  # the model's blocks do not show it
            model = Problem(self._problem.graph, self._problem.footprints, self._problem.needed)
            model.heap_timeline = self._problem.timeline(order)
            self._go_by(model, order)
            self._goal = peak
        elif hoped and peak > thought and not better:
            self._levels = _Levels(self._model, self._best)
        self._find_highest()
        self._weight = self._weighed(self._levels.peaks)

    def _move(self) -> tuple[int, list[int]] | None:
        """Return a rearranged part of the order: its first place and its tasks; None if there is no such move."""
        draw, levels, at = self._draw, self._levels, self._at
        count = len(levels.order)
        if draw.random() < _ELSEWHERE:
            at = max([draw.randrange(self._ran, count) for _ in range(3)], key=levels.peaks.__getitem__)
        earlier = draw.random() < 0.5
        if draw.random() < _BLOCKS:
            places = self._of_a_block(at, earlier)
        elif draw.random() < 0.5:
            places = [at]
        else:
            places = [at + self._distance(count - at) if earlier else at - self._distance(at - self._ran + 1)]
        if not places:
            return None
        if earlier:
            return self._pulled(at - self._distance(at - self._ran + 1), places, draw.random() < 0.5)
        return self._pushed(places, at + self._distance(count - at), draw.random() < 0.5)

    def _of_a_block(self, at: int, users: bool) -> list[int]:
        """Return the places of the makers, or of the remaining users, of a random block alive at this place.

        Blocks are drawn by size. Returns an empty list if none is found in six draws.
        """
        problem, place_of = self._model, self._levels.place
        for block in self._draw.choices(self._blocks, cum_weights=self._sizes, k=6):
            made = [place_of[task] for task in problem.blocks.makers[block]]
            used = [place_of[task] for task in problem.blocks.users[block]]
            if (made and min(made) >= at) or (used and max(used) < at):
                continue
            return (
                [place for place in used if place >= at] if users else [place for place in made if place >= self._ran]
            )
        return []

    def _another_first(self) -> tuple[int, list[int]] | None:
        """Make another of several summed gradients arrive first; the sum may then happen in place."""
        places = sorted(
            place for task in self._draw.choice(self._sums) if (place := self._levels.place[task]) >= self._ran
        )
        if len(places) < 2:
            return None
        if self._draw.random() < 0.5:
            return self._pushed(places[:1], self._draw.choice(places[1:]), False)
        return self._pulled(places[0], [self._draw.choice(places[1:])], False)

    def _distance(self, most: int) -> int:
        """Return a random number from 0 to below `most`, with orders of magnitude equally likely."""
        return int(exp(self._draw.random() * log(min(most, _FARTHEST) + 1))) - 1

    def _pulled(self, first: int, places: Sequence[int], with_followers: bool) -> tuple[int, list[int]] | None:
        """Move the tasks at these places and their predecessors to `first`, optionally with followers that free."""
        levels, nexts = self._levels, self._nexts
        end = max(places) + 1
        part = levels.order[first:end]
        chosen = {levels.order[place] for place in places}
        for task in reversed(part):
            if not chosen.isdisjoint(nexts[task]):
                chosen.add(task)
        if with_followers:
            place_of, changes, waits_for = levels.place, levels.changes, self._waits_for
            part = levels.order[first : end + len(part)]
            for task in part:
                if task in chosen or changes[task] > 0:
                    continue
                if all(before in chosen or place_of[before] < first for before in waits_for[task]):
                    chosen.add(task)
        return _parted(first, part, chosen, True)

    def _pushed(self, places: Sequence[int], last: int, with_makers: bool) -> tuple[int, list[int]] | None:
        """Move the tasks at these places and their successors to `last`; optionally also tasks that only allocate."""
        levels, waits_for = self._levels, self._waits_for
        first = min(places)
        part = levels.order[first : last + 1]
        chosen = {levels.order[place] for place in places}
        for task in part:
            if not chosen.isdisjoint(waits_for[task]):
                chosen.add(task)
        if with_makers:
            place_of, changes, nexts = levels.place, levels.changes, self._nexts
            first = max(self._ran, first - len(part))
            part = levels.order[first : last + 1]
            for task in reversed(part):
                if task in chosen or changes[task] < 0 or not nexts[task]:
                    continue
                if all(after in chosen or place_of[after] > last for after in nexts[task]):
                    chosen.add(task)
        return _parted(first, part, chosen, False)


def _parted(first: int, part: list[int], chosen: set[int], before: bool) -> tuple[int, list[int]] | None:
    """Return the part with the chosen tasks before or after the others; None if nothing changes."""
    ones, others = [task for task in part if task in chosen], [task for task in part if task not in chosen]
    if not ones or not others:
        return None
    tasks = ones + others if before else others + ones
    return None if tasks == part else (first, tasks)
