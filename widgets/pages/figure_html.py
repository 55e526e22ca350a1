"""Figures as HTML and SVG that fit any width, follow the reader's theme, and are visible without scripts.

Horizontal positions are percentages, and only curves are stretched, so texts and markers keep their size on every
screen. The page's script, widgets/js/src/figures, zooms by making the plot's content wider than the plot. Hover texts
are stored once for all figures of a page.
"""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from ...inspector.drawing.svg_text import text_width
from .figure_axes import Axis
from .figure_marks import LINES, SIZE, Across, Curve, Mark, Marker, Plot, Rectangle, Stroke, Words, number, plot_of
from .figure_svg import Hatches, key_of, marker_attributes, plain, rich, spans, stroke_of, text_attributes
from .plotly_data import Drawing
from .theme import LATER
from .treemap import tiles

_FINE = 10  # units of a pixel's height in a path
_ACROSS = 10_000  # units of a path's width if values are not integers
_ABOVE = 12.0  # pixels above the plot; the legend is not part of the picture
_NUMBERS = 22.0  # pixels below the plot, for the numbers of its axis
_NOTE = 16.0  # more pixels if there is text above the plot
_LEAST_RIGHT = 24.0  # pixels, for half of the last number
_INSIDE = LATER["panel"]  # fill of open markers, which hides lines below them
_USUAL_LEFT = 64.0  # pixels, so that plots with numbers beside them are aligned
_TREE_WIDTH = 1000.0  # pixels; at this width a treemap's boxes are nearly square


