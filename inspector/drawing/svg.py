"""Picture of a graph as a self-contained SVG, without scripts or external references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import get_args

from ..graph.graph import Fold, Graph
from ..graph.kinds import KIND_TITLES, Kind
from ..renderers import GraphTheme
from ..text.durations import created_text
from ..text.sizes_and_counts import counted, shape_text
from .annotations import SIGN_SHAPES, SIGN_TITLES, Around, Outline, Sign, Signs
from .fit_to_size import first_view
from .fold import fold_graph
from .layout import LEAST_TALL, Layout, Pill, PlacedTask, PlacedWire, Rect, Stub, lay_out
from .layout_types import Point
from .pictured import pictured
from .progress_states import STATE_TITLES, Standing, State
from .svg_boxes import box_label, box_shape
from .svg_style import GLYPHS, STUB_GLYPHS, style_sheet
from .svg_text import escaped, moved, pixels, text_width

ROOM = (1100.0, 700.0)  # pixels that fold="fit" fits a graph into, about a page or a notebook cell
MARGIN = 16
TITLE_HEIGHT = 26
LEGEND_LINE = 22
CORNER = 6
OUTLINE_GAP = 2.6  # pixels from a task to its outline
NEXT_OUTLINE = 3.2  # pixels from an outline to the next one around it
TAG_HEIGHT = 12
SIGN_SIDE = 12.0
SMALL_SIGN = 0.6  # scale beside a chip
MOST_OF_AN_ERROR = 120  # characters
MOST_SHAPES = 3  # beside one end of edges
SOURCES_UP_TO = 2000  # tasks; larger graphs have no source lines, since each is read from a traceback


def graph_to_svg(
    graph: Graph,
    *,
    fold: Fold = "fit",
    theme: GraphTheme = "auto",
    widest: float = float("inf"),
    outlines: Sequence[Outline] = (),
    signs: Sequence[Sign] = (),
    states: Sequence[State] = (),
    shapes: bool | None = None,
) -> str:
    """Draw a graph. See `Graph.save_svg` for `fold`, `theme` and `shapes`.

    `outlines` mark tasks that belong together; `signs` mark recomputation. `states` is the progress of each task in a
    backward, empty without one.

    A picture wider than `widest` pixels has no fixed size, so it is scaled to the width of its container.

    Every drawn task has a tooltip and the attribute `data-task`. Classes begin with "ts-", so that one page can show
    several of these pictures.

    Raises:
        ValueError: `theme` is unknown, or `fold` is invalid (see `fold_graph`).
    """
    if theme not in get_args(GraphTheme):
        raise ValueError(f"unknown theme {theme!r}; expected one of {', '.join(map(repr, get_args(GraphTheme)))}")
    roots = list(dict.fromkeys(graph.tasks[root.task].name for root in graph.roots))
    of = " and ".join(roots) if len(roots) < 3 else f"{len(graph.roots)} outputs"
    parameters = sum(task.kind is Kind.ACCUMULATE_GRAD for task in graph.tasks)
    counts = (counted(len(graph.tasks), "task"), counted(parameters, "parameter"))
    if graph.raised is not None:
        start = f"forward until {graph.raised[:MOST_OF_AN_ERROR]}"
    elif graph.forward is not None:
        results = [graph.tasks[root.task].inputs[root.input].shape for root in graph.roots]
        start = f"forward of {graph.forward}, results at the top: {', '.join(map(shape_text, results[:MOST_SHAPES]))}"
        start += ", …" if len(results) > MOST_SHAPES else ""
    else:
        start = f"backward of {of}"
    title = " · ".join([start, *counts])
    if shapes is None:
        shapes = graph.forward is not None or graph.failed is not None
    least = max(text_width(title), 240)
    drawing = draw_graph(pictured(graph), fold, least, outlines, signs, states, shapes=shapes)
    width = drawing.width + 2 * MARGIN
    height = drawing.height + TITLE_HEIGHT + 2 * MARGIN
    size = f"{pixels(width)} {pixels(height)}"
    own_size = f' width="{pixels(width)}" height="{pixels(height)}"' if width <= widest else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ts-{theme}" viewBox="0 0 {size}"{own_size} role="img">',
        f"<title>{escaped(title)}</title>",
        f"<style>{style_sheet(theme)}</style>",
        f'<rect class="ts-page" width="{pixels(width)}" height="{pixels(height)}" rx="8"/>',
        f'<text class="{"ts-title ts-raised" if graph.raised else "ts-title"}" x="{MARGIN}" y="{MARGIN + 10}">'
        f"{escaped(title)}</text>",
        f'<g transform="translate({MARGIN} {MARGIN + TITLE_HEIGHT})">',
        *drawing.elements,
        "</g></svg>",
    ]
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Elements of an SVG in the colours of `svg_style.style_sheet`, and the size they need from (0, 0)."""

    width: float
    height: float
    elements: list[str]


