"""A figure as one SVG of fixed width, for places where plotly does not run: GitHub, an untrusted notebook, a PDF.

It differs from plotly's picture by some pixels, but has the same bars, lines, markers and texts in the same places.
Unlike plotly's export it does not start a browser.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ...inspector.drawing.svg_text import escaped, shorten, text_width
from .figure_marks import LINES, SIZE, Across, Curve, Mark, Marker, Plot, Rectangle, Stroke, Words, number, plot_of
from .figure_svg import Hatches, key_of, marker_attributes, plain, spans, stroke_of, text_attributes
from .plotly_data import Drawing
from .theme import FONT, LIGHT
from .treemap import tiles

WIDTH = 900.0  # pixels, the same as the deck's still picture
_LEGEND_ROW, _KEY = 19.0, 30.0


def figure_svg(figure: Mapping[str, Any], background: str = LIGHT["panel"]) -> str | None:
    """Return the picture, or None if the figure has anything that is not supported.

    Args:
        figure: plotly's data and layout, as plain data.
        background: the background colour.
    """
    plot = plot_of(figure)
    if plot is None:
        return None
    still = _Still(plot)
    parts = list(still.parts())
    width, height = number(still.width), number(plot.height)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="{escaped(FONT)}" font-size="{number(SIZE)}" role="img">',
            f"<title>{escaped(plain(plot.title))}</title>",
            still.hatches.defs,
            f'<rect width="{width}" height="{height}" rx="8" fill="{background}"/>',
            *parts,
            "</svg>",
        ]
    )


class _Still:
    """Paints a plot's marks at pixels."""

    def __init__(self, plot: Plot) -> None:
        self.plot = plot
        self.hatches = Hatches()
        self.width = float(plot.layout.get("width", WIDTH))
        self.left, self.right = plot.margins["l"], self.width - plot.margins["r"]
        if plot.layout.get("legend", {}).get("orientation") != "h":  # the legend stands at the right of the plot
            self.right -= max(map(_entry_width, plot.named), default=0.0)

    def parts(self) -> Iterator[str]:
        plot = self.plot
        for axis in plot.axes.values():
            yield from self._painted(plot.ticks(axis))
        yield from self._painted(plot.titles())
        yield from self._painted(plot.shapes(below=True))
        for trace in plot.traces:
            yield from self._tiles(trace) if trace["type"] == "treemap" else self._painted(plot.drawn(trace))
        yield from self._painted(plot.shapes(below=False))
        yield from self._painted(plot.notes())
        yield from self._legend()

    def _painted(self, marks: Iterator[Mark]) -> Iterator[str]:
        for mark in marks:
            match mark:
                case Rectangle():
                    yield self._bar(mark)
                case Curve():
                    yield self._curve(mark)
                case Stroke(start=start, start_y=low, stop=stop, stop_y=high):
                    ends = f"M{number(self._x(start))} {number(low)}L{number(self._x(stop))} {number(high)}"
                    yield f'<path d="{ends}" {stroke_of(mark.line)}/>'
                case Marker():
                    at = f"translate({number(self._x(mark.place))} {number(mark.y)})"
                    yield f'<path transform="{at}" {marker_attributes(mark.marker, mark.ink)}/>'
                case Words():
                    yield from self._words(mark)

    def _x(self, place: Across) -> float:
        share = place.share
        if place.axis:
            axis = self.plot.axes[place.axis]
            share = axis.begin + share * (axis.end - axis.begin)
        return self.left + share * (self.right - self.left) + place.more

    def _bar(self, bar: Rectangle) -> str:
        start, stop = self._x(bar.start), self._x(bar.stop)
        fill = self.hatches.fill_of(bar.fill, bar.hatch)
        edge = f' stroke="{bar.edge["color"]}" stroke-width="{bar.edge["width"]}"' if bar.edge else ""
        return (
            f'<rect x="{number(start)}" y="{number(bar.y)}" width="{number(max(stop - start, 0.3))}" '
            f'height="{number(bar.height)}" fill="{fill}"{edge}/>'
        )

    def _curve(self, curve: Curve) -> str:
        points = [(self._x(Across(curve.axis, share)), y) for share, y in curve.points]
        path = "M" + _way(points, curve.steps)
        if curve.floor is None:
            return f'<path d="{path}" {stroke_of(curve.line or {}, self.plot.ink)}/>'
        below = [(x, y) for (x, _), y in zip(points, curve.floor, strict=True)]
        return f'<path d="{path}L{_way(below, curve.steps, back=True)}Z" fill="{curve.fill}"/>'

    def _words(self, words: Words) -> Iterator[str]:
        x, attributes = self._x(words.place), text_attributes(words.colour, words.size, words.anchor)
        for count, line in enumerate(LINES.split(words.text)):
            if not line:
                continue
            y = words.y + count * 1.3 * words.size
            at = f'x="{number(x)}" y="{number(y)}"'
            if words.turned:
                at = f'transform="translate({number(x)} {number(y)}) rotate(-90)"'
            yield f'<text {at} {attributes} xml:space="preserve">{spans(line)}</text>'

    def _tiles(self, trace: Drawing) -> Iterator[str]:
        plot = self.plot
        box = (self.left, plot.top, self.right - self.left, plot.bottom - plot.top)
        marker, inks = trace["marker"], trace["textfont"]["color"]
        edge = stroke_of(marker["line"]).removeprefix('fill="none" ')
        for index, (x, y, width, height) in tiles(trace, box):
            size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            yield f'<rect {size} fill="{marker["colors"][index]}" {edge}/>'
            for count, text in enumerate(LINES.split(trace["labels"][index])):
                line = shorten(plain(text), width - 8, SIZE)
                if height >= (count + 1) * 15 and len(line) > 2:
                    at = f'x="{number(x + 4)}" y="{number(y + 13 + count * 15)}"'
                    yield f"<text {at} {text_attributes(inks[index], SIZE, 'start')}>{escaped(line)}</text>"

    def _legend(self) -> Iterator[str]:
        """Yield the legend: rows above the plot, or a column at its right."""
        plot = self.plot
        named = plot.named
        legend = plot.layout.get("legend", {})
        if legend.get("orientation") != "h":
            for count, each in enumerate(named):
                yield from self._entry(each, self.right + 10, plot.top + 12 + count * _LEGEND_ROW)
            return
        rows: list[list[tuple[Drawing, float]]] = [[]]
        for each in named:
            width = _entry_width(each)
            if rows[-1] and sum(wide for _, wide in rows[-1]) + width > self.right - self.left + 60:
                rows.append([])
            rows[-1].append((each, width))
        lowest = plot.bottom - legend.get("y", 1) * (plot.bottom - plot.top) - 8
        for count, row in enumerate(rows):
            x = self.left
            for each, width in row:
                yield from self._entry(each, x, lowest - (len(rows) - 1 - count) * _LEGEND_ROW)
                x += width

    def _entry(self, trace: Drawing, x: float, y: float) -> Iterator[str]:
        """Yield a trace's key and name."""
        colour = self.plot.layout.get("legend", {}).get("font", {}).get("color", self.plot.ink)
        key = "".join(key_of(self.plot, trace, self.hatches, colour))
        yield f'<g transform="translate({number(x)} {number(y - 6)})">{key}</g>'
        name = f'x="{number(x + _KEY)}" y="{number(y + 4)}" fill="{colour}" xml:space="preserve"'
        yield f"<text {name}>{spans(trace['name'])}</text>"


def _entry_width(trace: Drawing) -> float:
    return _KEY + max(text_width(plain(line), bold="<b>" in line) for line in LINES.split(trace["name"])) + 16


def _way(points: Sequence[tuple[float, float]], steps: bool, back: bool = False) -> str:
    """Return the path along the points, or backwards, without its first command letter."""
    along = [points[0]]
    for (_, y), (next_x, next_y) in pairwise(points):
        along += [(next_x, y), (next_x, next_y)] if steps and next_y != y else [(next_x, next_y)]
    return "L".join(f"{number(x)} {number(y)}" for x, y in (along[::-1] if back else along))