class Figures:
    """The figures of one page, and their hover data. Each text and each list is stored once."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._lists: dict[str, int] = {}
        self._hover_data: dict[str, Any] = {}

    def html(self, name: str, title: str, drawing: Drawing) -> str:
        """Return a figure as HTML, and keep its hover data.

        Args:
            name: unique on the page.
            title: its name for screen readers.
            drawing: plotly's data and layout, in the colours `LATER`.

        Raises:
            ValueError: the figure has a kind of trace that is not supported.
        """
        number_of = f"f{len(self._hover_data)}"
        # The legend is not part of the picture, so the space for it above the plot is left out.
        layout = drawing["layout"]
        margins = layout.get("margin", {})
        above = any(note.get("yref") == "paper" and note["y"] >= 1 for note in layout.get("annotations", ()))
        top = min(margins["t"], _ABOVE + (_NOTE if above else 0.0))
        layout = {**layout, "margin": {**margins, "t": top}, "height": layout["height"] - margins["t"] + top}
        plot = plot_of({"data": drawing["data"], "layout": layout})
        if plot is None:
            raise ValueError(f"figure {name!r} has a kind of trace that saved pages do not support")
        if plot.traces and plot.traces[0]["type"] == "treemap":
            return self._tree(name, title, plot)
        page = _Fluid(plot, Hatches(number_of))
        picture = page.picture()  # before the legend, because it collects the hatches
        self._hover_data[name] = {
            "unified": plot.layout.get("hovermode") == "x unified",
            "head": plot.layout.get("xaxis", {}).get("unifiedhovertitle", {}).get("text", ""),
            "axes": {axis.name: _axis_content(axis) for axis in plot.axes.values() if axis.letter == "x"},
            "traces": [self._trace(plot, trace) for trace in plot.traces],
        }
        kinds = " beside" if page.has_gutter else ""
        kinds += "" if plot.layout.get("legend", {}).get("orientation") == "h" else " side"
        style = f"--left:{_left(plot):g}px;--right:{max(plot.margins['r'], _LEAST_RIGHT):g}px"
        return (
            f'<div class="figure{kinds}" data-figure="{escape(name)}" style="{style}">{page.legend()}'
            f'<div class="scroll"><div class="room" tabindex="0" role="group" aria-roledescription="figure" '
            f'aria-label="{escape(title)}">{picture}</div></div></div>'
        )

    @property
    def packed(self) -> str:
        """The hover data of all figures as JSON, compressed by gzip, in base64."""
        lists = [json.loads(each) for each in self._lists]
        content = {"texts": list(self._texts), "lists": lists, "figures": self._hover_data}
        # A fixed mtime makes equal pages equal byte for byte. UTF-8 cannot encode lone surrogates of a user's text.
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
        return b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode("ascii")

    def _trace(self, plot: Plot, trace: Drawing) -> dict[str, Any]:
        """Return the hover data of a trace: texts, and positions of its points."""
        across, up = plot.across(trace), plot.up(trace)
        found: dict[str, Any] = {"axis": across.name, "bars": trace["type"] == "bar"}
        if trace.get("hoverinfo") == "skip" or "hovertemplate" not in trace:
            return found
        line, marker = trace.get("line", {}), trace.get("marker", {})
        colour = trace.get("fillcolor") if "stackgroup" in trace else line.get("color") or marker.get("color")
        found |= self._hover_texts(trace) | {"colour": colour if isinstance(colour, str) else ""}
        found["steps"] = line.get("shape") == "hv"
        found["x"] = self._list([round(value, 6) if isinstance(value, float) else value for value in trace["x"]])
        if "stackgroup" in trace:
            floor = up.at(0)
            found["stack"] = self._list([round(_FINE * (floor - up.at(value))) for value in trace["y"]])
        elif not found["bars"]:
            found["y"] = self._list([round(up.at(value), 1) for value in trace["y"]])
        return found

    def _hover_texts(self, trace: Drawing) -> dict[str, Any]:
        """Return the hover template, and the columns of texts that fill it for each point."""
        data = trace.get("customdata", ())
        columns = list(zip(*data, strict=True)) if data and isinstance(data[0], tuple) else [data]
        say = trace["hovertemplate"].replace("<extra></extra>", "")
        return {"say": say, "columns": [self._list(list(map(self._text, column))) for column in columns]}

    def _text(self, text: str) -> int | list[int]:
        """Return the index of a text, or of each of its lines."""
        lines = [self._texts.setdefault(line, len(self._texts)) for line in LINES.split(text)]
        return lines[0] if len(lines) == 1 else lines

    def _list(self, values: list[Any]) -> int:
        return self._lists.setdefault(json.dumps(values, separators=(",", ":")), len(self._lists))

    def _tree(self, name: str, title: str, plot: Plot) -> str:
        """Return a treemap, with an HTML element for each box."""
        (trace,) = plot.traces
        height = plot.bottom - plot.top
        inner = set(trace["parents"])
        boxes = []
        order: dict[str, int] = {}
        for index, (x, y, width, tall) in tiles(trace, (0.0, 0.0, _TREE_WIDTH, height), 0.0):
            order[trace["ids"][index]] = index
            colour = re.sub(r"\W", "", trace["marker"]["colors"][index].removeprefix("var(--"))
            kind = f"c-{colour} in" if trace["ids"][index] in inner else f"c-{colour}"
            left, wide = number(100 * x / _TREE_WIDTH), number(100 * width / _TREE_WIDTH)
            place = f"left:{left}%;top:{number(y)}px;width:{wide}%;height:{number(tall)}px"
            label = "<br>".join(map(rich, LINES.split(trace["labels"][index])))
            boxes.append(f'<i class="{kind}" style="{place}"><s>{label}</s></i>')
        # The hover data follow the order of the HTML elements, which the page's script counts.
        places = {name: place for place, name in enumerate(order)}
        self._hover_data[name] = {
            **self._hover_texts({**trace, "customdata": [trace["customdata"][index] for index in order.values()]}),
            "sizes": self._list([trace["values"][index] for index in order.values()]),
            "around": self._list([places.get(trace["parents"][index], -1) for index in order.values()]),
        }
        return (
            f'<div class="tree" data-figure="{escape(name)}" style="height:{number(height)}px" tabindex="0" '
            f'role="group" aria-roledescription="figure" aria-label="{escape(title)}">{"".join(boxes)}</div>'
        )


class _Fluid:
    """Paints a plot's marks at percentages of its width."""

    def __init__(self, plot: Plot, hatches: Hatches) -> None:
        self.plot = plot
        self.hatches = hatches
        self.has_gutter = False
        self.across = [title for title in plot.titles() if not title.turned]
        self.height = plot.bottom + _NUMBERS if self.across else plot.height

    def picture(self) -> str:
        plot = self.plot
        fixed = [mark for axis in plot.axes.values() if axis.letter == "y" for mark in plot.ticks(axis)]
        fixed += [title for title in plot.titles() if title.turned]
        below, above, notes = list(plot.shapes(below=True)), list(plot.shapes(below=False)), list(plot.notes())
        traces = [list(plot.drawn(trace)) for trace in plot.traces]
        parts = [*self._painted([*fixed, *_at(below, "")])]
        for axis in plot.axes.values():
            if axis.letter == "y":
                continue
            place = f'x="{_percent(axis.begin)}" width="{_percent(axis.end - axis.begin)}"'
            parts.append(f'<svg class="ticks" {place}>{"".join(self._painted(plot.ticks(axis)))}</svg>')
            parts.append(f'<svg class="window" data-axis="{axis.name}" {place}><svg class="content">')
            parts += self._painted(_at(below, axis.name))
            for count, trace in enumerate(plot.traces):
                if plot.across(trace) is axis:
                    parts.append(f'<g data-trace="{count}">{"".join(self._painted(traces[count]))}</g>')
            parts += [*self._painted([*_at(above, axis.name), *_at(notes, axis.name)]), "</svg></svg>"]
        parts += self._painted([*_at(above, ""), *_at(notes, "")])
        size = f'width="100%" height="{number(self.height)}"'
        edges = f'data-top="{number(plot.top)}" data-bottom="{number(plot.bottom)}"'
        picture = f'<svg class="plot" {size} {edges} aria-hidden="true">{self.hatches.defs}{"".join(parts)}</svg>'
        # The titles are HTML, because SVG text does not wrap.
        return picture + "".join(f"<p>{rich(title.text)}</p>" for title in self.across)

    def legend(self) -> str:
        """Return the legend. Its entries are buttons if the figure allows readers to hide traces."""
        plot = self.plot
        options = plot.layout.get("legend", {})
        colour = options.get("font", {}).get("color", plot.ink)
        entries = []
        for trace in plot.named:
            key = f'<svg width="24" height="12">{"".join(key_of(plot, trace, self.hatches, colour))}</svg>'
            name = "<br>".join(map(rich, LINES.split(trace["name"])))
            inside = f"{key}<span>{name}</span>"
            group = trace.get("legendgroup")
            members = [
                count
                for count, each in enumerate(plot.traces)
                if each is trace or (group is not None and each.get("legendgroup") == group)
            ]
            hides = f'type="button" aria-pressed="true" data-traces="{" ".join(map(str, members))}"'
            entries.append(
                f"<span>{inside}</span>" if options.get("itemclick") is False else f"<button {hides}>{inside}</button>"
            )
        return f'<div class="legend">{"".join(entries)}</div>'

    def _painted(self, marks: Iterable[Mark]) -> Iterator[str]:
        for mark in marks:
            match mark:
                case Rectangle():
                    yield self._bar(mark)
                case Curve():
                    yield self._curve(mark)
                case Stroke(start=start, start_y=low, stop=stop, stop_y=high):
                    ends = f'x1="{_percent(start.share)}" x2="{_percent(stop.share)}"'
                    line = stroke_of(mark.line).removeprefix('fill="none" ')
                    yield f'<line {ends} y1="{number(low)}" y2="{number(high)}" {line}/>'
                case Marker():
                    at = f'x="{_percent(mark.place.share)}" y="{number(mark.y)}"'
                    yield f"<svg {at}><path {marker_attributes(mark.marker, mark.ink, _INSIDE)}/></svg>"
                case Words():
                    yield from self._words(mark)

    def _bar(self, bar: Rectangle) -> str:
        fill = self.hatches.fill_of(bar.fill, bar.hatch)
        edge = f' stroke="{bar.edge["color"]}" stroke-width="{bar.edge["width"]}"' if bar.edge else ""
        width = max(bar.stop.share - bar.start.share, 0.0004)
        return (
            f'<rect x="{_percent(bar.start.share)}" y="{number(bar.y)}" width="{_percent(width)}" '
            f'height="{number(bar.height)}" fill="{fill}"{edge}/>'
        )

    def _curve(self, curve: Curve) -> str:
        axis = self.plot.axes[curve.axis]
        span = abs(axis.high - axis.low)
        shares = [share for share, _ in curve.points]
        # Integer coordinates keep the path short; the viewBox is stretched to the width of the plot.
        is_integral = not axis.is_log and 0 < span <= _ACROSS and all(_is_whole(span * share) for share in shares)
        width = round(span) if is_integral and _is_whole(span) else _ACROSS
        points = [(round(width * share), round(_FINE * y)) for share, y in curve.points]
        path = path_of(points, curve.steps)
        painted = stroke_of(curve.line or {}, self.plot.ink)
        if curve.floor is not None:
            floor = [(x, round(_FINE * y)) for (x, _), y in zip(points, curve.floor, strict=True)]
            path, painted = area_of(points, floor, curve.steps), f'fill="{curve.fill}"'
        box = f"0 0 {width} {round(_FINE * self.height)}"
        return f'<svg viewBox="{box}" preserveAspectRatio="none"><path d="{path}" {painted}/></svg>'

    def _words(self, words: Words) -> Iterator[str]:
        place, attributes = words.place, text_attributes(words.colour, words.size, words.anchor)
        if place == Across("", 1.0, place.more) and place.more > 0:
            self.has_gutter = True
            attributes += ' class="gutter"'
        for count, line in enumerate(LINES.split(words.text)):
            if not line:
                continue
            y = number(words.y + count * 1.3 * words.size)
            if words.turned:
                at = f'transform="translate({number(place.more)} {y}) rotate(-90)"'
            else:
                at = f'x="{_percent(place.share)}" y="{y}"' + (f' dx="{number(place.more)}"' if place.more else "")
            yield f"<text {at} {attributes}>{spans(line)}</text>"


