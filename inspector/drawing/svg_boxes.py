"""Modules in the SVG: open modules as boxes, closed modules and chains of views as rows, equal layers on cards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from ..text.sizes_and_counts import counted
from .boxes import (
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
from .progress_states import LayerState, ShownLayer, Standing
from .svg_style import MOST_SHADES
from .svg_text import escaped, moved, pixels, shorten_path, text_width

_MIDDLE = 13  # y of the middle of a header, from the top of its box
_BUTTON_HEIGHT = 16
_CELL_HEIGHT = 12
_TEXT = 12  # x at which the text of a row begins
_SIGNS: dict[LayerState, str] = {"done": "✓", "running": "▶", "begun": "", "waiting": ""}


def box_shape(box: PlacedBox, standing: Standing) -> str:
    """Draw the box or row without its label, which is drawn later, above the wires."""
    rect, group = box.rect, box.group
    size = f'width="{pixels(rect.width)}" height="{pixels(rect.height)}" rx="{5 if group.closed else 8}"'
    behind = ""
    if group.times > 1:
        shifts = (CARDS_BEHIND, CARDS_BEHIND // 2)
        behind = "".join(f'<rect class="ts-behind" x="{shift}" y="{shift}" {size}/>' for shift in shifts)
        behind += f'<rect class="ts-front" {size}/>'
    kind = "ts-box ts-quiet" if group.is_views else "ts-box ts-card" if group.closed else "ts-box"
    state, data, bar = "", "", ""
    if group.closed:
        tasks = [*group.tasks()]
        state, data = standing.mark(tasks)
        bar = standing.bar(tasks, _TEXT, rect.width - 9, rect.height)
    place = f'data-module="{escaped(_path(box, standing))}"{data} transform="{moved(rect.x, rect.y)}"'
    return f'<g class="{kind}{state}" {place}>{behind}<rect class="ts-ground" {size}/>{bar}</g>'


def box_label(box: PlacedBox, standing: Standing) -> str:
    """Draw name and class, and the buttons of equal layers. The tooltip has the full name and the number of tasks."""
    group = box.group
    shown = standing.layer(group)
    kind = f"ts-in{min(box.shades, MOST_SHADES)}" if group.is_views or not group.closed else ""
    if group.closed:
        kind = f"{kind} ts-row{standing.mark([*group.tasks()])[0]}".strip()
    subtitle = f'<tspan class="ts-soft" dx="6">{escaped(box.subtitle)}</tspan>' if box.subtitle else ""
    name = _path(box, standing) or group.title
    full = f"{name} ({group.subtitle})" if group.subtitle else name
    tasks = counted(group.size, "task") + (" each" if group.times > 1 else "")
    x, y = (_TEXT, 14) if group.closed else (10, 17)
    title = "ts-soft" if group.is_views else "ts-name"
    return (
        f'<g class="{kind}" transform="{moved(box.rect.x, box.rect.y)}"><title>{escaped(full)}, {tasks}</title>'
        f'<text x="{x}" y="{y}"><tspan class="{title}">{escaped(_title(box, shown))}</tspan>{subtitle}</text>'
        f"{''.join(_layers(box, shown)) if box.layers_at else ''}</g>"
    )


def _title(box: PlacedBox, shown: ShownLayer | None) -> str:
    """Return the title; for equal layers that of the shown layer, shortened in the same way as the drawn one's."""
    if shown is None:
        return box.title
    title = box.group.members[shown.number]
    is_cut = box.title != box.group.members[-1]
    return shorten_path(title, text_width(box.title, bold=True), bold=True) if is_cut else title


def _path(box: PlacedBox, standing: Standing) -> str:
    """Return the module path; for equal layers the shown layer's, or the range of all if none is shown."""
    group = box.group
    if group.times == 1:
        return group.path
    shown = standing.layer(group)
    first, last = group.paths[0], group.paths[-1]
    if shown is None:
        return last if first == last else f"{first} – {last}"
    return group.paths[shown.number]


def _layers(box: PlacedBox, shown: ShownLayer | None) -> Iterator[str]:
    """Draw a button per layer in the order they run, the last created first; many layers get cells or a strip."""
    group, left = box.group, box.layers_at
    count = group.times
    states: list[LayerState] = [*reversed(shown.states)] if shown else ["waiting"] * count
    chosen = 0 if shown is None else count - 1 - shown.number
    if count > MOST_CELLS:
        # Draw each run of layers in the same state as one part, at least one pixel wide.
        size = f'y="{pixels(_MIDDLE - _CELL_HEIGHT / 2)}" height="{_CELL_HEIGHT}"'
        yield f'<g class="ts-layer"><rect x="{pixels(left)}" width="{STRIP_WIDTH}" {size} rx="2"/></g>'
        width = STRIP_WIDTH / len(states)
        first = 0
        for state, run in groupby(states):
            last = first + sum(1 for _ in run)
            if state != "waiting":
                span = f'x="{pixels(left + first * width)}" width="{pixels(max(1, (last - first) * width))}"'
                yield f'<g class="ts-layer ts-layer-{state}"><rect {span} {size}/></g>'
            first = last
        ring = f'x="{pixels(left + chosen * width - 1)}" width="{pixels(max(3, width + 2))}"'
        yield f'<g class="ts-layer ts-shown"><rect class="ts-ring" {ring} {size} rx="2"/></g>'
        return
    width, pitch, height = (CELL, CELL_PITCH, _CELL_HEIGHT)
    if group.times <= MOST_BUTTONS:
        width, pitch, height = (BUTTON, BUTTON_PITCH, _BUTTON_HEIGHT)
    for place, (name, state) in enumerate(zip(reversed(_numbers(group)), states, strict=True)):
        kind = f"ts-layer ts-layer-{state}{' ts-shown' if place == chosen else ''}"
        x = left + place * pitch
        shape = (
            f'<rect x="{pixels(x)}" y="{pixels(_MIDDLE - height / 2)}" width="{width}" '
            f'height="{height}" rx="{4 if count <= MOST_BUTTONS else 2}"/>'
        )
        if count <= MOST_BUTTONS:
            said = escaped(_SIGNS[state] + name)
            shape += f'<text class="ts-mid" x="{pixels(x + width / 2)}" y="{_MIDDLE + 4}">{said}</text>'
        yield f'<g class="{kind}">{shape}</g>'


def _numbers(group: FoldedCalls) -> list[str]:
    """Return the number of each layer, `3` for `blocks.3`; if these are not distinct, the layers are counted."""
    found = [match[0] if (match := re.search(r"\d+$", title)) else "" for title in group.members]
    return found if "" not in found and len(set(found)) == len(found) else [str(place) for place in range(group.times)]
