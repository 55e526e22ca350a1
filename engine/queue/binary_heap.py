"""A binary heap that leaves equal keys in the order in which PyTorch's engine leaves them.

The engine's ready queue is a std::priority_queue (engine.h). Which of two equal keys it gives first is decided by how
the standard library moves items: in libstdc++ (stl_heap.h) a hole sinks to the bottom along the larger children, the
right one where both are equal, and the item that fills it rises from there. libc++ on macOS may decide otherwise.
"""

from __future__ import annotations

from typing import TypeVar

Item = TypeVar("Item")
Entry = tuple[tuple[int, ...], Item]
"""A key, of which the least comes first, and what it stands for."""


def push(heap: list[Entry[Item]], entry: Entry[Item]) -> None:
    heap.append(entry)
    if (last := len(heap) - 1) and heap[(last - 1) // 2][0] > entry[0]:  # else it stays there
        _rise(heap, last, entry)


def pop(heap: list[Entry[Item]]) -> Entry[Item]:
    """Takes the entry with the least key."""
    first, last = heap[0], heap.pop()
    if len(heap) > 1:
        _rise(heap, _sink(heap), last)
    elif heap:
        heap[0] = last
    return first


def _sink(heap: list[Entry[Item]]) -> int:
    """Moves the hole at the top down to where it has no children; its place there."""
    hole, size = 0, len(heap)
    while (right := 2 * hole + 2) < size:
        child = right - 1 if heap[right][0] > heap[right - 1][0] else right
        heap[hole] = heap[child]
        hole = child
    if right == size:  # a left child alone
        heap[hole] = heap[right - 1]
        hole = right - 1
    return hole


def _rise(heap: list[Entry[Item]], place: int, entry: Entry[Item]) -> None:
    """Puts the entry as far above `place` as its key allows."""
    key = entry[0]
    while place and heap[parent := (place - 1) // 2][0] > key:
        heap[place] = heap[parent]
        place = parent
    heap[place] = entry
