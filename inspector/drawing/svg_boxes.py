"""Modules in the SVG: open ones as boxes, closed ones and chains of views as rows, equal layers on cards."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..graph.words import counted
from .cells import (
    BUTTON,
    BUTTON_PITCH,
    CARDS_BEHIND,
    CELL,
    CELL_PITCH,
    MOST_BUTTONS,
    MOST_CELLS,
    STRIP_WIDTH,
    PlacedBox,
)
from .fold import FoldedCalls
from .svg_text import escaped, moved, pixels

_MIDDLE = 13  # of a header, from the top of its box
_BUTTON_HEIGHT = 16
_CELL_HEIGHT = 12


def box_shape(box: PlacedBox) -> str:
    """The box or row without its label, which is drawn above the wires."""
    rect, group = box.rect, box.group
    size = f'width="{pixels(rect.width)}" height="{pixels(rect.height)}" rx="{5 if group.closed else 8}"'
    behind = ""
    if group.times > 1:
        shifts = (CARDS_BEHIND, CARDS_BEHIND // 2)
        behind = "".join(f'<rect class="th-behind" x="{shift}" y="{shift}" {size}/>' for shift in shifts)
        behind += f'<rect class="th-front" {size}/>'
    kind = "th-box th-quiet" if group.is_views else "th-box th-card" if group.closed else "th-box"
    place = f'data-module="{escaped(group.path)}" transform="{moved(rect.x, rect.y)}"'
    return f'<g class="{kind}" {place}>{behind}<rect {size}/></g>'


def box_label(box: PlacedBox) -> str:
    """Name and class, and of equal layers their buttons. The tooltip has the full name and how many tasks there are."""
    group = box.group
    subtitle = f'<tspan class="th-soft" dx="6">{escaped(box.subtitle)}</tspan>' if box.subtitle else ""
    name = group.path or group.title
    full = f"{name} ({group.subtitle})" if group.subtitle else name
    tasks = counted(group.size, "task") + (" each" if group.times > 1 else "")
    x, y = (12, 14) if group.closed else (10, 17)
    title = "th-soft" if group.is_views else "th-name"
    return (
        f'<g transform="{moved(box.rect.x, box.rect.y)}"><title>{escaped(full)}, {tasks}</title>'
        f'<text x="{x}" y="{y}"><tspan class="{title}">{escaped(box.title)}</tspan>{subtitle}</text>'
        f"{''.join(_layers(box)) if box.layers_at else ''}</g>"
    )


def _layers(box: PlacedBox) -> Iterator[str]:
    """A button a layer in the order in which they run, the one that is drawn first; cells or a strip where they are
    many."""
    group, left = box.group, box.layers_at
    if group.times > MOST_CELLS:
        top = _MIDDLE - _CELL_HEIGHT / 2
        size = f'y="{pixels(top)}" height="{_CELL_HEIGHT}" rx="2"'
        yield f'<rect class="th-layer" x="{pixels(left)}" width="{STRIP_WIDTH}" {size}/>'
        yield f'<rect class="th-layer th-shown" x="{pixels(left)}" width="3" {size}/>'
        return
    width, pitch, height = (CELL, CELL_PITCH, _CELL_HEIGHT)
    if group.times <= MOST_BUTTONS:
        width, pitch, height = (BUTTON, BUTTON_PITCH, _BUTTON_HEIGHT)
    for place, name in enumerate(reversed(_numbers(group))):
        kind = "th-layer" if place else "th-layer th-shown"
        x = left + place * pitch
        yield (
            f'<rect class="{kind}" x="{pixels(x)}" y="{pixels(_MIDDLE - height / 2)}" width="{width}" '
            f'height="{height}" rx="{4 if group.times <= MOST_BUTTONS else 2}"/>'
        )
        if group.times <= MOST_BUTTONS:
            yield f'<text class="th-soft th-mid" x="{pixels(x + width / 2)}" y="{_MIDDLE + 4}">{escaped(name)}</text>'


def _numbers(group: FoldedCalls) -> list[str]:
    """`3` of `blocks.3`; where not every layer has another one, they are counted."""
    found = [match[0] if (match := re.search(r"\d+$", title)) else "" for title in group.members]
    return found if "" not in found and len(set(found)) == len(found) else [str(place) for place in range(group.times)]
