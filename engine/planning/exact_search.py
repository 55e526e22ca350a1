"""The exact search: whether any order stays within a memory limit, and the order with the least peak."""

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
from . import planners
from .lower_bound import lower_bound
from .order_dependent_memory import Commuting
from .scheduling_problem import Problem
from .search_state import MemoryState, MemoryStates


class StoppedError(Exception):
    """The time is up, or there are too many states."""


_Path: TypeAlias = "tuple[_Path, list[int]] | None"
"""How a state was reached: another's path, and the tasks after it."""


class LimitSearch:
    """Whether an order stays within a limit: depth first through the sets of tasks that may have run, each once.

    Most steps are forced. Write f(S) for the bytes alive once the tasks S have run, those for which they wait included.
    Each block is alive from the first of its makers to the last of its users. Of such a block, "one of the makers is in
    S" is submodular in S, and so is "not all of the users are": hence f is, f(A | B) + f(A & B) <= f(A) + f(B). What a
    task adds to the level can only fall as more others have run before it. The highest moment within a task is like the
    level after half of it, and obeys the same. So, for any two orders of the same tasks:

    Downhill first. From S, tasks D run within the limit and end at a level not above f(S); and no part of D that could
    run alone, P, ends lower: f(S | P) >= f(S | D). Then D may run now, and nothing else need be tried. For take any
    order from S on, within this limit or a higher one, and move D to its front. Wherever the others T had run before,
    with a part P of D, now all of D has: f(S | T | D) <= f(S | T | P) + f(S | D) - f(S | P) <= f(S | T | P), which is
    no higher than it was. `_downhill` finds D where each next task is the only one that those before have got ready (so
    that any part P without it ends at an earlier level, above f(S)), or does not raise the level (so that adding it to
    P does not either).

    Uphill last. By the same argument read backwards: a task for which no other waits, which after all the others runs
    within the limit and does not lower the level, may run after them all. So may then the next one. If none that could
    be the last stays within the limit, no order does.

    Autograd breaks the rule in two ways, and neither kind of step is forced there. First, which of several gradients
    comes first may decide what is alive for good: `Commuting.tame` leaves out all that has to do with it. Second, of
    gradients that meet in a buffer the second takes a new block for their sum, within its task, where the first is not
    alone on its own. Which task pays for that depends on the order. So after D what waits in a buffer must be alone,
    if others may yet give to it that need not have waited for D (`Commuting.rivals`); and a task must not run last if
    another would pay instead of it (`Commuting.loose`).
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
        """Starts after these tasks, of a legal order. Returns the peak until then."""
        highest = self._start.level
        for task in ran:
            self._start, reached = self._states.run(self._start, task)
            highest = max(highest, reached)
        self._order = order[len(ran) :]
        return highest

    def within(self, limit: int, most: int) -> list[int] | int | None:
        """The tasks in an order with no higher peak; or, if there is none, a peak that no order is below.

        None: that is not known after so many states.
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
                return [*_tasks_of(path), *reversed(last)]
            if (key := self._states.key(state)) in settled:
                continue
            settled.add(key)
            self._states.pack(state)
            children = []
            for task, (after, highest) in following.items():
                if highest > limit:
                    above.append(highest)
                elif (key := self._states.key(after)) not in seen:
                    seen.add(key)
                    children.append((after.level, task))
            for _, task in sorted(children, reverse=True):  # the lowest is taken up first
                stack.append((state, task, path))
            if len(seen) > self.most:
                raise StoppedError
        return min(above)

    def _settle(
        self, state: MemoryState, tasks: list[int], limit: int, inner: int
    ) -> tuple[MemoryState, dict[int, tuple[MemoryState, int]]]:
        """Takes the steps downhill, adds them to `tasks`. By other ready task the state after it, and the peak."""
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
        """The tasks from this one on that end no higher than the state, if there are any, and the state after them."""
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
        """The tasks that may run last, the very last first; or, if none can be the last, what no order is below."""
        last: list[int] = []
        if not self._ends_alike:
            return last  # how high the level is before them depends on the order of the others
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
                if highest <= limit and after.level >= before.level and self._may_wait(task, rest):
                    fit.append(task)
            if min(peaks) > limit:
                return min(peaks)
            if not fit:
                break
            last += fit  # what holds for one of them still does where another runs after it
            rest &= ~_bits(fit)
        return last

    def _may_wait(self, task: int, rest: int) -> bool:
        """Whether no other of these tasks needs more within itself where this one has not run."""
        return self._tame[task] and not any(
            place in self._loose and others & rest for place, others in self._rivals[task]
        )

    def _each_left_out(self, state: MemoryState, tasks: list[int]) -> Iterator[tuple[int, MemoryState]]:
        """Each of some ready tasks with the state after all the others. O(n log n) tasks run."""
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
    """The places of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _bits(numbers: Sequence[int]) -> int:
    return sum(1 << number for number in numbers)


def _tasks_of(path: _Path) -> list[int]:
    parts = []
    while path is not None:
        path, tasks = path
        parts.append(tasks)
    return [task for tasks in reversed(parts) for task in tasks]


MOST_STATES = 1_000_000  # each takes up to a kilobyte
_FIRST_LOOK = 256  # states after which a limit is left for another, at first
_FINE = 1024  # limits closer than this part of the peak are not told apart until nothing else is left to ask


@dataclass(frozen=True, slots=True)
class Exact:
    """The best order that was found, and what was proven.

    Attributes:
        order: ids of tasks.
        peak_bytes: its peak, as `simulate` predicts it.
        bound_bytes: no legal order has a lower peak than this.
        proven: whether that is the same number, so that no order is better.
        states: how many sets of tasks that may have run were looked at.
        seconds: how long it took.
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
        return f"an order has a peak of {peak}, {above} above the {bound} which no order is below, {effort}"


