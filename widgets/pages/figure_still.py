"""A figure of ours as SVG, for where plotly does not run: the kinds of traces that tapescope's figures have, no others.

Not plotly's picture to the pixel: its bars, lines, marks and words where it has them. Nothing is started for it: what
exports plotly's own pictures is a browser.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from itertools import pairwise
from typing import Any

from ...inspector.drawing.svg_text import escaped
from ...inspector.drawing.text_width import shorten, text_width
from .figure_axes import Axis, axes_of, drawn_axes
from .figure_filled import filled
from .plotly_data import Drawing
from .theme import FONT, LIGHT
from .treemap_still import drawn_treemap

WIDTH = 900.0  # pixels, as the deck's still
_HEIGHT = 450.0
_MARGINS = {"l": 80.0, "r": 80.0, "t": 100.0, "b": 80.0}  # plotly's
_SIZE = 11.0
_LEGEND_ROW, _KEY = 19.0, 30.0
_DASHES = {
    "dash": (9, 9), "dot": (3, 3), "dashdot": (9, 3, 3, 3), "longdash": (15, 15), "longdashdot": (15, 3, 3, 3),
}  # fmt: skip
_STROKES = {
    "/": "M0 6 6 0",
    "\\": "M0 0 6 6",
    "x": "M0 6 6 0M0 0 6 6",
    "-": "M0 3H6",
    "|": "M3 0V6",
    ".": "M2 3h2",
    "+": "M3 0V6M0 3H6",
}
_LINES = re.compile(r"<br\s*/?>")
_TAGS = re.compile(r"<[^>]*>")


def figure_svg(figure: Mapping[str, Any], background: str = LIGHT["panel"]) -> str | None:
    """The picture; None where there is something in the figure that is not known here.

    Args:
        figure: plotly's data and layout, as plain data.
        background: a colour.
    """
    known = filled(figure)
    if known is None:
        return None
    layout: Drawing = {"font": {}, **known["layout"]}
    traces = [each for each in known["data"] if each.get("visible", True) is True]
    if any(each["type"] not in _TRACES for each in traces):
        return None
    height = float(layout.get("height", _HEIGHT))
    picture = _Picture(layout, float(layout.get("width", WIDTH)), height, _beside(layout, traces))
    parts = [*drawn_axes(picture.axes, picture.box, picture.ink)]
    parts += [line for shape in layout.get("shapes", ()) for line in picture.shape(shape)]
    stacks: dict[tuple[str, str], list[float]] = {}
    for trace in traces:
        parts += _TRACES[trace["type"]](picture, trace, stacks)
    parts += [line for note in layout.get("annotations", ()) for line in picture.annotation(note)]
    parts += _legend(picture, traces)
    width, tall = _number(picture.width), _number(height)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" width="{width}" height="{tall}" '
            f'font-family="{escaped(FONT)}" font-size="{_number(_SIZE)}" role="img">',
            f"<title>{escaped(_plain(_title_text(layout)))}</title>",
            f"<defs>{picture.patterns}</defs>",
            f'<rect width="{width}" height="{tall}" rx="8" fill="{background}"/>',
            *parts,
            "</svg>",
        ]
    )


class _Picture:
    """Where things are: pixels of the picture by values of the axes and shares of the plot."""

    def __init__(self, layout: Drawing, width: float, height: float, beside: float) -> None:
        margins: dict[str, float] = {**_MARGINS, **layout.get("margin", {})}
        self.layout = layout
        self.width = width
        self.left, self.right = margins["l"], width - margins["r"] - beside
        self.top, self.bottom = margins["t"], height - margins["b"]
        self.box = (self.left, self.top, self.right, self.bottom)
        self.ink = layout["font"].get("color", LIGHT["ink2"])
        self.axes = axes_of(layout, self.box)
        self._patterns: dict[tuple[str, str, str], str] = {}

    @property
    def patterns(self) -> str:
        return "".join(
            f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" '
            f'fill="{under}"/><path d="{_STROKES[shape]}" stroke="{over}" fill="none"/></pattern>'
            for (shape, under, over), name in self._patterns.items()
        )

    def axis(self, name: str) -> Axis:
        return self.axes[name]

    def fill_of(self, marker: Drawing, colour: str) -> str:
        """A colour, or the pattern over it."""
        pattern = marker.get("pattern", {})
        shape = pattern.get("shape")
        if shape not in _STROKES:
            return colour
        key = (shape, colour, pattern.get("fgcolor", self.ink))
        return f"url(#{self._patterns.setdefault(key, f'pattern-{len(self._patterns)}')})"

    def at(self, value: float, reference: str, axis: str) -> float:
        """Where a shape or an annotation is that refers to an axis, or to the whole plot."""
        share = float(value)
        if reference == "paper":
            if axis == "x":
                return self.left + share * (self.right - self.left)
            return self.bottom - share * (self.bottom - self.top)
        if reference.endswith(" domain"):
            whole = self.axis(reference.removesuffix(" domain"))
            return whole.start + share * (whole.stop - whole.start)
        return self.axis(reference).at(value)

    def shape(self, shape: Drawing) -> Iterator[str]:
        """A line."""
        x0, x1 = (self.at(shape[name], shape.get("xref", "x"), "x") for name in ("x0", "x1"))
        y0, y1 = (self.at(shape[name], shape.get("yref", "y"), "y") for name in ("y0", "y1"))
        yield f'<path d="M{_number(x0)} {_number(y0)}L{_number(x1)} {_number(y1)}" {stroke_of(shape["line"])}/>'

    def annotation(self, note: Drawing) -> Iterator[str]:
        """Words at a place, or a line between two."""
        x = self.at(note["x"], note.get("xref", "x"), "x") + note.get("xshift", 0)
        y = self.at(note["y"], note.get("yref", "y"), "y") - note.get("yshift", 0)
        if note.get("showarrow", True):
            from_x, from_y = self.at(note["ax"], note["axref"], "x"), self.at(note["ay"], note["ayref"], "y")
            path = f"M{_number(from_x)} {_number(from_y)}L{_number(x)} {_number(y)}"
            yield f'<path d="{path}" stroke="{note["arrowcolor"]}" fill="none"/>'
        font = note.get("font", {})
        anchor = {"left": "start", "right": "end"}.get(note.get("xanchor", "center"), "middle")
        size = font.get("size", _SIZE)
        down = {"bottom": -4.0, "top": size}.get(note.get("yanchor", "middle"), 0.36 * size)
        yield from words(note.get("text", ""), x, y + down, font.get("color", self.ink), size, anchor)


def _bars(picture: _Picture, trace: Drawing, stacks: object) -> Iterator[str]:
    """Bars that lie: each from its base on, and what stands at its end."""
    across, up = picture.axis(trace.get("xaxis", "x")), picture.axis(trace.get("yaxis", "y"))
    marker = trace.get("marker", {})
    bases = _spread(trace.get("base", 0), len(trace["x"]))
    thick = abs(up.at(trace["width"]) - up.at(0))
    outline = marker.get("line", {})
    texts = _spread(trace.get("text", ""), len(trace["x"]))
    errors = trace.get("error_x", {})
    for place, (base, length, row) in enumerate(zip(bases, trace["x"], trace["y"], strict=True)):
        start, stop = sorted((across.at(base), across.at(base + length)))
        fill = picture.fill_of(marker, _spread(marker.get("color", picture.ink), len(trace["x"]))[place])
        edge = f' stroke="{outline["color"]}" stroke-width="{outline["width"]}"' if outline.get("width") else ""
        y = up.at(row) - thick / 2
        yield (
            f'<rect x="{_number(start)}" y="{_number(y)}" width="{_number(max(stop - start, 0.3))}" '
            f'height="{_number(thick)}" fill="{fill}"{edge}/>'
        )
        if errors.get("visible", bool(errors)):
            yield from _whisker(across, base + length, up.at(row), errors, place)
        if texts[place]:
            end = across.at(base + length)
            anchor = "start" if length >= 0 else "end"
            colour = trace.get("textfont", {}).get("color", picture.ink)
            yield from words(texts[place], end + (4 if length >= 0 else -4), up.at(row) + 4, colour, _SIZE, anchor)


def _whisker(across: Axis, middle: float, y: float, errors: Drawing, place: int) -> Iterator[str]:
    low, high = across.at(middle - errors["arrayminus"][place]), across.at(middle + errors["array"][place])
    left, right = across.start, across.stop  # it goes no further than the plot
    low, high = (min(max(x, left), right) for x in (low, high))
    path = f"M{_number(low)} {_number(y)}H{_number(high)}"
    if errors.get("width"):
        path += "".join(f"M{_number(x)} {_number(y - 3)}v6" for x in (low, high))
    yield f'<path d="{path}" stroke="{errors["color"]}" stroke-width="{errors.get("thickness", 1)}" fill="none"/>'


def _scatter(picture: _Picture, trace: Drawing, stacks: dict[tuple[str, str], list[float]]) -> Iterator[str]:
    """Lines, areas, marks and words."""
    across, up = picture.axis(trace.get("xaxis", "x")), picture.axis(trace.get("yaxis", "y"))
    ys = list(trace["y"])
    below: Sequence[float] | None = None
    if group := trace.get("stackgroup"):
        key = (group, trace.get("yaxis", "y"))
        below = stacks.get(key, [0.0] * len(ys))
        ys = stacks[key] = [low + level for low, level in zip(below, ys, strict=True)]
    points = [(across.at(x), up.at(y)) for x, y in zip(trace["x"], ys, strict=True) if x is not None and y is not None]
    if not points:
        return
    mode, line = trace.get("mode", "lines"), trace.get("line", {})
    steps = line.get("shape") == "hv"
    if below is not None:
        back = _path([(x, up.at(low)) for (x, _), low in zip(points, below, strict=True)], steps, back=True)
        yield f'<path d="{_path(points, steps)}L{back}Z" fill="{trace.get("fillcolor", picture.ink)}"/>'
    elif trace.get("fill") == "tozeroy":
        floor = _number(picture.bottom)
        start, stop = _number(points[0][0]), _number(points[-1][0])
        yield f'<path d="{_path(points, steps)}L{stop} {floor}L{start} {floor}Z" fill="{trace["fillcolor"]}"/>'
    if "lines" in mode and line.get("width", 2):
        yield f'<path d="{_path(points, steps)}" {stroke_of(line, picture.ink)}/>'
    if "error_x" in trace:
        for place, (x, y) in enumerate(zip(trace["x"], ys, strict=True)):
            yield from _whisker(across, x, up.at(y), trace["error_x"], place)
    if "markers" in mode:
        ink = line.get("color", picture.ink)
        yield from (_mark(trace.get("marker", {}), x, y, ink) for x, y in points)
    if "text" in mode:
        font = trace.get("textfont", {})
        for (x, y), text in zip(points, trace["text"], strict=True):
            yield from words(text, x, y + 4, font.get("color", picture.ink), font.get("size", _SIZE), "middle")


def _path(points: Sequence[tuple[float, float]], steps: bool, back: bool = False) -> str:
    """Along the points, or, `back`, from the last to the first, without the letter that begins a path."""
    along = [points[0]]
    for (_, y), (next_x, next_y) in pairwise(points):
        along += [(next_x, y), (next_x, next_y)] if steps and next_y != y else [(next_x, next_y)]
    return ("" if back else "M") + "L".join(f"{_number(x)} {_number(y)}" for x, y in (along[::-1] if back else along))


def _mark(marker: Drawing, x: float, y: float, ink: str) -> str:
    radius, colour = marker.get("size", 6) / 2, marker.get("color", ink)
    symbol = marker.get("symbol", "circle")
    line = marker.get("line", {})
    width = line.get("width", 0)
    shape = {
        "circle": f"M{-radius} 0a{radius} {radius} 0 1 0 {2 * radius} 0a{radius} {radius} 0 1 0 {-2 * radius} 0Z",
        "square": f"M{-radius} {-radius}h{2 * radius}v{2 * radius}h{-2 * radius}Z",
        "diamond": f"M0 {-1.3 * radius}L{1.3 * radius} 0 0 {1.3 * radius} {-1.3 * radius} 0Z",
        "triangle-up": f"M0 {-radius}L{radius} {radius}H{-radius}Z",
        "triangle-down": f"M0 {radius}L{radius} {-radius}H{-radius}Z",
        "triangle-left": f"M{-radius} 0L{radius} {-radius}V{radius}Z",
        "triangle-right": f"M{radius} 0L{-radius} {-radius}V{radius}Z",
        "cross": f"M{-radius} 0H{radius}M0 {-radius}V{radius}",
        "x": f"M{-radius} {-radius}L{radius} {radius}M{-radius} {radius}L{radius} {-radius}",
        "star": f"M{-radius} 0H{radius}M0 {-radius}V{radius}M{-radius} {-radius}L{radius} {radius}",
        "line-ns": f"M0 {-radius}V{radius}",
    }
    base = symbol.removesuffix("-open")
    path = shape.get(base, shape["circle"])
    hollow = symbol != base or base in ("line-ns", "cross", "x", "star")
    fill = "none" if hollow else colour
    edge = line.get("color", colour) if width or hollow else "none"
    at = f"translate({_number(x)} {_number(y)})"
    return f'<path transform="{at}" d="{path}" fill="{fill}" stroke="{edge}" stroke-width="{width or 1.5}"/>'


def _named(layout: Drawing, traces: Sequence[Drawing]) -> list[Drawing]:
    """The traces that are in the legend."""
    found = [each for each in traces if each.get("name") and each.get("showlegend", each["type"] != "treemap")]
    return found if layout.get("showlegend", len(found) > 1) else []


def _entry_width(trace: Drawing) -> float:
    return _KEY + max(text_width(_plain(line), bold="<b>" in line) for line in _LINES.split(trace["name"])) + 16


def _beside(layout: Drawing, traces: Sequence[Drawing]) -> float:
    """The room that a legend at the right of the plot takes."""
    if layout.get("legend", {}).get("orientation") == "h":
        return 0.0
    return max(map(_entry_width, _named(layout, traces)), default=0.0)


def _legend(picture: _Picture, traces: Sequence[Drawing]) -> Iterator[str]:
    """What the traces are called: in rows above the plot, or in a column at its right."""
    named = _named(picture.layout, traces)
    if not named:
        return
    legend = picture.layout.get("legend", {})
    colour = legend.get("font", {}).get("color", picture.ink)
    widths = list(map(_entry_width, named))
    if legend.get("orientation") != "h":
        for place, each in enumerate(named):
            yield from _entry(picture, each, picture.right + 10, picture.top + 12 + place * _LEGEND_ROW, colour)
        return
    rows: list[list[tuple[Drawing, float]]] = [[]]
    room = picture.right - picture.left
    for each, width in zip(named, widths, strict=True):
        if rows[-1] and sum(wide for _, wide in rows[-1]) + width > room + 60:
            rows.append([])
        rows[-1].append((each, width))
    lowest = picture.bottom - legend.get("y", 1) * (picture.bottom - picture.top) - 8
    for number, row in enumerate(rows):
        x = picture.left
        for each, width in row:
            yield from _entry(picture, each, x, lowest - (len(rows) - 1 - number) * _LEGEND_ROW, colour)
            x += width


def _entry(picture: _Picture, trace: Drawing, x: float, y: float, colour: str) -> Iterator[str]:
    """A key and its name."""
    marker, line = trace.get("marker", {}), trace.get("line", {})
    if trace["type"] == "bar" or "fillcolor" in trace:
        tint = _spread(marker.get("color", trace.get("fillcolor", colour)), 1)[0]
        fill = picture.fill_of(marker, tint)
        yield f'<rect x="{_number(x + 6)}" y="{_number(y - 6)}" width="12" height="12" fill="{fill}"/>'
    else:
        if "lines" in trace.get("mode", "lines"):
            yield f'<path d="M{_number(x)} {_number(y)}h24" {stroke_of(line, colour)}/>'
        if "markers" in trace.get("mode", "lines"):
            yield _mark(marker, x + 12, y, line.get("color", colour))
    yield from words(trace["name"], x + _KEY, y + 4, colour, _SIZE, "start")


def stroke_of(line: Drawing, ink: str = LIGHT["ink2"]) -> str:
    """A line's attributes. Dashes are named, or given in pixels."""
    dash = line.get("dash", "solid")
    lengths = _DASHES.get(dash) or [float(each) for each in re.findall(r"[\d.]+", dash)]
    width = line.get("width", 2)
    scale = max(width / 3, 0.5) if dash in _DASHES else 1
    dashes = f' stroke-dasharray="{" ".join(_number(scale * each) for each in lengths)}"' if lengths else ""
    return f'fill="none" stroke="{line.get("color", ink)}" stroke-width="{width}"{dashes}'