def draw_graph(
    graph: Graph,
    fold: Fold = "fit",
    least_width: float = 0.0,
    outlines: Sequence[Outline] = (),
    signs: Sequence[Sign] = (),
    states: Sequence[State] = (),
    room: tuple[float, float] = ROOM,
    shapes: bool = False,
) -> Drawing:
    """Draw the graph with the legend below it, without a page around them.

    `room` is as in `layout_of_picture`.
    """
    placed = layout_of_picture(graph, fold, room, shapes)
    return draw_layout(graph, placed, least_width, outlines, signs, states, shapes)


def layout_of_picture(
    graph: Graph, fold: Fold = "fit", room: tuple[float, float] = ROOM, shapes: bool = False
) -> Layout:
    """Lay out a graph; `room` is the width and height that `fold="fit"` fits it into.

    A graph that would be cut into columns, with edges that lead up from one to the next, is laid out in one column of
    up to twice this height instead (four times, unless `fold` is "fit"), if it fits and shows at least half as many
    items.
    """
    fits = fold == "fit"
    placed = first_view(graph, *room, shapes=shapes) if fits else lay_out(graph, fold_graph(graph, fold), shapes=shapes)
    if not _leads_up(placed) or len(graph.tasks) > SOURCES_UP_TO:
        return placed
    most = (2 if fits else 4) * room[1]
    if fits:
        column = first_view(graph, room[0], most, shapes=shapes, columns=False)
    else:
        column = lay_out(graph, fold_graph(graph, fold), inf, shapes=shapes)
    is_better = column.height <= most and 2 * _items(column) >= _items(placed)
    return column if is_better else placed


def _items(placed: Layout) -> int:
    return len(placed.tasks) + len(placed.boxes)


def _leads_up(placed: Layout) -> bool:
    """Return whether an edge leads up from one column of the layout to the next."""
    return any(y - to_y > LEAST_TALL for wire in placed.wires for (_, y), (_, to_y) in pairwise(wire.points))


def draw_layout(
    graph: Graph,
    placed: Layout,
    least_width: float = 0.0,
    outlines: Sequence[Outline] = (),
    signs: Sequence[Sign] = (),
    states: Sequence[State] = (),
    shapes: bool = False,
) -> Drawing:
    """Draw a graph that is already laid out, with room for shapes if they are drawn."""
    around = Around(outlines, placed.shown_by)
    marks = Signs(signs, placed.shown_by)
    standing = Standing(states, graph, placed)
    width = max(placed.width, least_width)
    entries = [
        *(
            (f'<g class="ts-task ts-now-{state}"><rect y="2" width="14" height="12" rx="4"/></g>', 14.0, title)
            for state, title in STATE_TITLES.items()
            if state in states and state != "waiting"
        ),
        *((_tag(around, number, 0, 8), _tag_width(outline), outline.title) for number, outline in around.entries()),
        *(
            (f'<g class="ts-sign" transform="{moved(0, 2)}">{SIGN_SHAPES[kind]}</g>', SIGN_SIDE, SIGN_TITLES[kind])
            for kind in marks.kinds
        ),
        *_legend_entries(graph, placed),
    ]
    legend, legend_height = _legend(entries, width)
    elements = [
        *(box_shape(box, standing) for box in placed.boxes),
        *_wires(graph, placed.wires),
        *(_shapes(graph, placed.wires) if shapes else ()),
        '<g class="ts-head">',
        *(box_label(box, standing) for box in placed.boxes),
        *(
            f'<text class="ts-name" text-anchor="end" x="{pixels(row.rect.right)}" y="{pixels(row.rect.y + 10)}">'
            f"{escaped(row.label)}</text>"
            for row in placed.rows
        ),
        "</g>",
        *_outlines(around, placed.tasks),
        *_tasks(graph, placed.tasks, standing),
        *(_pill(graph, pill, standing) for pill in placed.pills),
        *(_stub(graph, stub) for stub in placed.stubs),
        *_tags(around, placed),
        *_signs(marks, placed),
        f'<g transform="translate(0 {pixels(placed.height + 16)})">',
        *legend,
        "</g>",
    ]
    return Drawing(width, placed.height + legend_height, elements)