def path_of(points: Sequence[tuple[int, int]], steps: bool) -> str:
    """Return a path in relative integers, in which successive points of one level are one line."""
    (x, y), *_ = points
    return f"M{x} {y}{''.join(_moves(points, steps))}"


def area_of(points: Sequence[tuple[int, int]], floor: Sequence[tuple[int, int]], steps: bool) -> str:
    """Return the path around an area: along its points, and back along its floor."""
    if not steps:
        back = "".join(_moves(list(reversed(floor)), False))
        return f"{path_of(points, False)}V{floor[-1][1]}{back}z"
    # A level holds from its point to the next one. Drawn backwards, it therefore starts at the next point.
    xs = [x for x, _ in floor][::-1]
    ys = [y for _, y in floor][::-1]
    levels = [*ys[1:], ys[-1]]
    back = "".join(_moves(list(zip(xs, levels, strict=True)), True))
    return f"{path_of(points, True)}V{levels[0]}{back}z"


def _moves(points: Sequence[tuple[int, int]], steps: bool) -> Iterator[str]:
    across = 0
    for (x, y), (next_x, next_y) in pairwise(points):
        across += next_x - x
        if next_y == y:
            continue
        if steps:
            yield f"{f'h{across}' if across else ''}v{next_y - y}"
        else:
            yield f"l{across} {next_y - y}"
        across = 0
    if across:
        yield f"h{across}"