def exact(
    problem: Problem,
    ran: Sequence[int] = (),
    *,
    seconds: float = 10.0,
    states: int = MOST_STATES,
    interruptible: bool = False,
) -> Exact:
    """Looks for an order with the least peak there is, and proves that none is below it.

    It goes through the sets of tasks that may have run, as SERENITY does (Ahn et al., Ordering Chaos: Memory-Aware
    Scheduling of Irregularly Wired Neural Networks for Edge Devices, MLSys 2020): however such a set came about, only
    what is then in memory matters. Whether an order stays within a limit is asked for one limit after the other,
    between the bound and the best order known. Memory is that of `simulate`, and no model of it.

    Most steps of a backward need not be weighed against each other (see `LimitSearch`), so that many graphs of hundreds
    of tasks are solved within a second. Where branches that differ have to be open at once it takes exponential time.

    Args:
        problem: the backward.
        ran: the tasks with which the order starts, whatever comes of it: those that ran already.
        seconds: after which it stops, with the best order so far and what is proven by then.
        states: after how many it stops.
        interruptible: an interrupt stops it in the same way; otherwise it is raised as ever.
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
        PolicyError: it is not proven in this time that no order is better.
    """
    found = exact(problem, ran, seconds=seconds)
    if not found.proven:
        raise PolicyError(
            f"policy optimal can't tell the least peak of {len(problem.tasks):,} tasks in {seconds:g} s: {found}; "
            f'give it more time, as in "optimal({10 * seconds:g})", or take "search({seconds:g})", which needs no proof'
        )
    return list(found.order)


class _Hunt:
    """Asks whether an order stays within a limit, for one limit after the other."""

    def __init__(self, problem: Problem, ran: Sequence[int]) -> None:
        self._problem = problem
        self._ran = ran
        self.states = 0
        orders = [
            chosen_order(problem.graph, policy, allowed(problem.graph, problem.needed), ran)
            for policy in (HEAP, BFS, DFS)
        ]
        orders += [plan(problem, ran) for plan in (planners.lpmf, planners.postorder, planners.liu)]
        self.peak, number = min((problem.peak_bytes(order), number) for number, order in enumerate(orders))
        self.order = orders[number]
        self.bound = min(lower_bound(problem).nbytes, self.peak)

    def run(self, until: float, most: int) -> None:
        """Goes on until bound and peak are equal.

        Raises:
            StoppedError: the time is up before, or there are more states.
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
