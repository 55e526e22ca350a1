"""A peak that no order of a backward can be below."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...inspector.garbage_collector import collector_paused
from ...inspector.text.sizes_and_counts import size_text
from .certain_memory import CALLER, Arrival, CertainMemory, CertainMemoryReader, Sum
from .scheduling_problem import Problem

_ALL = 20_000  # up to this number of tasks, all are considered
_FEW = 2_048  # in larger graphs, this number of tasks: those that run at the highest levels in HEAP's order
_PASS = 4_096  # moments considered in one pass, which needs three numbers of this many bits for each task
_RIVALS = 256  # kinds with more tasks are not considered

Moments: TypeAlias = int
"""A set of moments: bit i is number i."""


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A peak that no legal order is below.

    Attributes:
        nbytes: the bytes.
        task: the task at which this many bytes are alive in every order; None if it depends on the order.
        sentence: the reason, as a sentence.
    """

    nbytes: int
    task: int | None
    sentence: str

    def __int__(self) -> int:
        return self.nbytes

    __index__ = __int__

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class _Moment:
    """A moment of a backward: some tasks have run, with all their predecessors, and others have not, with all their
    successors.

    Attributes:
        task: the running task; None if none runs.
        ran: other tasks that have run.
        waiting: other tasks that have not.
        sum: the sum at which an output of the task arrives as the second gradient; None if the task still runs.
    """

    task: int | None
    ran: Sequence[int] = ()
    waiting: Sequence[int] = ()
    sum: Sum | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    """Moments of which every order has at least one. Which one depends on the order, so the lowest level counts."""

    words: str
    moments: Sequence[_Moment]


def lower_bound(problem: Problem) -> LowerBound:
    """Compute a peak that no legal order is below.

    The bound is the highest of many moments that occur in every order, each with the memory that is certainly alive
    then: the start and the end; each task, which runs after everything it depends on and before everything that
    depends on it; for tasks of the same kind, the one that runs last and the one that runs first, whichever it is; and
    for gradients whose sum needs a new block, the arrival of the second one. `CertainMemoryReader` derives the memory
    alive in every order from the rules of `simulate`.

    Known limitations: if many tasks are independent, little is certain, and the bound can be far below the best order.
    With more than 20,000 tasks only some of them are considered.

    O(moments × (edges + blocks) / 64).
    """
    with collector_paused():
        order = _legal_order(problem)
        memory = CertainMemoryReader(problem).read(order)
        cases = list(_cases(problem, memory))
        moments = [(number, moment) for number, case in enumerate(cases) for moment in case.moments]
        least: dict[int, tuple[int, _Moment]] = {}
        for first in range(0, len(moments), _PASS):
            looked_at = moments[first : first + _PASS]
            levels = _Pass(memory, problem.nexts, order, [moment for _, moment in looked_at]).levels()
            for (number, moment), level in zip(looked_at, levels, strict=True):
                if level is not None and (number not in least or level < least[number][0]):
                    least[number] = level, moment
    number, (nbytes, _) = max(least.items(), key=lambda item: item[1][0])
    case = cases[number]
    task = case.moments[0].task
    if len(case.moments) > 1 or task is None:
        return LowerBound(nbytes, None, f"{case.words} at least {size_text(nbytes)} is alive.")
    needs, name = memory.needs[task], problem.graph.describe(task)
    alive = f"{size_text(nbytes - needs)} is certainly alive."
    sentence = f"{name} needs {size_text(needs)} while {alive}" if needs else f"as {name} runs, {alive}"
    return LowerBound(nbytes, task, sentence)


def _legal_order(problem: Problem) -> list[int]:
    waits, ready, order = list(problem.waits), problem.start(), []
    while ready:
        task = ready.pop()
        order.append(task)
        for next_task in problem.nexts[task]:
            waits[next_task] -= 1
            if not waits[next_task]:
                ready.append(next_task)
    return order


