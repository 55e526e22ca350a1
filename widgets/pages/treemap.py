"""Squarified treemap layout: nested boxes whose areas are proportional to values (Bruls, Huizing, van Wijk, 2000)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .plotly_data import Drawing

_HEAD = 18.0  # pixels for the name at the top of a box that contains others
_PAD = 3.0
_LEAST = 4.0  # pixels; smaller boxes are not drawn

Rect = tuple[float, float, float, float]
"""Left, top, width and height."""


def tiles(trace: Drawing, room: Rect, least: float = _LEAST) -> Iterator[tuple[int, Rect]]:
    """Yield the index and the rectangle of each box of a plotly trace, outer boxes first.

    Boxes narrower or lower than `least` pixels are left out. If `least` is 0, all boxes are laid out, and low boxes
    have a lower title bar.
    """
    below: dict[str, list[int]] = {}
    for index, parent in enumerate(trace["parents"]):
        below.setdefault(parent, []).append(index)
    values = trace["values"]
    waiting: list[tuple[int, Rect]] = [(root, room) for root in below.get("", ())]
    while waiting:
        index, (x, y, width, height) = waiting.pop()
        if width < least or height < least:
            continue
        yield index, (x, y, width, height)
        parts = sorted(below.get(trace["ids"][index], ()), key=lambda each: -values[each])
        head = _HEAD if least else min(_HEAD, height / 4)
        inside = (x + _PAD, y + head, max(width - 2 * _PAD, 0.0), max(height - head - _PAD, 0.0))
        if parts and min(inside[2:]) >= least:
            places = _squarified([values[each] for each in parts], inside)
            waiting += reversed(list(zip(parts, places, strict=True)))  # the largest is popped next


def _squarified(values: Sequence[float], room: Rect) -> list[Rect]:
    """Return a rectangle for each value, largest first. Rows along the shorter side keep them close to squares."""
    x, y, width, height = room
    scale = width * height / (sum(values) or 1)
    areas = [value * scale for value in values]
    found: list[Rect] = []
    at = 0
    while at < len(areas):
        side = min(width, height)
        end = at + 1
        # Extend the row as long as its worst rectangle does not get narrower.
        while end < len(areas) and _worst(areas[at : end + 1], side) <= _worst(areas[at:end], side):
            end += 1
        row = areas[at:end]
        thick = sum(row) / side if side else 0.0
        along = 0.0
        for area in row:
            length = area / thick if thick else 0.0
            found.append((x, y + along, thick, length) if width >= height else (x + along, y, length, thick))
            along += length
        if width >= height:
            x, width = x + thick, max(width - thick, 0.0)
        else:
            y, height = y + thick, max(height - thick, 0.0)
        at = end
    return found


def _worst(row: Sequence[float], side: float) -> float:
    """Return the largest aspect ratio of a row's rectangles."""
    total = sum(row)
    if not total or not side:
        return float("inf")
    return max(max(side**2 * area / total**2, total**2 / (side**2 * area)) if area else float("inf") for area in row)
