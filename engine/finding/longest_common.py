"""Which places of two sequences belong together: their longest common subsequence."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

_MOST_BITS = 2**30  # of all rows together, 128 MiB; longer sequences are matched window by window
_WINDOW = 2**14


def longest_common(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The pairs of places of a longest common subsequence, ascending.

    Bit-parallel (Hyyrö, 2004): row i has a zero bit j where the longest one of first[:i] and second[:j + 1] is longer
    than that of first[:i] and second[:j]. Twenty thousand against twenty thousand take a quarter of a second. Of what
    is much longer and not the same, it is the longest in windows of 16,384.
    """
    start = 0
    while start < min(len(first), len(second)) and first[start] == second[start]:
        start += 1
    ends = len(first), len(second)
    while min(ends) > start and first[ends[0] - 1] == second[ends[1] - 1]:
        ends = ends[0] - 1, ends[1] - 1
    found = [(place, place) for place in range(start)]
    at = start, start
    while (ends[0] - at[0]) * (ends[1] - at[1]) > _MOST_BITS:
        pairs = _matched(first[at[0] : at[0] + _WINDOW], second[at[1] : at[1] + _WINDOW])
        kept = pairs[: -(-3 * len(pairs) // 4)]  # what follows may belong elsewhere
        if not kept:
            at = min(at[0] + _WINDOW // 2, ends[0]), min(at[1] + _WINDOW // 2, ends[1])
            continue
        found += [(at[0] + mine, at[1] + other) for mine, other in kept]
        at = found[-1][0] + 1, found[-1][1] + 1
    found += [
        (at[0] + mine, at[1] + other) for mine, other in _matched(first[at[0] : ends[0]], second[at[1] : ends[1]])
    ]
    found += [(ends[0] + step, ends[1] + step) for step in range(len(first) - ends[0])]
    return found


def _matched(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    places: dict[Hashable, int] = {}
    for place, each in enumerate(second):
        places[each] = places.get(each, 0) | 1 << place
    every = (1 << len(second)) - 1
    row = every
    rows = [row]
    for each in first:
        common = row & places.get(each, 0)
        row = ((row + common) | (row - common)) & every
        rows.append(row)
    found = []
    mine, other = len(first), len(second)
    while mine and other:
        if rows[mine] >> (other - 1) & 1:
            other -= 1
        elif not rows[mine - 1] >> (other - 1) & 1:
            mine -= 1
        else:
            mine, other = mine - 1, other - 1
            found.append((mine, other))
    return found[::-1]