def _cases(problem: Problem, memory: CertainMemory) -> Iterator[_Case]:
    """Yield the cases to consider."""
    graph, tasks, needs = problem.graph, problem.tasks, memory.needs
    yield _Case("as the backward starts,", [_Moment(None, waiting=tasks)])
    yield _Case("at the end of the backward, in every order,", [_Moment(None, ran=tasks)])
    few = len(tasks) > _ALL
    if few:
        order = problem.heap_order
        _, levels = problem.levels(order)
        tasks = [order[place] for place in sorted(range(len(order)), key=levels.__getitem__)[-_FEW:]]
    for task in tasks:
        if needs[task] or problem.waits[task] != 1:  # otherwise the level was higher when its only predecessor ran
            yield _Case("", [_Moment(task)])
    left = _FEW if few else _PASS
    for kind in _kinds(problem, memory):
        left -= 2 * len(kind)
        if left < 0:
            break
        words = f"whichever of {len(kind):,} tasks like {graph.describe(kind[0])} runs"
        others = [[task for task in kind if task != one] for one in kind]
        yield _Case(
            f"{words} last,",
            [_Moment(one, ran=rest) for one, rest in zip(kind, others, strict=True)],
        )
        yield _Case(
            f"{words} first,",
            [_Moment(one, waiting=rest) for one, rest in zip(kind, others, strict=True)],
        )
    left = _FEW if few else _PASS
    for each in sorted(memory.sums.values(), key=lambda each: -each.nbytes):
        givers = [arrival.task for arrival in each.arrivals if arrival.task != CALLER]
        in_place = all(arrival.task != CALLER for arrival in each.arrivals) and any(
            arrival.alone for arrival in each.arrivals
        )
        if in_place or len(set(givers)) < len(givers):
            continue
        left -= len(givers)
        if left < 0:
            break
        words = f"whichever of {len(each.arrivals):,} gradients arrives second at {graph.describe(each.task)},"
        yield _Case(words, [_Moment(task, sum=each) for task in givers])


def _kinds(problem: Problem, memory: CertainMemory) -> list[list[int]]:
    """Group tasks of equal name and memory need, those with the highest need first."""
    found: dict[tuple[str, int], list[int]] = {}
    for task in problem.tasks:
        if memory.needs[task]:
            found.setdefault((problem.graph.tasks[task].name, memory.needs[task]), []).append(task)
    kinds = sorted(found.items(), key=lambda item: -item[0][1] * len(item[1]))
    return [tasks for _, tasks in kinds if 1 < len(tasks) <= _RIVALS]


class _Planes:
    """A number for each moment, stored as bit planes, so that a value is added to thousands of them at once."""

    def __init__(self) -> None:
        self._counts: dict[int, list[Moments]] = {}

    def add(self, nbytes: int, moments: Moments) -> None:
        """Add bytes at these moments. At first only counts by size are kept, since many blocks have the same size."""
        if nbytes and moments:
            _carry(self._counts.setdefault(nbytes, []), 0, moments)

    def numbers(self, count: int) -> list[int]:
        """Return the number of each of the first `count` moments."""
        planes: list[Moments] = [0]
        for nbytes, counts in self._counts.items():
            for shift, moments in enumerate(counts):
                for bit in range(nbytes.bit_length()):
                    if nbytes >> bit & 1:
                        _carry(planes, bit + shift, moments)
        rows = [format(plane, f"0{count}b") for plane in reversed(planes)]
        return [int("".join(bits), 2) for bits in zip(*rows, strict=True)][::-1]


def _carry(planes: list[Moments], bit: int, moments: Moments) -> None:
    """Add `2 ** bit` at these moments."""
    planes.extend([0] * (bit + 1 - len(planes)))
    while moments:
        if bit == len(planes):
            planes.append(moments)
            return
        planes[bit], moments = planes[bit] ^ moments, planes[bit] & moments
        bit += 1


