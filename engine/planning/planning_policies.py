"""Planners: orders with little memory, little time, or some tasks early.

A planner takes a `Problem` and the tasks that have run, and returns the ids of all tasks in a legal order that starts
with those. All planners are deterministic and nearly linear: a hundred thousand tasks take about a second. They use the
problem's blocks, which are exact only for HEAP's order; `Problem.peak_bytes` decides which order is best.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ...inspector.garbage_collector import collector_paused

if TYPE_CHECKING:
    from .scheduling_problem import Problem
    from .series_parallel import Segment


class Progress:
    """An order under construction.

    Attributes:
        order: the tasks so far.
        ready: the tasks that are ready after the initial ones, in order of arrival.
    """

    def __init__(self, problem: Problem, ran: Sequence[int]) -> None:
        self.order: list[int] = []
        self._nexts = problem.nexts
        self._waits = list(problem.waits)
        arrived = dict.fromkeys(problem.start())
        for task in ran:
            del arrived[task]
            arrived.update(dict.fromkeys(self.run(task)))
        self.ready = list(arrived)

    def run(self, task: int) -> list[int]:
        """Run a task, and return the tasks that become ready, by output number."""
        self.order.append(task)
        waits = self._waits
        ready = []
        for next_task in self._nexts[task]:
            waits[next_task] -= 1
            if not waits[next_task]:
                ready.append(next_task)
        return ready


class Memory:
    """The memory level of an order under construction.

    Attributes:
        level: bytes alive.
        peak: the highest level so far, or the bytes left at the end if that is more.
        change: for each task, the change of the level if it runs next. It can only decrease over time, because another
            task makes the same block first, or the task becomes the last user of a block.
    """

    def __init__(self, problem: Problem, ran: Iterable[int] = ()) -> None:
        self._needs, self._sizes, self._makers = problem.blocks.needs, problem.blocks.sizes, problem.blocks.makers
        self._made_by, self._used_by = problem.blocks.made_by, problem.blocks.used_by
        self._made = [not makers for makers in problem.blocks.makers]
        self._left = list(map(len, problem.blocks.users))
        self._last = list(map(sum, problem.blocks.users))  # the sum of the ids of future users: with one left, its id
        self.level = problem.start_bytes
        self.peak = max(self.level, sum(size for size, left in zip(self._sizes, self._left, strict=True) if not left))
        self.change = [0] * len(self._needs)
        for task in problem.tasks:
            made = sum([self._sizes[block] for block in self._made_by[task]])
            freed = sum([self._sizes[block] for block in self._used_by[task] if self._left[block] == 1])
            self.change[task] = made - freed
        for task in ran:
            self.run(task)

    def run(self, task: int) -> list[int]:
        """Run a task, and return the tasks whose change is different now."""
        sizes, made, left, last, change = self._sizes, self._made, self._left, self._last, self.change
        changed = []
        self.peak = max(self.peak, self.level + self._needs[task])
        self.level += change[task]
        for block in self._made_by[task]:
            if not made[block]:
                made[block] = True
                for maker in self._makers[block]:
                    if maker != task:
                        change[maker] -= sizes[block]
                        changed.append(maker)
        for block in self._used_by[task]:
            left[block] -= 1
            last[block] -= task
            if left[block] == 1:
                change[last[block]] -= sizes[block]
                changed.append(last[block])
        return changed


class LeastNeed:
    """A queue that pops the lowest entry whose need is within a limit: a segment tree over heaps, O(log n) each.

    An entry is a key, a rank among equals, and the task. A lower entry of the same task replaces it.

    Args:
        needs: the need of each task.
    """

    def __init__(self, needs: Sequence[int]) -> None:
        self._needs = needs
        self._steps = sorted(set(needs))
        leaf_of = {need: leaf for leaf, need in enumerate(self._steps)}
        self._leaf_of = [leaf_of[need] for need in needs]
        self._leaves = 1 << len(self._steps).bit_length()
        self._heaps: list[list[tuple[int, int, int]]] = [[] for _ in self._steps]
        self._least: list[tuple[int, int, int] | None] = [None] * (2 * self._leaves)
        self._current: dict[int, tuple[int, int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._current)

    def __contains__(self, task: int) -> bool:
        return task in self._current

    def push(self, entry: tuple[int, int, int]) -> None:
        leaf = self._leaf_of[entry[2]]
        self._current[entry[2]] = entry
        heappush(self._heaps[leaf], entry)
        self._update(leaf)

    def pop(self, most: int) -> int:
        """Pop the lowest entry that needs at most `most`, or the one with the lowest need, and return its task."""
        least = self._least
        found = None
        node = self._leaves + bisect_right(self._steps, most)
        while node > 1:
            if node & 1 and (entry := least[node - 1]) is not None and (found is None or entry < found):
                found = entry
            node >>= 1
        if found is None:
            while node < self._leaves:
                node = 2 * node if least[2 * node] is not None else 2 * node + 1
            found = least[node]
        assert found is not None
        del self._current[found[2]]
        self._update(self._leaf_of[found[2]])
        return found[2]

    def _update(self, leaf: int) -> None:
        least, heap, current = self._least, self._heaps[leaf], self._current
        while heap and current.get(heap[0][2]) is not heap[0]:
            heappop(heap)
        best = heap[0] if heap else None
        node = leaf + self._leaves
        while node and least[node] is not best:
            least[node] = best
            other = least[node ^ 1]
            if other is not None and (best is None or other < best):
                best = other
            node >>= 1


def _heap_places(problem: Problem) -> list[int]:
    """Return the place of each task in HEAP's order, which decides between equal tasks."""
    places = [0] * len(problem.graph)
    for place, task in enumerate(problem.heap_order):
        places[task] = place
    return places


