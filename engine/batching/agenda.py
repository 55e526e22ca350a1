"""Which tasks of a graph can run together: agenda-based batching."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from ...inspector.graph.ranks import ranks_from


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """Tasks of one key that were ready at the same moment, and so don't depend on each other.

    Attributes:
        tasks: their ids, ascending.
        ready_since: the number of the batch before which the last of them got ready; 0 at the start.
    """

    tasks: tuple[int, ...]
    ready_since: int


def levels(nexts: Sequence[Sequence[int]], waits: Sequence[int]) -> list[int]:
    """By task the length of the longest path that leads to it, in edges."""
    return ranks_from(nexts, list(waits))[0]


def batches(nexts: Sequence[Sequence[int]], waits: Sequence[int], keys: Mapping[int, int]) -> list[ReadyBatch]:
    """Runs the graph in thought, and holds the tasks that have a key back until nothing else can run: then all that are
    ready and share one key go together. The batches come in the order in which they ran.

    **Why no batch breaks the graph.** The run is an order of all tasks in which each comes after what it waits for, and
    in which the members of a batch stand side by side. Put one task in each batch's place: the order is left, with
    every edge still leading forward in it, so the graph of the batches, all of them at once, has no cycle. Members
    depend on each other as little: none had run when all were ready. Any part of a batch may be taken alone.

    Of several keys that are ready the one goes first whose tasks, over the whole graph, are on the lowest levels on the
    average: else the first to come would go alone, and the rest of its kind after it (Neubig, Goldberg and Dyer,
    On-the-fly Operation Batching in Dynamic Computation Graphs, NeurIPS 2017). Tasks of one level are found together,
    and so are members that hang at different places of a chain, as those whose losses a loop adds up.

    Args:
        nexts: by task those that wait for it, once for each edge.
        waits: by task for how many edges it waits.
        keys: of the tasks that may go together with others of the same key.

    O(edges + tasks log tasks).
    """
    missing, level = list(waits), levels(nexts, waits)
    depths, counts = Counter[int](), Counter(keys.values())  # of each key's tasks that have not run
    for task, key in keys.items():
        depths[key] += level[task]
    waiting: dict[int, list[int]] = {}
    since: dict[int, int] = {}
    heap: list[tuple[float, int]] = []
    found: list[ReadyBatch] = []
    free = [task for task, count in enumerate(missing) if not count]
    while free or heap:
        while free:
            task = free.pop()
            if task in keys:
                key = keys[task]
                if key not in waiting:
                    waiting[key] = []
                    # While a key waits none of its tasks runs, so its place in the heap stays right.
                    heappush(heap, (depths[key] / counts[key], key))
                waiting[key].append(task)
                since[key] = len(found)
                continue
            for later in nexts[task]:
                missing[later] -= 1
                if not missing[later]:
                    free.append(later)
        if heap:
            key = heappop(heap)[1]
            tasks = tuple(sorted(waiting.pop(key)))
            found.append(ReadyBatch(tasks, since.pop(key)))
            depths[key] -= sum(level[task] for task in tasks)
            counts[key] -= len(tasks)
            for task in tasks:
                for later in nexts[task]:
                    missing[later] -= 1
                    if not missing[later]:
                        free.append(later)
    return found