def _left(plot: Plot) -> float:
    """Return the left margin, which is narrower than the layout's if the names beside the plot are short."""
    axes = [axis for axis in plot.axes.values() if axis.letter == "y"]
    if any("title" in axis.options for axis in axes):
        return plot.margins["l"]
    widest = 0.0
    for axis in axes:
        size = axis.options.get("tickfont", {}).get("size", SIZE)
        gap = 18 + axis.options.get("ticklabelstandoff", 0)
        widest = max([widest, *(gap + text_width(plain(name), size) for _, name in axis.ticks())])
    return float(min(plot.margins["l"], max(_USUAL_LEFT, round(widest))))


def _axis_content(axis: Axis) -> dict[str, Any]:
    found: dict[str, Any] = {"low": axis.low, "high": axis.high, "log": axis.is_log, "suffix": axis.suffix}
    font = axis.options.get("tickfont", {})
    found |= {"ink": font.get("color", ""), "grid": axis.options.get("gridcolor", "")}
    if not axis.options.get("showgrid", True):
        found["grid"] = ""
    if "tickvals" in axis.options:
        found["ticks"] = [[round(share, 5), text] for share, text in axis.ticks()]
    return found


def _at(marks: Iterable[Words | Stroke], axis: str) -> Iterator[Words | Stroke]:
    """Yield the texts and straight lines that refer to this axis, or to the whole plot if it is ""."""
    for mark in marks:
        if (mark.place.axis if isinstance(mark, Words) else mark.start.axis) == axis:
            yield mark


def _percent(share: float) -> str:
    return f"{round(100 * share, 2):g}%"


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) < 1e-6
