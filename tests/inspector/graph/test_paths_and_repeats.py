"""Runs of equal siblings are those that comparing each member with the first one finds."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tapescope.inspector.graph.paths_and_repeats import (
    LEAST_HIDDEN,
    LONGEST_LOOSE_PERIOD,
    LONGEST_PERIOD,
    RepeatedPart,
    first_task,
    fold_runs,
)
from tapescope.inspector.graph.source_lines import Source

Child = RepeatedPart | int
Edges = dict[int, list[tuple[int, int]]]


def member(children: Sequence[Child], shapes: Sequence[object], edges: Edges, start: int, period: int) -> object:
    """All that has to be equal for a member of a run; None if it does not fit among the siblings."""
    if start + period > len(children):
        return None
    here = range(start, start + period)
    places = [first_task(children[each]) - first_task(children[start]) for each in here]
    inner = [[(to - start, ends) for to, ends in edges.get(each, ()) if to in here] for each in here]
    return [shapes[each] for each in here], *([places, inner] if period > 1 else [])


def runs_found_slowly(
    children: list[Child], shapes: Sequence[object], edges: Edges, lines: Sequence[int] | None
) -> list[tuple[int, int]]:
    """(first child, period) of each run, or (child, 0) of a child of its own."""

    def times(start: int, period: int) -> int:
        first, count = member(children, shapes, edges, start, period), 1
        while member(children, shapes, edges, start + count * period, period) == first:
            count += 1
        return count

    found: list[tuple[int, int]] = []
    start = 0
    while start < len(children):
        part = next((each for each in range(start, len(children)) if isinstance(children[each], RepeatedPart)), 10**9)
        shortest, longest = (1, LONGEST_LOOSE_PERIOD) if lines else (part - start + 1, LONGEST_PERIOD)
        best = (1, 1)
        for period in range(shortest, min(longest, (len(children) - start) // 2) + 1):
            tasks = sum(1 if isinstance(each, int) else len(each.tasks) for each in children[start : start + period])
            count = times(start, period)
            if (count - 1) * tasks >= LEAST_HIDDEN and period * count > best[0] * best[1]:
                best = (period, count)
        period, count = best
        if count == 1:
            found.append((start, 0))
            start += 1
            continue
        if lines:
            of_period = lines[start : start + period]
            back = [place for place in range(period) if of_period[place] < of_period[place - 1]]
            if len(back) == 1 and start + back[0] + 2 * period <= len(children):
                found.extend((start + each, 0) for each in range(back[0]))
                start += back[0]
        found.append((start, period))
        start += period * times(start, period)
    return found


@st.composite
def siblings(draw: st.DrawFn) -> tuple[list[Child], list[int], Edges, list[int] | None]:
    """Some patterns repeated one after the other, each with a few changes: of a shape, of an edge, or a gap of ids."""
    shapes: list[int] = []
    edges: Edges = {}
    for _ in range(draw(st.integers(1, 3))):
        pattern = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
        links = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 1)), max_size=4))
        for _ in range(draw(st.integers(1, 9))):
            for one, other, ends in links:
                edges.setdefault(len(shapes) + one % len(pattern), []).append(
                    (len(shapes) + other % len(pattern), ends)
                )
            shapes.extend(pattern)
    for place in draw(st.lists(st.integers(0, len(shapes) - 1), max_size=3)):
        shapes[place] = draw(st.integers(0, 2))
    for place in draw(st.lists(st.integers(0, len(shapes) - 1), max_size=2)):
        edges.setdefault(place, []).append((draw(st.integers(0, len(shapes) - 1)), 2))
    gaps = set(draw(st.lists(st.integers(0, len(shapes) - 1), max_size=2)))
    of_parts = draw(st.sets(st.integers(0, 2)))
    children: list[Child] = []
    task = 0
    for place, shape in enumerate(shapes):
        task += place in gaps
        child: Child = task
        if shape in of_parts:
            child = RepeatedPart(f"part.{place}", "Part", 0)
            child.tasks = [task, task + 1, task + 2]
        task += 3
        children.append(child)
    lines = [draw(st.integers(1, 4)) for _ in shapes] if draw(st.booleans()) else None
    return children, shapes, edges, lines


@given(siblings())
def test_runs_are_those_that_a_comparison_of_all_members_finds(
    given: tuple[list[Child], list[int], Edges, list[int] | None],
) -> None:
    children, shapes, edges, lines = given
    line_of = {} if lines is None else {first_task(each): line for each, line in zip(children, lines, strict=True)}
    source_of = None if lines is None else lambda task: Source("model.py", line_of[task], "forward")
    folded = fold_runs(children, shapes, edges, source_of)
    expected = runs_found_slowly(children, shapes, edges, lines)
    place = {id(child): number for number, child in enumerate(children)}
    found = []
    for each in folded:
        if isinstance(each, RepeatedPart) and each.members:
            found.append((children.index(each.members[0][0]), len(each.members[0])))
            assert [child for one in each.members for child in one] == children[found[-1][0] :][
                : len(each.members) * found[-1][1]
            ]
        else:
            found.append((place[id(each)], 0))
    assert found == expected


def test_each_child_is_compared_once_per_period() -> None:
    compared = 0

    class Shape:
        def __init__(self, name: str) -> None:
            self.name = name

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return isinstance(other, Shape) and self.name == other.name

    count = 1000
    children: list[Child] = list(range(count))
    edges = {place: [(place + 1, place)] for place in range(count - 1)}  # no two are equal, so nothing is folded
    shapes = [Shape("ab"[place % 2]) for place in range(count)]
    assert fold_runs(children, shapes, edges, lambda task: None) == children
    assert compared <= 2 * count * (LONGEST_LOOSE_PERIOD + 1), "the first comparison, and that of the run"
