"""The exact search: decide whether any order stays within a memory limit, and find the lowest peak."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TypeAlias

from ...inspector.garbage_collector import collector_paused
from ...inspector.text.sizes_and_counts import percent_text, size_text
from ..schedule.greedy_order import allowed, chosen_order
from ..schedule.policy import BFS, DFS, HEAP
from ..schedule.ready_queue import PolicyError
from . import planning_policies
from .lower_bound import lower_bound
from .order_dependent_memory import Commuting
from .scheduling_problem import Problem
from .search_state import MemoryState, MemoryStates


class StoppedError(Exception):
    """The time or the number of states is used up."""


_Path: TypeAlias = "tuple[_Path, list[int]] | None"
"""The path to a state: that of an earlier state, and the tasks after it."""


class LimitSearch:
    """Decides whether an order stays within a limit, depth first through the sets of tasks that may have run.

    Most steps are forced. Let f(S) be the bytes alive after the tasks S, closed under dependencies, have run. Each
    block is alive from the first of its makers to the last of its users. "A maker is in S" and "not all users are in S"
    are submodular in S, hence so is f: f(A | B) + f(A & B) <= f(A) + f(B). The amount that a task adds to the level can
    only fall when more other tasks have run before it. The highest level within a task behaves like the level after
    half of the task, so the same holds for it. For two orders of the same tasks this implies:

    Downhill first. Suppose that from S the tasks D run within the limit and end at a level not above f(S), and that no
    part P of D that can run alone ends lower: f(S | P) >= f(S | D). Then D may run now, and no alternative needs to be
    tried. Proof: take any order from S on that stays within this limit or a higher one, and move D to its front. Where
    other tasks T had run with a part P of D, now all of D has run: f(S | T | D) <= f(S | T | P) + f(S | D) - f(S | P)
    <= f(S | T | P), so the level is not higher than before. `_downhill` finds D such that each next task is either the
    only one made ready by the tasks before it (then any part P without it ends at an earlier level, above f(S)), or
    does not raise the level (then adding it to P does not either).

    Uphill last. By the same argument in reverse: a task for which no other waits, which runs within the limit after all
    the others and does not lower the level, may run last. The same then applies to the remaining tasks. If no candidate
    for the last task stays within the limit, no order does.

    Autograd violates submodularity in two ways, and no step is forced where this can happen. First, which of several
    gradients arrives first can decide what stays alive: `Commuting.tame` excludes all tasks involved. Second, when two
    gradients meet in a buffer, the second one allocates a new block for the sum if the first shares its block. Which
    task allocates depends on the order. So after D, a gradient that waits in a buffer must not share its block if a
    task that does not depend on D may still add to it (`Commuting.rivals`), and a task must not run last if another
    would allocate in its place (`Commuting.loose`).
    """

    def __init__(self, problem: Problem) -> None:
        commuting = Commuting(problem)
        self.states = 0
        self.until: float = inf
        self.most: float = inf
        self._states = MemoryStates(problem)
        self._tame, self._rivals, self._loose = commuting.tame, commuting.rivals, commuting.loose
        self._ends_alike = commuting.ends_alike
        self._nexts = problem.nexts
        self._tasks = sum(1 << task for task in problem.tasks)
        self._start = self._states.start()
        self._order: Sequence[int] = ()

    def begin(self, ran: Sequence[int], order: Sequence[int]) -> int:
        """Start after the tasks `ran`, a prefix of a legal order, and return the peak so far."""
        highest = self._start.level
        for task in ran:
            self._start, reached = self._states.run(self._start, task)
            highest = max(highest, reached)
        self._order = order[len(ran) :]
        return highest

    def within(self, limit: int, most: int) -> list[int] | int | None:
        """Return an order whose peak is within the limit, or, if there is none, a peak that no order is below.

        Returns None if this is not decided after `most` states.
        """
        last = self._last(limit)
        if isinstance(last, int):
            return last
        inner = self._tasks & ~_bits(last)
        above: list[int] = []
        seen: set[object] = set()
        settled: set[object] = set()
        most += self.states
        stack: list[tuple[MemoryState, int | None, _Path]] = [(self._start, None, None)]
        while stack:
            if self.states == most:
                return None
            self.states += 1
            state, task, path = stack.pop()
            tasks: list[int] = []
            if task is not None:
                state, _ = self._states.run(state, task)
                tasks.append(task)
            state, following = self._settle(state, tasks, limit, inner)
            path = path, tasks
            if not inner & ~state.ran:
                parts = [list(reversed(last))]
                while path is not None:  # from the end to the start
                    path, tasks = path
                    parts.append(tasks)
                return [task for tasks in reversed(parts) for task in tasks]
            if (key := self._states.key(state)) in settled:
                continue
            settled.add(key)
            state.holders = None  # they can be counted again
            children = []
            for task, (after, highest) in following.items():
                if highest > limit:
                    above.append(highest)
                elif (key := self._states.key(after)) not in seen:
                    seen.add(key)
                    children.append((after.level, task))
            for _, task in sorted(children, reverse=True):  # the lowest level is tried first
                stack.append((state, task, path))
            if len(seen) > self.most:
                raise StoppedError
        return min(above)

    def _settle(
        self, state: MemoryState, tasks: list[int], limit: int, inner: int
    ) -> tuple[MemoryState, dict[int, tuple[MemoryState, int]]]:
        """Take the forced downhill steps and append them to `tasks`.

        Returns the state after them and, for each other ready task, the state after it and its peak.
        """
        following: dict[int, tuple[MemoryState, int]] = {}
        queue = deque(_numbers(state.ready & inner))
        while len(following) < len(queue):
            if perf_counter() > self.until:
                raise StoppedError
            task = queue.popleft()
            after, highest = self._states.run(state, task)
            found = self._downhill(state, after, task, limit, inner) if highest <= limit else None
            if found is None:
                following[task] = after, highest
                queue.append(task)
                continue
            queue.extendleft(_numbers(found[0].ready & ~state.ready & inner))
            state = found[0]
            tasks += found[1]
            following.clear()
        return state, following

    def _downhill(
        self, state: MemoryState, after: MemoryState, task: int, limit: int, inner: int
    ) -> tuple[MemoryState, list[int]] | None:
        """Return the state after a forced downhill sequence that starts with this task, and its tasks; None if none."""
        if not self._tame[task]:
            return None
        tasks = [task]
        while after.level > state.level:
            ready = list(_numbers(after.ready & ~state.ready & inner))
            for task in ready:
                if not self._tame[task]:
                    continue
                following, highest = self._states.run(after, task)
                if highest <= limit and (following.level <= after.level or len(ready) == 1):
                    break
            else:
                return None
            tasks.append(task)
            after = following
        for task in tasks:
            for place, others in self._rivals[task]:
                if others & ~after.ran and not self._states.adds_in_place(after, place):
                    return None
        return after, tasks

    def _last(self, limit: int) -> list[int] | int:
        """Return the tasks that may run last, in reverse; or, if none can be last, a peak that no order is below."""
        last: list[int] = []
        if not self._ends_alike:
            return last  # the level before them depends on the order of the others
        rest = self._tasks & ~self._start.ran
        while rest:
            ends = [task for task in _numbers(rest) if not any(rest >> later & 1 for later in self._nexts[task])]
            others = rest & ~_bits(ends)
            state = self._start
            for task in self._order:
                if others >> task & 1:
                    state, _ = self._states.run(state, task)
            fit, peaks = [], []
            for task, before in self._each_left_out(state, ends):
                if perf_counter() > self.until:
                    raise StoppedError
                after, highest = self._states.run(before, task)
                peaks.append(highest if self._tame[task] else 0)
                fits = highest <= limit and after.level >= before.level and self._tame[task]
                # No other of these tasks may need more memory because this one has not run.
                if fits and not any(place in self._loose and each & rest for place, each in self._rivals[task]):
                    fit.append(task)
            if min(peaks) > limit:
                return min(peaks)
            if not fit:
                break
            last += fit  # the argument still holds for each if another one runs after it
            rest &= ~_bits(fit)
        return last

    def _each_left_out(self, state: MemoryState, tasks: list[int]) -> Iterator[tuple[int, MemoryState]]:
        """Yield each of these ready tasks with the state after all the others. Runs O(n log n) tasks."""
        stack = [(state, tasks)]
        while stack:
            state, left_out = stack.pop()
            if len(left_out) == 1:
                yield left_out[0], state
                continue
            half = len(left_out) // 2
            for some, others in ((left_out[:half], left_out[half:]), (left_out[half:], left_out[:half])):
                after = state
                for task in some:
                    after, _ = self._states.run(after, task)
                stack.append((after, others))


def _numbers(bits: int) -> Iterator[int]:
    """Yield the positions of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _bits(numbers: Sequence[int]) -> int:
    return sum(1 << number for number in numbers)