def _tasks(graph: Graph, placed: Sequence[PlacedTask], standing: Standing) -> Iterator[str]:
    with_source = len(graph.tasks) <= SOURCES_UP_TO
    for each in placed:
        task = graph.tasks[standing.shown(each.task)]
        rect = each.rect
        width = pixels(rect.width)
        state, data = standing.mark([each.task])
        head = (
            f'<g class="ts-task ts-{task.kind}{state}" data-task="{task.id}"{data} transform="{moved(rect.x, rect.y)}">'
            f"<title>{_tooltip(graph, task.id, with_source)}</title>"
        )
        if each.chip:
            yield f'{head}<rect width="{width}" height="{width}" rx="3"/></g>'
            continue
        caption = f'<tspan class="ts-soft" dx="7">{escaped(each.caption)}</tspan>' if each.caption else ""
        yield (
            f'{head}<rect width="{width}" height="{pixels(rect.height)}" rx="5"/>'
            f'<g transform="translate(11 10)">{GLYPHS[task.kind]}</g>'
            f'<text class="ts-mid" x="{pixels((rect.width + 12) / 2)}" y="14">{escaped(each.label)}{caption}</text>'
            "</g>"
        )


def _outlines(around: Around, placed: Sequence[PlacedTask]) -> Iterator[str]:
    for each in placed:
        for place, number in enumerate(around.of(each.task)):
            gap = OUTLINE_GAP + place * NEXT_OUTLINE
            rect = each.rect
            size = f'width="{pixels(rect.width + 2 * gap)}" height="{pixels(rect.height + 2 * gap)}"'
            yield (
                f'<g class="ts-outline {around.kind(number)}" transform="{moved(rect.x - gap, rect.y - gap)}">'
                f'<rect {size} rx="{pixels((3 if each.chip else 5) + gap)}"/></g>'
            )


def _tags(around: Around, placed: Layout) -> Iterator[str]:
    """Draw the names of outlines at the corners of tasks, on closed boxes, and once beside a row of chips."""
    last: dict[int, Rect] = {}
    for each in placed.tasks:
        numbers = around.of(each.task)
        if each.chip:
            for number in numbers:
                rect = last.get(number, each.rect)
                last[number] = max(rect, each.rect, key=lambda rect: (rect.y, rect.x))
        else:
            yield from _tags_at(around, numbers, each.rect.right + 6, each.rect.y)
    for number, rect in last.items():
        yield _tag(around, number, rect.right + 6, rect.y + rect.height / 2)
    for box in placed.boxes:
        if box.group.closed:
            yield from _tags_at(around, around.of(*box.group.tasks()), box.rect.right - 6, box.rect.y)


def _tags_at(around: Around, numbers: Sequence[int], right: float, y: float) -> Iterator[str]:
    for number in reversed(numbers):
        right -= _tag_width(around.outlines[number])
        yield _tag(around, number, right, y)
        right -= 2