def words(text: str, x: float, y: float, colour: str, size: float, anchor: str) -> Iterator[str]:
    """Text of plotly's: some of HTML's tags and entities, of which weight and lines are kept."""
    for number, line in enumerate(_LINES.split(text)):
        if not line:
            continue
        spans = "".join(
            f"<tspan{' font-weight=' + chr(34) + '600' + chr(34) if bold else ''}>{escaped(_plain(part))}</tspan>"
            for bold, part in _weights(line)
        )
        at = f'x="{_number(x)}" y="{_number(y + number * 1.3 * size)}"'
        yield (
            f'<text {at} fill="{colour}" font-size="{_number(size)}" text-anchor="{anchor}" xml:space="preserve">'
            f"{spans}</text>"
        )


def _weights(line: str) -> Iterator[tuple[bool, str]]:
    for number, part in enumerate(re.split(r"</?b>", line)):
        if part:
            yield number % 2 == 1, part


def _plain(text: str) -> str:
    return unescape(_TAGS.sub("", text))


def _title_text(layout: Drawing) -> str:
    title = layout.get("title", {})
    return str(title.get("text", "") if isinstance(title, dict) else title) or "a figure"


def _spread(value: Any, count: int) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value] * count


def _treemap(picture: _Picture, trace: Drawing, stacks: object) -> Iterator[str]:
    def label(text: str, room: float, tall: float, x: float, y: float, colour: str) -> Iterator[str]:
        lines = [shorten(_plain(each), room, _SIZE) for each in _LINES.split(text)]
        for number, line in enumerate(lines):
            if tall >= (number + 1) * 15 and len(line) > 2:
                yield from words(escaped(line), x, y + 13 + number * 15, colour, _SIZE, "start")

    return drawn_treemap(trace, picture.box, label)


_TRACES = {"bar": _bars, "scatter": _scatter, "treemap": _treemap}


def _number(value: float) -> str:
    return f"{round(value, 1):g}" if math.isfinite(value) else "0"
