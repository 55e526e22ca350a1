from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tapescope.engine.session.batching.find_batches import ReadyBatch, batches, levels

Nexts = list[list[int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Nexts, list[int], dict[int, int]]:
    """A graph of up to 14 tasks, numbered in no special order, and keys for some of them."""
    count = draw(st.integers(1, 14))
    order = draw(st.permutations(range(count)))
    nexts: Nexts = [[] for _ in range(count)]
    waits = [0] * count
    for place, task in enumerate(order):
        for later in draw(st.lists(st.sampled_from(order[place + 1 :]), max_size=3)) if place + 1 < count else []:
            nexts[task].append(later)  # the same one twice: two edges
            waits[later] += 1
    keys = draw(st.dictionaries(st.integers(0, count - 1), st.integers(0, 2)))
    return nexts, waits, keys


def reached(nexts: Nexts) -> list[set[int]]:
    """Return all tasks that depend on each task, by brute force."""
    found = [set(each) for each in nexts]
    for _ in nexts:
        found = [each.union(*(found[later] for later in each)) for each in found]
    return found


def has_cycle(nexts: Nexts) -> bool:
    return any(task in below for task, below in enumerate(reached(nexts)))


def contracted(nexts: Nexts, found: list[ReadyBatch]) -> Nexts:
    """One task in each batch's place."""
    place = list(range(len(nexts)))
    for batch in found:
        for task in batch.tasks:
            place[task] = batch.tasks[0]
    joined: Nexts = [[] for _ in nexts]
    for task, each in enumerate(nexts):
        joined[place[task]] += [place[later] for later in each]
    return joined


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_all_batches_joined_at_once_leave_a_graph_without_cycles(
    graph: tuple[Nexts, list[int], dict[int, int]],
) -> None:
    nexts, waits, keys = graph
    found, below = batches(nexts, waits, keys), reached(nexts)
    assert sorted(task for batch in found for task in batch.tasks) == sorted(keys)
    for batch in found:
        assert len({keys[task] for task in batch.tasks}) == 1
        assert not any(below[task].intersection(batch.tasks) for task in batch.tasks)
    assert not has_cycle(contracted(nexts, found))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_tasks_ready_since_a_batch_depend_on_none_from_it_on(graph: tuple[Nexts, list[int], dict[int, int]]) -> None:
    nexts, waits, keys = graph
    found, below = batches(nexts, waits, keys), reached(nexts)
    for number, batch in enumerate(found):
        for earlier in found[batch.ready_since : number]:
            assert not any(below[task].intersection(batch.tasks) for task in earlier.tasks)


def test_levels_are_the_lengths_of_the_longest_paths() -> None:
    nexts: Nexts = [[1, 2], [2], [], [2]]
    assert levels(nexts, [0, 1, 3, 0]) == [0, 1, 2, 0]


def test_members_at_different_places_of_a_chain_are_found_together() -> None:
    # 0 → 1 → 2, a sum of losses; a product hangs at each, and one more below each of those.
    nexts: Nexts = [[1, 3], [2, 4], [5], [6], [7], [8], [], [], []]
    found = batches(nexts, [0, *[1] * 8], dict.fromkeys(range(3, 9), 0))
    assert [batch.tasks for batch in found] == [(3, 4, 5), (6, 7, 8)]


def test_a_key_waits_until_all_its_tasks_of_one_level_are_there() -> None:
    # 0 and 1 are of kind a, behind 1 and beside 0 is kind b: b first, or a would go in two.
    nexts: Nexts = [[], [2], []]
    found = batches(nexts, [0, 0, 1], {0: 7, 1: 8, 2: 7})
    assert [batch.tasks for batch in found] == [(1,), (0, 2)]