MOST_STATES = 1_000_000  # each takes up to a kilobyte
_FIRST_LOOK = 256  # states per limit in the first round; each round allows four times as many
_FINE = 1024  # limits closer than peak / 1024 are not distinguished until the last round


@dataclass(frozen=True, slots=True)
class Exact:
    """The best order found, and the proven lower bound.

    Attributes:
        order: ids of tasks.
        peak_bytes: its peak, as `simulate` predicts it.
        bound_bytes: no legal order has a lower peak than this.
        proven: whether both are equal, so that no order is better.
        states: the number of states visited.
        seconds: the time of the search.
    """

    order: tuple[int, ...]
    peak_bytes: int
    bound_bytes: int
    proven: bool
    states: int
    seconds: float

    def __str__(self) -> str:
        effort = f"found in {self.seconds:.1f} s" + (f" and {self.states:,} states" if self.states else "")
        if self.proven:
            return f"no order has a lower peak than {size_text(self.peak_bytes)}, {effort}"
        above = percent_text(self.peak_bytes / self.bound_bytes - 1)
        peak, bound = size_text(self.peak_bytes), size_text(self.bound_bytes)
        return f"the best order has a peak of {peak}, {above} above the proven lower bound of {bound}, {effort}"


def exact(
    problem: Problem,
    ran: Sequence[int] = (),
    *,
    seconds: float = 10.0,
    states: int = MOST_STATES,
    interruptible: bool = False,
) -> Exact:
    """Search for an order with the lowest possible peak, and prove that no order is below it.

    The search goes through sets of tasks that may have run, as SERENITY does (Ahn et al., Ordering Chaos: Memory-Aware
    Scheduling of Irregularly Wired Neural Networks for Edge Devices, MLSys 2020): only the memory after such a set
    matters, not the order in which its tasks ran. It decides for one limit after another, between the bound and the
    best known order, whether an order stays within it. Memory is computed exactly as in `simulate`.

    Most steps of a backward are forced (see `LimitSearch`), so that many graphs of hundreds of tasks are solved within
    a second. If different branches have to be open at the same time, the search takes exponential time.

    Args:
        problem: the backward.
        ran: the tasks that have already run; the order starts with them.
        seconds: the time limit, after which the best order and bound so far are returned.
        states: the limit on states.
        interruptible: whether KeyboardInterrupt also ends the search with the best result so far.
    """
    began = perf_counter()
    with collector_paused():
        hunt = _Hunt(problem, ran)
        try:
            hunt.run(began + seconds, states)
        except StoppedError:
            pass
        except KeyboardInterrupt:
            if not interruptible:
                raise
    proven = hunt.bound == hunt.peak
    return Exact(tuple(hunt.order), hunt.peak, hunt.bound, proven, hunt.states, perf_counter() - began)


