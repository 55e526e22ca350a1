"""A treemap as SVG: boxes in boxes, as large as their values, squarified (Bruls, Huizing, van Wijk, 2000)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .plotly_data import Drawing

_HEAD = 18.0  # pixels at the top of a box with others in it, for its name
_PAD = 3.0
_LEAST = 4.0  # pixels: less is not drawn

Rect = tuple[float, float, float, float]
Label = Callable[[str, float, float, float, float, str], Iterator[str]]
"""Draws a text, in this room, and this height, at (x, y), in this colour."""


def drawn_treemap(trace: Drawing, box: Rect, label: Label) -> Iterator[str]:
    """The boxes of a trace of plotly's; a box's value is the sum of those in it. `box` is left, top, right, bottom."""
    below: dict[str, list[int]] = {}
    for index, parent in enumerate(trace["parents"]):
        below.setdefault(parent, []).append(index)
    marker = trace["marker"]
    inks = trace.get("textfont", {}).get("color")
    values = trace["values"]
    left, top, right, bottom = box
    waiting: list[tuple[int, Rect]] = [(root, (left, top, right - left, bottom - top)) for root in below.get("", ())]
    while waiting:
        index, (x, y, width, height) = waiting.pop()
        if width < _LEAST or height < _LEAST:
            continue
        line = marker.get("line", {})
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{marker["colors"][index]}" '
            f'stroke="{line.get("color", "#ffffff")}" stroke-width="{line.get("width", 1)}"/>'
        )
        yield from label(trace["labels"][index], width - 8, height, x + 4, y, inks[index])
        parts = sorted(below.get(trace["ids"][index], ()), key=lambda each: -values[each])
        room = (x + _PAD, y + _HEAD, width - 2 * _PAD, height - _HEAD - _PAD)
        if parts and min(room[2:]) > _LEAST:
            waiting += zip(parts, _squarified([values[each] for each in parts], room), strict=True)


def _squarified(values: Sequence[float], room: Rect) -> list[Rect]:
    """A rectangle for each value, the largest first, as near to squares as rows along the shorter side make them."""
    x, y, width, height = room
    scale = width * height / (sum(values) or 1)
    areas = [value * scale for value in values]
    found: list[Rect] = []
    at = 0
    while at < len(areas):
        side = min(width, height)
        end = at + 1
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
    """How far from a square the rectangle of a row is that is farthest from it."""
    total = sum(row)
    if not total or not side:
        return float("inf")
    return max(max(side**2 * area / total**2, total**2 / (side**2 * area)) if area else float("inf") for area in row)
