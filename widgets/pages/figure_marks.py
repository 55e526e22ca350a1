"""The marks that a figure consists of: rectangles, curves, markers and text, each with its position.

Horizontal positions are shares of an axis, so that marks fit any width; vertical positions are pixels. figure_still.py
and figure_html.py paint them. Only the kinds of traces that tapescope's own figures use are supported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .figure_axes import Axis, axes_of
from .figure_filled import filled
from .plotly_data import Drawing
from .theme import LIGHT

SIZE = 11.0  # pixels, of text
LINES = re.compile(r"<br\s*/?>")
_HEIGHT = 450.0
_MARGINS = {"l": 80.0, "r": 80.0, "t": 100.0, "b": 80.0}  # plotly's


@dataclass(frozen=True, slots=True)
class Across:
    """A horizontal position: a share of the named axis, or of the whole plot if `axis` is "", plus `more` pixels."""

    axis: str
    share: float
    more: float = 0.0


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A horizontal bar. `hatch` is the shape and the colour of the strokes over it."""

    start: Across
    stop: Across
    y: float
    height: float
    fill: str
    hatch: tuple[str, str] | None = None
    edge: Drawing | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through points, (share, y), or the area between them and `floor`, one y for each point.

    With `steps` each level holds until the next point.
    """

    axis: str
    points: Sequence[tuple[float, float]]
    steps: bool
    line: Drawing | None = None
    floor: Sequence[float] | None = None
    fill: str = ""


@dataclass(frozen=True, slots=True)
class Stroke:
    """A straight line between two places."""

    start: Across
    start_y: float
    stop: Across
    stop_y: float
    line: Drawing


@dataclass(frozen=True, slots=True)
class Marker:
    """One of plotly's markers."""

    place: Across
    y: float
    marker: Drawing
    ink: str


@dataclass(frozen=True, slots=True)
class Words:
    """Text with plotly's tags. `y` is its baseline. `turned` text reads upwards."""

    place: Across
    y: float
    text: str
    colour: str
    size: float = SIZE
    anchor: str = "middle"
    turned: bool = False


Mark = Rectangle | Curve | Stroke | Marker | Words