def _by_key(problem: Problem, ran: Sequence[int], key: Callable[[int], tuple[float, int]]) -> list[int]:
    """Return the order that always runs the ready task with the lowest key. O(n log n)."""
    progress = Progress(problem, ran)
    heap = [(key(task), task) for task in progress.ready]
    heapify(heap)
    while heap:
        for task in progress.run(heappop(heap)[1]):
            heappush(heap, (key(task), task))
    return progress.order


@collector_paused()
def lpmf(problem: Problem, ran: Sequence[int] = ()) -> list[int]:
    """Least peak memory first: among the tasks that stay within the peak so far, run the one that frees most.

    If no task stays within it, run the one that needs least. torch/_inductor/memory.py, topological_sort_lpmf, after
    "Buffer memory optimization for video codec application modeled in Simulink" (DAC 2006). There each step looks at
    all ready nodes; a segment tree over their needs makes that O(log n), O((n + uses of blocks) log n) in all.
    """
    progress, memory = Progress(problem, ran), Memory(problem, ran)
    places = _heap_places(problem)
    ready = LeastNeed(problem.blocks.needs)
    for task in progress.ready:
        ready.push((memory.change[task], places[task], task))
    while ready:
        task = ready.pop(memory.peak - memory.level)
        for changed in memory.run(task):
            if changed in ready:
                ready.push((memory.change[changed], places[changed], changed))
        for arrived in progress.run(task):
            ready.push((memory.change[arrived], places[arrived], arrived))
    return progress.order


@collector_paused()
def postorder(problem: Problem, ran: Sequence[int] = ()) -> list[int]:
    """Depth first from the last tasks: each task runs right after its predecessors, the largest subgraph first.

    The subgraph with more branches is larger, among equals the one that allocates more bytes; both are summed along all
    paths. openxla/xla, hlo_memory_scheduler.cc, DFSMemoryScheduler, which starts at the single end of its programs; a
    backward has as many ends as parameters. torch/_inductor/memory.py, topological_sort_dfs, takes the smallest first;
    then the gradients of biases run everything before those of the weights. It is a bad order if a parameter is used in
    each step of a recurrence. O(n log n + edges).
    """
    branches, made = [0] * len(problem.graph), [0] * len(problem.graph)
    tasks, sizes = len(problem.tasks), problem.blocks.sizes
    made_in_all = sum(sizes)
    for task in problem.heap_order:
        nexts = problem.nexts[task]
        # The number of paths can be too large for floats.
        branches[task] = min(branches[task] + max(0, len(nexts) - 1), tasks)
        made[task] = min(made[task] + sum([sizes[block] for block in problem.blocks.made_by[task]]), made_in_all)
        for next_task in nexts:
            branches[next_task] += branches[task]
            made[next_task] += made[task]
    places = _heap_places(problem)
    by_size = sorted(problem.tasks, key=lambda task: (-branches[task], -made[task], places[task]))
    before: list[list[int]] = [[] for _ in places]
    for task in reversed(by_size):  # the largest comes last, and a stack pops it first
        for next_task in problem.nexts[task]:
            before[next_task].append(task)
    order = list(ran)
    seen = set(ran)
    stack = [task for task in reversed(by_size) if not problem.nexts[task]]
    while stack:
        if (task := stack[-1]) in seen:
            stack.pop()
        elif before[task]:
            stack.append(before[task].pop())
        else:
            seen.add(stack.pop())
            order.append(task)
    return order


@collector_paused()
def critical_path(problem: Problem, ran: Sequence[int] = ()) -> list[int]:
    """Run the task with the longest remaining path first, by the times of `Problem.durations`.

    "Highest levels first with estimated times" (HLFET: Adam, Chandy and Dickson, 1974), after Hu (1961); a list
    schedule, so with m equal devices the time is within 2 - 1/m of the best (Graham, 1969). On one device all orders
    take equally long. O(n log n + edges).
    """
    from ...inspector.graph.paths_and_repeats import longest_ways

    times = problem.durations
    rest = longest_ways(reversed(problem.heap_order), problem.nexts, times)
    places = _heap_places(problem)
    return _by_key(problem, ran, lambda task: (-(rest[task] + times[task]), places[task]))