def _tag(around: Around, number: int, x: float, y: float) -> str:
    """Draw the name of an outline, vertically centered at y."""
    outline = around.outlines[number]
    width = _tag_width(outline)
    return (
        f'<g class="ts-tag {around.kind(number)}" transform="{moved(x, y - TAG_HEIGHT / 2)}">'
        f"<title>{escaped(outline.title)}</title>"
        f'<rect width="{pixels(width)}" height="{TAG_HEIGHT}" rx="3"/>'
        f'<text class="ts-mid" x="{pixels(width / 2)}" y="9.2">{escaped(outline.name)}</text></g>'
    )


def _tag_width(outline: Outline) -> float:
    return max(TAG_HEIGHT, text_width(outline.name) + 5)


def _signs(signs: Signs, placed: Layout) -> Iterator[str]:
    """Draw the signs at the lower right corners of tasks and closed boxes."""
    for each in placed.tasks:
        if (found := signs.at(each.task)) is not None:
            small = SMALL_SIGN if each.chip else 1.0
            yield _sign(*found, each.rect.right + (2 if each.chip else 6), each.rect.bottom, small)
    for box in placed.boxes:
        if box.group.closed and (found := signs.at(*dict.fromkeys(box.group.tasks()))) is not None:
            yield _sign(*found, box.rect.right - 6, box.rect.bottom, 1.0)


def _sign(kinds: Sequence[str], title: str, right: float, y: float, scale: float) -> str:
    """Draw signs in a row that ends at `right` and is vertically centered at y."""
    step = SIGN_SIDE + 2
    shapes = "".join(
        f'<g transform="{moved(step * place, 0)}">{SIGN_SHAPES[kind]}</g>' for place, kind in enumerate(kinds)
    )
    x = right - scale * (step * len(kinds) - 2)
    scaled = "" if scale == 1 else f" scale({scale:g})"
    return (
        f'<g class="ts-sign" data-signs="{" ".join(kinds)}" transform="{moved(x, y - scale * SIGN_SIDE / 2)}{scaled}">'
        f"<title>{escaped(title)}</title>{shapes}</g>"
    )


def _pill(graph: Graph, pill: Pill, standing: Standing) -> str:
    rect = pill.rect
    tasks = [standing.shown(task) for task in pill.tasks]
    state, data = standing.mark(pill.tasks)
    names = "\n".join(_tooltip(graph, task, False) for task in tasks)
    kind = " ts-untracked" if graph.tasks[tasks[0]].kind is Kind.UNTRACKED else ""
    head = (
        f'<g class="ts-pill{kind}{state}" data-task="{tasks[0]}"{data} transform="{moved(rect.x, rect.y)}">'
        f"<title>{names}</title>"
        f'<rect width="{pixels(rect.width)}" height="{pixels(rect.height)}" rx="{pixels(rect.height / 2)}"/>'
    )
    if pill.dot:
        return f"{head}</g>"
    head += standing.bar(pill.tasks, 16, rect.width - 6, rect.height)
    return (
        f'{head}<g transform="translate(10 8)">{GLYPHS[Kind.ACCUMULATE_GRAD]}</g>'
        f'<text class="ts-mid" x="{pixels((rect.width + 10) / 2)}" y="12">{escaped(pill.label)}</text></g>'
    )


def _stub(graph: Graph, stub: Stub) -> str:
    rect = stub.rect
    what = {"parameter": "further use of", "to": "also goes to", "from": "also comes from"}[stub.kind]
    others = ", ".join(graph.tasks[other].parameter or graph.describe(other) for other in stub.others[:6])
    others += ", …" if len(stub.others) > 6 else ""
    return (
        f'<g class="ts-stub" data-stub="{stub.kind}" transform="{moved(rect.x, rect.y)}">'
        f"<title>{what} {escaped(others)}</title>"
        f'<rect width="{pixels(rect.width)}" height="{pixels(rect.height)}" rx="{pixels(rect.height / 2)}"/>'
        f'<g transform="translate(11 8)">{STUB_GLYPHS[stub.kind]}</g>'
        f'<text class="ts-mid" x="{pixels((rect.width + 13) / 2)}" y="12">{escaped(stub.label)}</text></g>'
    )