class _Pass:
    """Computes the certain levels at some moments.

    Each block is counted at most once per moment. For a sum, the gradients that were added are not counted again: when
    the second one arrives, the sum is on a block that nothing else holds, until the task that reads it has ended.

    Attributes (sets of moments, for each task):
        done: moments at which it has certainly run.
        still: moments at which it has certainly not ended.
        arriving: moments at which its outputs arrive.
    """

    def __init__(
        self, memory: CertainMemory, nexts: list[list[int]], order: Sequence[int], moments: Sequence[_Moment]
    ) -> None:
        self._memory = memory
        self._moments = moments
        self._every: Moments = (1 << len(moments)) - 1
        count = len(nexts)
        self._running = _sets(count, ([each.task] if each.sum is None else () for each in moments))
        self._arriving = _sets(count, ([each.task] if each.sum is not None else () for each in moments))
        self._done = _sets(count, (each.ran for each in moments))
        self._still = _sets(count, (each.waiting for each in moments))
        self._never: Moments = 0  # moments that cannot occur
        self._close(nexts, order)
        self._made: list[Moments] = []
        self._there: dict[int, Moments] = {}  # by block, moments known from sums
        self._at_least: dict[int, list[tuple[int, Moments]]] = {}  # by block, bytes of the block or of its sum

    def _close(self, nexts: list[list[int]], order: Sequence[int]) -> None:
        """Close the sets: predecessors of running or finished tasks have run; successors of others have not."""
        running, arriving, done, still = self._running, self._arriving, self._done, self._still
        never = 0
        for task in reversed(order):
            moments = done[task]
            for next_task in nexts[task]:
                moments |= done[next_task] | running[next_task] | arriving[next_task]
            done[task] = moments
            never |= moments & (running[task] | arriving[task])
        for task in order:
            never |= still[task] & (running[task] | arriving[task])
            still[task] |= running[task]
            for next_task in nexts[task]:
                still[next_task] |= still[task] | arriving[task]
        self._never = never

    def levels(self) -> list[int | None]:
        """Return the bytes certainly alive at each moment; None for a moment that cannot occur."""
        memory, planes = self._memory, _Planes()
        for number, block in enumerate(memory.blocks):
            if number in memory.sums:
                self._made.append(self._sum(memory.sums[number]))
            else:
                moments = 0 if block.makers else self._every
                for task in block.makers:
                    moments |= self._done[task]
                self._made.append(moments)
        for number, block in enumerate(memory.blocks):
            made = self._made[number]
            if not made:
                continue
            there = self._every if block.stays else 0
            for task in block.users:
                there |= self._still[task]
            for task in block.passers:
                there |= self._arriving[task]
            for task in block.held_after:
                there |= self._done[task]
            there = there & made | self._there.get(number, 0)
            planes.add(block.nbytes, there)
            at_least = self._at_least.get(number, [])
            if block.grad_bytes:
                at_least.append((block.grad_bytes, made))
            for nbytes, moments in sorted(at_least, reverse=True):
                planes.add(nbytes, moments & ~there)
                there |= moments
        for task, nbytes in enumerate(memory.needs):
            planes.add(nbytes, self._running[task])
        for task, nbytes in enumerate(memory.keeps):
            planes.add(nbytes, self._arriving[task])
        levels: list[int | None] = list(planes.numbers(len(self._moments)))
        for number, moment in enumerate(self._moments):
            if self._never >> number & 1:
                levels[number] = None
            elif moment.sum is not None:
                more, level = self._of_second(number, moment), levels[number]
                levels[number] = None if more is None or level is None else level + more
        return levels

    def _not_arrived(self, arrival: Arrival) -> Moments:
        return 0 if arrival.task == CALLER else self._still[arrival.task] | self._arriving[arrival.task]

    def _arrived(self, arrival: Arrival) -> Moments:
        """Return the moments at which the gradient has arrived, or exists in a separate block."""
        if arrival.only_here:
            return self._made[arrival.block] & ~self._not_arrived(arrival)
        return self._every if arrival.task == CALLER else self._done[arrival.task]

    def _sum(self, sum_: Sum) -> Moments:
        """Return the moments at which at least two gradients of a sum exist, and record the blocks known before."""
        blocks = self._memory.blocks
        total = blocks[sum_.block]
        arrived = [self._arrived(arrival) for arrival in sum_.arrivals]
        missing = [self._not_arrived(arrival) for arrival in sum_.arrivals]
        one = two = 0
        for moments in arrived:
            two |= one & moments
            one |= moments
        taken = self._every if total.grad_bytes else self._still[sum_.task]
        alone = one & ~two
        if alone:
            # none_after[i]: no gradient from number i on has arrived.
            none_after = [self._every]
            for moments in reversed(missing):
                none_after.append(none_after[-1] & moments)
            none_after.reverse()
            none_before = self._every
            for number, arrival in enumerate(sum_.arrivals):
                moments = arrived[number] & alone
                if moments and arrival.block >= 0:
                    first = moments & none_before & none_after[number + 1]
                    self._there[arrival.block] = self._there.get(arrival.block, 0) | first
                    least = min(blocks[arrival.block].nbytes, total.grad_bytes or total.nbytes)
                    self._at_least.setdefault(arrival.block, []).append((least, moments & taken & ~first))
                none_before &= missing[number]
        return two

    def _of_second(self, number: int, moment: _Moment) -> int | None:
        """Return the bytes of a sum as its second gradient arrives, with the first gradient if it is not counted yet.

        Returns None if this gradient cannot be the second.
        """
        assert moment.sum is not None
        blocks = self._memory.blocks
        others = [arrival for arrival in moment.sum.arrivals if arrival.task != moment.task]
        if sum(arrival.task == CALLER or self._done[arrival.task] >> number & 1 for arrival in others) > 1:
            return None
        possible = [arrival for arrival in others if not self._not_arrived(arrival) >> number & 1]
        if not possible:
            return None
        known = any(self._arrived(arrival) >> number & 1 or not arrival.only_here for arrival in possible)
        return moment.sum.nbytes + (0 if known else min(blocks[arrival.block].nbytes for arrival in possible))


def _sets(count: int, tasks_of: Iterable[Iterable[int | None]]) -> list[Moments]:
    """Return, for each task, the set of moments whose tasks contain it."""
    found = [0] * count
    for number, tasks in enumerate(tasks_of):
        bit = 1 << number
        for task in tasks:
            if task is not None:
                found[task] |= bit
    return found