@collector_paused()
def comm_first(problem: Problem, ran: Sequence[int] = (), *, patterns: Sequence[str | int] = ()) -> list[int]:
    """Run the named tasks and their predecessors as early as possible, in the order of the patterns.

    HEAP decides between the predecessors of one pattern, and between all other tasks. Gradients that have to be sent to
    other ranks are ready as early as possible, and sending overlaps the remaining tasks. O(n log n + edges).

    Args:
        patterns: each as in `tasks_at`: a task's number, a node's kind, the path of a module, or the name of a
            parameter, also with wildcards. Without patterns, the buckets of DistributedDataParallel, in the order in
            which their all-reduces start.

    Raises:
        ValueError: a pattern names nothing, or nothing that runs; none is given and there are no buckets.
    """
    before: list[list[int]] = [[] for _ in problem.nexts]
    for task in problem.tasks:
        for next_task in problem.nexts[task]:
            before[next_task].append(task)
    groups = _named(problem, patterns) if patterns else _buckets(problem)
    stage = [len(groups)] * len(before)
    for number, tasks in enumerate(groups):
        stack = [task for task in tasks if stage[task] == len(groups)]
        while stack:
            task = stack.pop()
            stage[task] = number
            stack.extend(earlier for earlier in before[task] if stage[earlier] == len(groups))
    places = _heap_places(problem)
    return _by_key(problem, ran, lambda task: (stage[task], places[task]))


def _named(problem: Problem, patterns: Iterable[str | int]) -> list[list[int]]:
    """Return the tasks of each pattern that run."""
    from ..schedule.find_tasks import tasks_at

    runs = set(problem.tasks)
    groups = []
    for pattern in patterns:
        named = sorted(tasks_at(problem.graph, pattern))
        groups.append([task for task in named if task in runs])
        if not groups[-1]:
            raise ValueError(
                f'comm_first cannot run "{pattern}" early: this backward runs none of its tasks, such as '
                f"{problem.graph.describe(named[0])}; name tasks that lead to its inputs"
            )
    return groups


def _buckets(problem: Problem) -> list[list[int]]:
    """The leaf tasks of each bucket of DistributedDataParallel."""
    from ..schedule.ddp_buckets import buckets_of  # imports torch.distributed only if needed

    runs = set(problem.tasks)
    groups = [[task for task in bucket.tasks if task in runs] for bucket in buckets_of(problem.graph)]
    if not any(groups):
        raise ValueError(
            "comm_first needs tasks to run first, and this graph has no buckets of DistributedDataParallel: "
            'name a kind, a module or a parameter, as in "comm_first(encoder.*)"'
        )
    return groups


@collector_paused()
def liu(problem: Problem, ran: Sequence[int] = ()) -> list[int]:
    """Merge branches segment by segment, each cut where memory is lowest: optimal on trees and series-parallel graphs.

    A segment is a sequence of tasks with a hill, its highest level, and a valley, the level after it, both relative to
    the level before it. Branches between a fork and a join are merged by their segments: see
    `series_parallel.contracted`, and J. W. H. Liu, "An application of generalized tree pebbling to sparse matrix
    factorization" (1987). The rest, which is not series-parallel, stays a graph of segments, ordered as `lpmf` orders
    tasks.

    The order is optimal if each block has one maker and at most one user, so that a task always changes the level by
    the same amount. Otherwise changes are taken from HEAP's order: a block used by several tasks is freed by the last
    of them there. About O(n log n + edges + uses of blocks).
    """
    from .series_parallel import contracted

    order = problem.heap_order
    if ran:
        places = _heap_places(problem)
        order = _by_key(problem, ran, lambda task: (places[task], task))[len(ran) :]
    memory = Memory(problem, ran)
    level, peak = memory.level, memory.peak
    change = [0] * len(problem.graph)
    for task in order:
        change[task] = memory.change[task]
        memory.run(task)
    hills = [max(need, after, 0) for need, after in zip(problem.blocks.needs, change, strict=True)]
    segments = contracted(order, problem.nexts, hills, change)

    left_out = set(order).difference(*(segment.tasks for segment in segments))
    progress = Progress(problem, ran)
    stack = [task for task in progress.ready if task in left_out]
    for segment in _segments_in_order(segments, level, peak):
        for task in segment.tasks:
            stack.append(task)
            while stack:
                stack.extend(each for each in progress.run(stack.pop()) if each in left_out)
    return progress.order


def _segments_in_order(segments: Sequence[Segment], level: int, peak: int) -> Iterator[Segment]:
    """Order segments as `lpmf` orders tasks."""
    waits = [0] * len(segments)
    for segment in segments:
        for number in segment.nexts:
            waits[number] += 1
    ready = LeastNeed([segment.hill for segment in segments])
    arrived = [number for number, count in enumerate(waits) if not count]
    while arrived or ready:
        for number in arrived:
            ready.push((segments[number].change, number, number))
        segment = segments[ready.pop(peak - level)]
        yield segment
        peak = max(peak, level + segment.hill)
        level += segment.change
        arrived = []
        for number in segment.nexts:
            waits[number] -= 1
            if not waits[number]:
                arrived.append(number)