class Plot:
    """A figure's axes and traces, and their marks.

    Attributes:
        layout, traces: plotly's layout and traces, with plotly's defaults filled in.
        height: height of the figure in pixels.
        top, bottom: edges of the plot, in pixels from the top of the figure.
        axes: axes by plotly's name. Positions on horizontal axes range from 0 to 1.
    """

    def __init__(self, known: Drawing) -> None:
        self.layout: Drawing = {"font": {}, **known["layout"]}
        self.traces: list[Drawing] = [each for each in known["data"] if each.get("visible", True) is True]
        self.margins: dict[str, float] = {**_MARGINS, **self.layout.get("margin", {})}
        self.height = float(self.layout.get("height", _HEIGHT))
        self.top, self.bottom = self.margins["t"], self.height - self.margins["b"]
        self.ink: str = self.layout["font"].get("color", LIGHT["ink2"])
        self.axes = axes_of(self.layout, self.top, self.bottom)
        self._stacks: dict[tuple[str, str], list[float]] = {}

    @property
    def title(self) -> str:
        title = self.layout.get("title", {})
        return str(title.get("text", "") if isinstance(title, dict) else title) or "a figure"

    @property
    def named(self) -> list[Drawing]:
        """The traces listed in the legend."""
        found = [each for each in self.traces if each.get("name") and each.get("showlegend", each["type"] != "treemap")]
        return found if self.layout.get("showlegend", len(found) > 1) else []

    def ticks(self, axis: Axis) -> Iterator[Mark]:
        """Yield the grid lines and numbers of an axis."""
        options = axis.options
        font = options.get("tickfont", {})
        for at, text in axis.ticks():
            if axis.letter == "x":
                start, stop = Across(axis.name, at), Across(axis.name, at)
                start_y, stop_y = self.top, self.bottom
                label = Words(start, self.bottom + 16, text, font.get("color", self.ink), font.get("size", SIZE))
            else:
                start, stop = Across("", 0.0), Across("", 1.0)
                start_y = stop_y = at
                beside = Across("", 0.0, -6.0 - options.get("ticklabelstandoff", 0))
                label = Words(beside, at + 4, text, font.get("color", self.ink), font.get("size", SIZE), "end")
            if options.get("showgrid", True) and "gridcolor" in options:
                yield Stroke(start, start_y, stop, stop_y, {"color": options["gridcolor"], "width": 1})
            yield label

    def titles(self) -> Iterator[Words]:
        """Yield the titles of the axes."""
        for axis in self.axes.values():
            title = axis.options.get("title", {})
            text = title.get("text", "") if isinstance(title, dict) else title
            if text and axis.letter == "x":
                yield Words(Across("", axis.begin + (axis.end - axis.begin) / 2), self.bottom + 36, text, self.ink)
            elif text:
                at = Across("", 0.0, 14 - self.margins["l"])
                yield Words(at, (self.top + self.bottom) / 2, text, self.ink, turned=True)

    def shapes(self, below: bool) -> Iterator[Stroke]:
        """Yield the layout's lines. Arrows from annotations to their points lie below the traces."""
        for shape in self.layout.get("shapes", ()):
            if (shape.get("layer") == "below") is not below:
                continue
            start, stop = (self._place(shape[name], shape.get("xref", "x")) for name in ("x0", "x1"))
            low, high = (self._height(shape[name], shape.get("yref", "y")) for name in ("y0", "y1"))
            yield Stroke(start, low, stop, high, shape["line"])
        for note in self.layout.get("annotations", ()) if below else ():
            if note.get("showarrow", True):
                start, start_y = self._place(note["ax"], note["axref"]), self._height(note["ay"], note["ayref"])
                line = {"color": note["arrowcolor"], "width": 1}
                yield Stroke(start, start_y, *self._note_at(note), line)

    def notes(self) -> Iterator[Words]:
        """Yield the texts of the layout's annotations."""
        for note in self.layout.get("annotations", ()):
            place, y = self._note_at(note)
            if note.get("text"):
                font = note.get("font", {})
                anchor = {"left": "start", "right": "end"}.get(note.get("xanchor", "center"), "middle")
                size = font.get("size", SIZE)
                down = {"bottom": -4.0, "top": size}.get(note.get("yanchor", "middle"), 0.36 * size)
                yield Words(place, y + down, note["text"], font.get("color", self.ink), size, anchor)

    def drawn(self, trace: Drawing) -> Iterator[Mark]:
        """Yield the marks of a trace. Stacked traces add up, so call this once for each trace, in order."""
        return self._bars(trace) if trace["type"] == "bar" else self._scatter(trace)

    def across(self, trace: Drawing) -> Axis:
        return self.axes[trace.get("xaxis", "x")]

    def up(self, trace: Drawing) -> Axis:
        return self.axes[trace.get("yaxis", "y")]

    def _note_at(self, note: Drawing) -> tuple[Across, float]:
        place = self._place(note["x"], note.get("xref", "x"), note.get("xshift", 0))
        return place, self._height(note["y"], note.get("yref", "y")) - note.get("yshift", 0)

    def _place(self, value: float, reference: str, more: float = 0.0) -> Across:
        """Return the position of a shape or an annotation, which refers to an axis or to the whole plot."""
        if reference == "paper":
            return Across("", float(value), more)
        if reference.endswith(" domain"):
            return Across(reference.removesuffix(" domain"), float(value), more)
        return Across(reference, self.axes[reference].at(value), more)

    def _height(self, value: float, reference: str) -> float:
        if reference == "paper":
            return self.bottom - float(value) * (self.bottom - self.top)
        if reference.endswith(" domain"):
            axis = self.axes[reference.removesuffix(" domain")]
            return axis.start + float(value) * (axis.stop - axis.start)
        return self.axes[reference].at(value)

    def _bars(self, trace: Drawing) -> Iterator[Mark]:
        """Yield horizontal bars, each with the text at its end."""
        across, up = self.across(trace), self.up(trace)
        marker = trace.get("marker", {})
        count = len(trace["x"])
        bases, texts = spread(trace.get("base", 0), count), spread(trace.get("text", ""), count)
        colours = spread(marker.get("color", self.ink), count)
        thick = abs(up.at(trace["width"]) - up.at(0))
        edge = marker.get("line", {})
        errors = trace.get("error_x", {})
        for number, (base, length, row) in enumerate(zip(bases, trace["x"], trace["y"], strict=True)):
            ends = sorted((across.at(base), across.at(base + length)))
            start, stop = (Across(across.name, each) for each in ends)
            y = up.at(row)
            hatch = hatch_of(marker, self.ink)
            yield Rectangle(
                start, stop, y - thick / 2, thick, colours[number], hatch, edge if edge.get("width") else None
            )
            if errors.get("visible", bool(errors)):
                yield from self._whisker(across, base + length, y, errors, number)
            if texts[number]:
                end = Across(across.name, across.at(base + length), 4 if length >= 0 else -4)
                colour = trace.get("textfont", {}).get("color", self.ink)
                yield Words(end, y + 4, texts[number], colour, SIZE, "start" if length >= 0 else "end")

    def _whisker(self, across: Axis, middle: float, y: float, errors: Drawing, number: int) -> Iterator[Stroke]:
        ends = (middle - errors["arrayminus"][number], middle + errors["array"][number])
        # Clip the whisker at the edges of the plot.
        low, high = (Across(across.name, min(max(across.at(end), 0.0), 1.0)) for end in ends)
        line = {"color": errors["color"], "width": errors.get("thickness", 1)}
        yield Stroke(low, y, high, y, line)
        if errors.get("width"):
            yield from (Stroke(end, y - 3, end, y + 3, line) for end in (low, high))

    def _scatter(self, trace: Drawing) -> Iterator[Mark]:
        """Yield lines, areas, markers and texts."""
        across, up = self.across(trace), self.up(trace)
        ys = list(trace["y"])
        below: Sequence[float] | None = None
        if group := trace.get("stackgroup"):
            key = (group, trace.get("yaxis", "y"))
            # Each trace of a stack starts where the previous one ended.
            below = self._stacks.get(key, [0.0] * len(ys))
            ys = self._stacks[key] = [low + level for low, level in zip(below, ys, strict=True)]
        places = [(x, y) for x, y in zip(trace["x"], ys, strict=True) if x is not None and y is not None]
        points = [(across.at(x), up.at(y)) for x, y in places]
        if not points:
            return
        mode, line = trace.get("mode", "lines"), trace.get("line", {})
        steps = line.get("shape") == "hv"
        if below is not None:
            floor = list(map(up.at, below))
            yield Curve(across.name, points, steps, floor=floor, fill=trace.get("fillcolor", self.ink))
        elif trace.get("fill") == "tozeroy":
            yield Curve(across.name, points, steps, floor=[self.bottom] * len(points), fill=trace["fillcolor"])
        if "lines" in mode and line.get("width", 2):
            yield Curve(across.name, points, steps, line)
        if "error_x" in trace:
            for number, (x, y) in enumerate(places):
                yield from self._whisker(across, x, up.at(y), trace["error_x"], number)
        if "markers" in mode:
            ink = line.get("color", self.ink)
            yield from (Marker(Across(across.name, x), y, trace.get("marker", {}), ink) for x, y in points)
        if "text" in mode:
            font = trace.get("textfont", {})
            colour, size = font.get("color", self.ink), font.get("size", SIZE)
            for (x, y), text in zip(points, trace["text"], strict=True):
                yield Words(Across(across.name, x), y + 4, text, colour, size)


def plot_of(figure: Mapping[str, Any]) -> Plot | None:
    """Return the plot of a figure, or None if the figure has anything that is not supported.

    Args:
        figure: plotly's data and layout, as plain data.
    """
    known = filled(figure)
    if known is None:
        return None
    plot = Plot(known)
    return plot if all(each["type"] in ("bar", "scatter", "treemap") for each in plot.traces) else None


def hatch_of(marker: Drawing, ink: str) -> tuple[str, str] | None:
    """Return the shape and colour of the strokes over a bar."""
    pattern = marker.get("pattern", {})
    return (pattern["shape"], pattern.get("fgcolor", ink)) if pattern.get("shape") else None


def spread(value: Any, count: int) -> Sequence[Any]:
    """Return one value per mark; plotly gives either a list or one value for all marks."""
    return value if isinstance(value, list | tuple) else [value] * count


def number(value: float) -> str:
    """Return a length as SVG text, with one digit after the point."""
    return f"{round(value, 1):g}" if math.isfinite(value) else "0"
