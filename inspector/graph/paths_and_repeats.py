"""Longest paths through a graph, topological ranks, and repeated equal blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, takewhile
from typing import TypeVar

from .graph import Graph
from .source_lines import Source

Time = TypeVar("Time", int, float)


def ranks_of(count: int, links: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the length of the longest path from a source to each of `count` items, and a topological order.

    Items on a cycle, and items below one, are missing from the order.
    """
    successors: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for source, target in links:
        successors[source].append(target)
        missing[target] += 1
    return ranks_from(successors, missing)


def ranks_from(successors: Sequence[Sequence[int]], missing: list[int]) -> tuple[list[int], list[int]]:
    """Return the same as `ranks_of`, from successors. `missing`, the count of links to each item, is consumed."""
    ranks = [0] * len(successors)
    order = [item for item in range(len(missing)) if not missing[item]]
    for item in order:
        next_rank = ranks[item] + 1
        for successor in successors[item]:
            if ranks[successor] < next_rank:
                ranks[successor] = next_rank
            missing[successor] -= 1
            if not missing[successor]:
                order.append(successor)
    return ranks, order


def longest_ways(order: Iterable[int], before: Sequence[Iterable[int]], times: Sequence[Time]) -> list[Time]:
    """Return the length of the longest path to each item: its earliest start.

    With the order reversed, and `before` mapping items to their successors, this is the time that must pass after each
    item's end.

    Args:
        order: the items in topological order.
        before: the items that each item waits for.
        times: the duration of each item.
    """
    found = [type(time)() for time in times]
    for item in order:
        for other in before[item]:
            end = found[other] + times[other]
            if end > found[item]:
                found[item] = end
    return found


LEAST_HIDDEN = 8  # a run is only folded if this many tasks are hidden
LONGEST_PERIOD = 32
LONGEST_LOOSE_PERIOD = 128  # for runs of tasks without modules, whose blocks are longer

Edges = list[tuple[int, int, int]]  # (task, next task, number of the edge in Graph.edges)


class RepeatedPart:
    """A group under construction. `members` are the equal runs that it folds; `children` is the one shown."""

    __slots__ = (
        "above",
        "calls",
        "children",
        "class_name",
        "closed",
        "depth",
        "is_views",
        "made_at",
        "members",
        "path",
        "repeat",
        "shape",
        "tasks",
    )

    def __init__(self, path: str, class_name: str, depth: int) -> None:
        self.path, self.class_name, self.depth = path, class_name, depth
        self.children: list[RepeatedPart | int] = []
        self.tasks: list[int] = []
        self.members: list[list[RepeatedPart | int]] = []
        self.above = ""  # the path of the box around it
        self.calls = 1
        self.is_views = False  # a chain of views, outside of any module
        self.made_at = ""  # for a run of tasks without modules: the lines that made them, or their number
        self.closed = False
        self.repeat: int | None = None
        self.shape = -1  # parts of the same shape have the same modules, tasks and inner edges


def first_task(child: RepeatedPart | int) -> int:
    return child if isinstance(child, int) else child.tasks[0]


def tasks_of(children: Iterable[RepeatedPart | int]) -> list[int]:
    tasks = []
    for child in children:
        if isinstance(child, int):
            tasks.append(child)
        else:
            tasks.extend(child.tasks)
    return tasks


def find_shapes(graph: Graph, parts: list[RepeatedPart], edges: Edges, uses: list[list[tuple[int, int]]]) -> list[int]:
    """Assign equal numbers to parts of equal shape, and return such numbers for the tasks.

    Shape is class, tasks, gradient shapes, inner edges and the outputs that lead to parameters. Positions are task ids
    from the part's first one on: one forward creates a call's nodes one after the other.
    """
    numbers: dict[object, int] = {}
    metas: dict[object, int] = {}
    shapes = []
    for task, used in zip(graph.tasks, uses, strict=True):
        key = (
            task.name,
            tuple(metas.setdefault(meta, len(metas)) for meta in task.inputs),
            tuple(out for out, _ in used),
        )
        shapes.append(numbers.setdefault(key, len(numbers)))
    own_edges: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for source, target, number in edges:
        call = _common_call(graph, parts, source, target)
        if call is not None:
            edge = graph.edges[number]
            own_edges[call].append((source, edge.output, target, edge.input))
    for call in range(len(parts) - 1, -1, -1):
        part = parts[call]
        if not part.tasks:
            continue
        first = part.tasks[0]
        inner = tuple((a - first, output, b - first, number) for a, output, b, number in own_edges[call])
        content = tuple(
            (first_task(child) - first, shapes[child] if isinstance(child, int) else child.shape)
            for child in part.children
        )
        part.shape = numbers.setdefault((part.class_name, content, inner), len(numbers))
    return shapes


def _common_call(graph: Graph, parts: list[RepeatedPart], one: int, other: int) -> int | None:
    """Return the innermost call in which both tasks were made."""
    a, b = graph.tasks[one].call, graph.tasks[other].call
    while a != b and a is not None and b is not None:
        depth, other_depth = parts[a].depth, parts[b].depth
        if depth >= other_depth:
            a = graph.calls[a].parent
        if other_depth >= depth:
            b = graph.calls[b].parent
    return a if a == b else None