def _tooltip(graph: Graph, number: int, with_source: bool) -> str:
    """Return full name, parameter or module, sequence number, creation, input shapes and source line, escaped."""
    task = graph.tasks[number]
    if task.kind is Kind.FAILED:
        return escaped(f"{task.name}\n{graph.raised}")
    if task.kind is Kind.UNTRACKED:
        return escaped(f"{task.parameter}\n{task.name}, no gradient\n{task.inputs[0]}")
    lines = [task.name]
    module = graph.module(task)
    if task.parameter:
        lines.append(task.parameter)
    elif module:
        assert task.call is not None
        lines.append(f"{module} ({graph.calls[task.call].class_name})")
    if not task.is_leaf:
        lines.append(f"sequence number {task.sequence_nr}")
    if task.created_ns is not None:
        lines.append(created_text(task.created_ns))
    if task.inputs:
        lines.append("in: " + ", ".join(map(str, task.inputs[:8])) + (", …" if len(task.inputs) > 8 else ""))
    if with_source and task.operation is not None and task.source is not None:
        lines.append(task.source.short)
    return escaped("\n".join(lines))


def _wires(graph: Graph, wires: Sequence[PlacedWire]) -> Iterator[str]:
    yield '<g class="ts-wires">'
    for wire in wires:
        if wire.points:
            kind = "" if wire.kind == "gradient" else f' class="ts-{wire.kind}"'
            if _is_failed(graph, wire):
                kind = ' class="ts-to-failed"'
            yield f'<path{kind} d="{path_data(wire.points)}"/>'
    yield "</g>"


def _is_failed(graph: Graph, wire: PlacedWire) -> bool:
    return wire.source is not None and graph.tasks[wire.source].kind is Kind.FAILED


def _shapes(graph: Graph, wires: Sequence[PlacedWire]) -> Iterator[str]:
    """Write the shapes of the tensors on the edges that leave an item, below it."""
    found: dict[Point, dict[str, bool]] = {}
    for wire in wires:
        if wire.kind != "parameter" and wire.points and wire.points[0][1] < wire.points[1][1]:  # not to a stub beside
            at = found.setdefault(wire.points[0], {})
            for edge in (graph.edges[number] for number in wire.edges):
                shape = graph.tasks[edge.next_task].inputs[edge.input].shape
                at[shape_text(shape)] = _is_failed(graph, wire)
    for (x, y), texts in found.items():
        kind = "ts-shape ts-raised" if any(texts.values()) else "ts-shape"
        said = ", ".join([*texts][:MOST_SHAPES]) + (", …" if len(texts) > MOST_SHAPES else "")
        yield f'<text class="{kind}" x="{pixels(x + 5)}" y="{pixels(y + 11)}">{escaped(said)}</text>'


def path_data(points: Sequence[Point]) -> str:
    """Return the corners as an SVG path, with rounded right angles, and S-curves for sideways steps between ranks."""
    data = [f"M{pixels(points[0][0])} {pixels(points[0][1])}"]
    last = len(points) - 1
    for number in range(1, last + 1):
        (x, y), (to_x, to_y) = points[number - 1], points[number]
        if x != to_x and y != to_y:
            middle = pixels((y + to_y) / 2)
            data.append(f"C{pixels(x)} {middle} {pixels(to_x)} {middle} {pixels(to_x)} {pixels(to_y)}")
        elif number < last and _is_corner(points[number - 1], points[number], points[number + 1]):
            data.append(_rounded(points[number - 1], points[number], points[number + 1]))
        else:
            data.append(f"L{pixels(to_x)} {pixels(to_y)}")
    return "".join(data)


def _is_corner(before: Point, corner: Point, after: Point) -> bool:
    return (before[0] == corner[0] and corner[1] == after[1]) or (before[1] == corner[1] and corner[0] == after[0])


