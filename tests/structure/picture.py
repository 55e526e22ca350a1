"""The rooms of the code and the arrows between them as one SVG, laid out by tapescope's own layout."""

from __future__ import annotations

from html import escape
from math import inf

from tapescope.inspector.drawing.layered_layout import arrange
from tapescope.inspector.drawing.layout_types import Extent, Link
from tapescope.inspector.drawing.svg_text import text_width

from .imports import LAYERS, PACKAGES, ROOT, Imports, room_of

_COLOURS = {"inspector": ("#dbeafe", "#1e3a5f"), "engine": ("#dcfce7", "#1c4532"), "widgets": ("#fef3c7", "#57430f")}
_OTHER = ("#ede9fe", "#3b2f66")
_SIZE = 13  # pixels of a letter
_HEIGHT = 34
_MARGIN = 16


def room_imports(imports: Imports) -> dict[str, frozenset[str]]:
    """By room the rooms that its modules import."""
    found: dict[str, set[str]] = {room: set() for room in LAYERS if (ROOT / room.replace(".", "/")).exists()}
    for module, others in imports.items():
        room = room_of(module)
        if room in found:
            found[room] |= {room_of(other) for other in others if room_of(other) in found} - {room}
    return {room: frozenset(others) for room, others in found.items()}


def without_shortcuts(rooms: dict[str, frozenset[str]]) -> dict[str, list[str]]:
    """The same without the arrows that others imply: A -> C where there are A -> B and B -> C."""
    reached: dict[str, set[str]] = {}
    for room in sorted(rooms, key=LAYERS.index):
        reached[room] = set(rooms[room]).union(*(reached[other] for other in rooms[room]))
    return {
        room: [other for other in sorted(others) if not any(other in reached[between] for between in others)]
        for room, others in rooms.items()
    }


def draw(imports: Imports) -> str:
    """The picture. An arrow leads from a room to one that it imports; what follows from others is left out."""
    rooms = without_shortcuts(room_imports(imports))
    names = sorted(rooms, key=LAYERS.index, reverse=True)
    rank_of: dict[str, int] = {}
    for name in names:
        rank_of[name] = 1 + max((rank_of[other] for other in names if name in rooms[other]), default=-1)
    halves = [text_width(_label(name), _SIZE) / 2 + 12 for name in names]
    extents = [Extent(half, half, _HEIGHT, _HEIGHT) for half in halves]
    arrows = [(names.index(name), names.index(other)) for name in names for other in rooms[name]]
    links = [Link(source, target, wire) for wire, (source, target) in enumerate(arrows)]
    plan = arrange(extents, [9 * rank_of[name] for name in names], links, [], [], tall=inf)
    parts = [_HEAD.format(width=round(plan.width + 2 * _MARGIN), height=round(plan.height + 2 * _MARGIN))]
    for points in plan.links.values():
        way = " L".join(f"{x + _MARGIN:.1f},{y + _MARGIN:.1f}" for x, y in points)
        parts.append(f'<path d="M{way}" marker-end="url(#arrow)"/>')
    for name, half, x, y in zip(names, halves, plan.xs, plan.ys, strict=True):
        package = name.partition(".")[0]
        parts.append(
            f'<rect class="{package if package in PACKAGES else "other"}" x="{x - half + _MARGIN:.1f}" '
            f'y="{y + _MARGIN:.1f}" width="{2 * half:.1f}" height="{_HEIGHT}" rx="6"/>'
            f'<text x="{x + _MARGIN:.1f}" y="{y + _MARGIN + 22:.1f}">{escape(_label(name))}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _label(room: str) -> str:
    return room.replace(".", " / ")


def _rules(dark: bool) -> str:
    colours = {**_COLOURS, "commands": _OTHER}
    ink, line = ("#e5e7eb", "#8b949e") if dark else ("#1f2937", "#6b7280")
    rooms = " ".join(f".{name} {{ fill: {pair[dark]}; }}" for name, pair in colours.items())
    return f"text {{ fill: {ink}; }} path, rect {{ stroke: {line}; }} marker path {{ fill: {line}; }} {rooms}"


_HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{width}} {{height}}" width="{{width}}" role="img">
<title>The rooms of tapescope's code and which imports which</title>
<style>
text {{{{ font: {_SIZE}px system-ui, sans-serif; text-anchor: middle; }}}}
path {{{{ fill: none; stroke-width: 1.2; }}}}
{_rules(False).replace("{", "{{").replace("}", "}}")}
@media (prefers-color-scheme: dark) {{{{ {_rules(True).replace("{", "{{").replace("}", "}}")} }}}}
</style>
<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0,0 L8,4 L0,8 z" stroke="none"/></marker></defs>"""