def fold_runs(
    children: list[RepeatedPart | int],
    shapes: Sequence[object],
    edges: dict[int, list[tuple[int, int]]],
    source_of: Callable[[int], Source | None] | None = None,
) -> list[RepeatedPart | int]:
    """Fold each run of equal siblings, of a period of one or more, into one part.

    Each period contains at least one module. With `source_of`, runs of tasks without modules are also folded; each
    begins where the forward went back to an earlier line.
    """
    folded: list[RepeatedPart | int] = []
    next_part = len(children)
    first_part_from = [0] * len(children)
    for index in range(len(children) - 1, -1, -1):
        if isinstance(children[index], RepeatedPart):
            next_part = index
        first_part_from[index] = next_part
    runs = _Runs(children, shapes, edges)
    start = 0
    while start < len(children):
        first, longest = (start, LONGEST_LOOSE_PERIOD) if source_of else (first_part_from[start], LONGEST_PERIOD)
        period, times = runs.longest(start, range(first - start + 1, longest + 1))
        if times > 1:
            skipped = _goes_back(children, start, period, source_of) if source_of else 0
            folded.extend(children[start : start + skipped])
            start += skipped
            end = start + period * runs.times(start, period)
            members = [children[index : index + period] for index in range(start, end, period)]
            folded.append(_run_part(members))
            start = end
        else:
            folded.append(children[start])
            start += 1
    return folded


class _Runs:
    """The runs of equal members among siblings. Ask for starts in ascending order."""

    def __init__(
        self,
        children: list[RepeatedPart | int],
        shapes: Sequence[object],
        edges: dict[int, list[tuple[int, int]]],
    ) -> None:
        self._children = children
        self._shapes = shapes
        self._edges = edges
        sizes = (1 if isinstance(child, int) else len(child.tasks) for child in children)
        self._tasks_before = list(accumulate(sizes, initial=0))
        # For each period, a place up to which children have the shapes of those one period later. Because of it, each
        # child is compared once per period and not once per start.
        self._differs = [0] * (LONGEST_LOOSE_PERIOD + 1)

    def longest(self, start: int, periods: range) -> tuple[int, int]:
        """Return the period and the number of members of the longest run from `start` on; (1, 1) if all are short."""
        best = (1, 1)
        count, shape = len(self._children), self._shapes[start]
        for period in range(periods.start, min(periods.stop, (count - start) // 2 + 1)):
            if self._shapes[start + period] != shape:
                continue
            if start + best[0] * best[1] + period > count:
                break  # no run is longer
            times = self.times(start, period)
            hidden = (times - 1) * (self._tasks_before[start + period] - self._tasks_before[start])
            if hidden >= LEAST_HIDDEN and period * times > best[0] * best[1]:
                best = (period, times)
        return best

    def times(self, start: int, period: int) -> int:
        """Return the number of equal members from `start` on: 1 if the next one differs."""
        shapes = self._shapes
        end = max(self._differs[period], start)
        while end + period < len(shapes) and shapes[end] == shapes[end + period]:
            end += 1
        self._differs[period] = end
        most, times = 1 + (end - start) // period, 1
        while times < most and self._have_equal_edges(start, start + period * times, period):
            times += 1
        return times

    def _have_equal_edges(self, one: int, other: int, period: int) -> bool:
        """Return whether members starting at `one` and `other`, of equal shapes, have equal inner edges."""
        if period == 1:
            return True
        children, edges = self._children, self._edges
        apart = first_task(children[other]) - first_task(children[one])
        for a, b in zip(range(one, one + period), range(other, other + period), strict=True):
            if first_task(children[b]) - first_task(children[a]) != apart:
                return False
            inner = [(target - one, ends) for target, ends in edges.get(a, ()) if one <= target < one + period]
            if inner != [
                (target - other, ends) for target, ends in edges.get(b, ()) if other <= target < other + period
            ]:
                return False
        return True


def _goes_back(
    children: list[RepeatedPart | int], start: int, period: int, source_of: Callable[[int], Source | None]
) -> int:
    """Return the place in a period at which the forward went back to an earlier line; 0 if not exactly once."""
    sources = [source_of(first_task(child)) for child in children[start : start + period]]
    back = [
        place
        for place, (before, source) in enumerate(zip([sources[-1], *sources], sources, strict=False))
        if before is not None
        and source is not None
        and (before.file, before.function) == (source.file, source.function)
        and source.line < before.line
    ]
    return back[0] if len(back) == 1 and start + back[0] + 2 * period <= len(children) else 0


def _run_part(members: list[list[RepeatedPart | int]]) -> RepeatedPart:
    parts = [child for child in members[-1] if isinstance(child, RepeatedPart)]
    if not parts:
        part = RepeatedPart("", "", 0)
        part.members = members
        part.tasks = tasks_of(chain.from_iterable(members))
        return part
    path = parts[0].path
    if len(members[-1]) > 1:  # take the innermost module that contains all of them; "" for the model
        parents = [each.path.split(".")[:-1] for each in parts]
        shared = takewhile(lambda names: len(set(names)) == 1, zip(*parents, strict=False))
        path = ".".join(names[0] for names in shared)
    part = RepeatedPart(path, parts[0].class_name, min(each.depth for each in parts))
    part.members = members
    part.tasks = tasks_of(child for member in members for child in member)
    return part