def _rounded(before: Point, corner: Point, after: Point) -> str:
    x, y = corner
    radius = min(CORNER, _distance(before, corner) / 2, _distance(corner, after) / 2)
    into_x, into_y = _toward(corner, before, radius)
    from_x, from_y = _toward(corner, after, radius)
    return f"L{pixels(into_x)} {pixels(into_y)}Q{pixels(x)} {pixels(y)} {pixels(from_x)} {pixels(from_y)}"


def _distance(one: Point, other: Point) -> float:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _toward(corner: Point, other: Point, radius: float) -> Point:
    """Return the point at distance `radius` from `corner` on the line to `other`."""
    share = radius / _distance(corner, other)
    return corner[0] + (other[0] - corner[0]) * share, corner[1] + (other[1] - corner[1]) * share


def _legend_entries(graph: Graph, placed: Layout) -> list[tuple[str, float, str]]:
    """Return a sample, its width and its text for each kind of element in the picture."""
    kinds = {graph.tasks[each.task].kind for each in placed.tasks}
    kinds |= {graph.tasks[task].kind for pill in placed.pills for task in pill.tasks}
    entries = []
    for kind in Kind:
        if kind in kinds:
            is_pill = kind in (Kind.ACCUMULATE_GRAD, Kind.UNTRACKED)
            rounded = 8 if is_pill else 4
            shape = f"pill ts-{kind}" if is_pill else f"task ts-{kind}"
            sample = f'<g class="ts-{shape}"><rect width="26" height="16" rx="{rounded}"/>'
            title = KIND_TITLES[kind]
            if kind is Kind.ACCUMULATE_GRAD:  # a tape of HIPS autograd has another name for its leaves
                title = next(task.short_name for task in graph.tasks if task.is_leaf)
            entries.append((f'{sample}<g transform="translate(13 8)">{GLYPHS[kind]}</g></g>', 26.0, title))
    names = {"parameter": "further use of a parameter", "to": "continues elsewhere", "from": "comes from elsewhere"}
    for kind_of_stub, name in names.items():
        if any(stub.kind == kind_of_stub for stub in placed.stubs):
            sample = '<g class="ts-stub"><rect width="26" height="16" rx="8"/>'
            glyph = f'<g transform="translate(13 8)">{STUB_GLYPHS[kind_of_stub]}</g></g>'
            entries.append((sample + glyph, 26.0, name))
    closed = [box.group for box in placed.boxes if box.group.closed]
    if views := sum(group.is_views for group in closed):
        entries.append(
            (
                '<g class="ts-head"><text class="ts-soft" y="12">⋯</text></g>',
                12.0,
                f"{counted(views, 'chain')} of views",
            )
        )
    if modules := len(closed) - views:
        sample = '<g class="ts-box ts-card"><rect width="26" height="16" rx="4"/></g>'
        entries.append((sample, 26.0, f"{counted(modules, 'module')} folded"))
    if any(box.group.times > 1 for box in placed.boxes):
        sample = '<g class="ts-box"><rect class="ts-behind" x="3" y="3" width="23" height="13" rx="4"/>'
        sample += '<rect class="ts-front" width="23" height="13" rx="4"/></g>'
        entries.append((sample, 26.0, "equal layers, drawn once"))
    if any(wire.kind == "between" for wire in placed.wires):
        entries.append(
            ('<g class="ts-wires"><path class="ts-between" d="M0 8H26"/></g>', 26.0, "from one layer to the next")
        )
    return entries


def _legend(entries: Sequence[tuple[str, float, str]], width: float) -> tuple[list[str], float]:
    """Return the legend's elements, broken into lines, and its height."""
    x, y = 0.0, 0.0
    elements = []
    for sample, sample_width, text in entries:
        needed = sample_width + 7 + text_width(text) + 18
        if x and x + needed - 18 > width:
            x, y = 0.0, y + LEGEND_LINE
        label = f'<text class="ts-soft" x="{pixels(sample_width + 7)}" y="12">{escaped(text)}</text>'
        elements.append(f'<g transform="{moved(x, y)}">{sample}{label}</g>')
        x += needed
    return elements, y + LEGEND_LINE + 16 if entries else 0