def optimal_order(problem: Problem, ran: Sequence[int], seconds: float) -> list[int]:
    """Plan the order of the policy "optimal".

    Raises:
        PolicyError: the search did not prove in this time that no order is better.
    """
    found = exact(problem, ran, seconds=seconds)
    if not found.proven:
        raise PolicyError(
            f"policy optimal could not prove the lowest peak of {len(problem.tasks):,} tasks in {seconds:g} s: {found}."
            f' Give it more time, as in "optimal({10 * seconds or 10:g})", or use "search({seconds or 10:g})", which '
            "needs no proof"
        )
    return list(found.order)


class _Hunt:
    """Decides for one limit after another whether an order stays within it."""

    def __init__(self, problem: Problem, ran: Sequence[int]) -> None:
        self._problem = problem
        self._ran = ran
        self.states = 0
        orders = [
            chosen_order(problem.graph, policy, allowed(problem.graph, problem.needed), ran)
            for policy in (HEAP, BFS, DFS)
        ]
        orders += [
            plan(problem, ran) for plan in (planning_policies.lpmf, planning_policies.postorder, planning_policies.liu)
        ]
        self.peak, number = min((problem.peak_bytes(order), number) for number, order in enumerate(orders))
        self.order = orders[number]
        self.bound = min(lower_bound(problem).nbytes, self.peak)

    def run(self, until: float, most: int) -> None:
        """Search until bound and peak are equal.

        Raises:
            StoppedError: the time or the number of states is used up before.
        """
        if self.bound == self.peak:
            return
        search = LimitSearch(self._problem)
        search.until, search.most = until, most
        self.bound = min(max(self.bound, search.begin(self._ran, self.order)), self.peak)
        look = _FIRST_LOOK
        while self.bound < self.peak:
            undecided = self.peak
            limit = self.peak - 1
            while undecided - self.bound > (self.peak // _FINE if undecided < self.peak else 0):
                answer = search.within(limit, look)
                self.states = search.states
                if answer is None:
                    undecided = limit
                elif isinstance(answer, int):
                    self.bound = min(answer, self.peak)
                else:
                    self.order = [*self._ran, *answer]
                    undecided = self.peak = self._problem.peak_bytes(self.order)
                limit = (self.bound + undecided) // 2
            look *= 4
