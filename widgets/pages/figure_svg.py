"""SVG shared by stills and pages: line styles, markers, hatches, text, and the keys of a legend."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape, unescape

from ...inspector.drawing.svg_text import escaped
from .figure_marks import SIZE, Plot, hatch_of, number, spread
from .plotly_data import Drawing
from .theme import LIGHT

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
_TAGS = re.compile(r"<[^>]*>")


class Hatches:
    """The fill patterns of one picture. `prefix` keeps their ids unique if a page has several pictures."""

    def __init__(self, prefix: str = "pattern") -> None:
        self._prefix = prefix
        self._names: dict[tuple[str, str, str], str] = {}

    def fill_of(self, colour: str, hatch: tuple[str, str] | None) -> str:
        """Return a colour, or a reference to the pattern of a hatched one."""
        if hatch is None or hatch[0] not in _STROKES:
            return colour
        key = (hatch[0], colour, hatch[1])
        return f"url(#{self._names.setdefault(key, f'{self._prefix}-{len(self._names)}')})"

    @property
    def defs(self) -> str:
        found = "".join(
            f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" '
            f'fill="{under}"/><path d="{_STROKES[shape]}" stroke="{over}" fill="none"/></pattern>'
            for (shape, under, over), name in self._names.items()
        )
        return f"<defs>{found}</defs>" if found else ""


def stroke_of(line: Drawing, ink: str = LIGHT["ink2"]) -> str:
    """Return the attributes of a line. Dashes are a name, or lengths in pixels."""
    dash = line.get("dash", "solid")
    lengths = _DASHES.get(dash) or [float(each) for each in re.findall(r"[\d.]+", dash)]
    width = line.get("width", 2)
    scale = max(width / 3, 1.0) if dash in _DASHES else 1.0
    dashes = f' stroke-dasharray="{" ".join(number(scale * each) for each in lengths)}"' if lengths else ""
    return f'fill="none" stroke="{line.get("color", ink)}" stroke-width="{width}"{dashes}'


def marker_attributes(marker: Drawing, ink: str, inside: str = "none") -> str:
    """Return the attributes of a marker's path around (0, 0). `inside` is the fill of open markers."""
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
    hollow = symbol != base or base in ("line-ns", "cross", "x", "star")
    edge = line.get("color", colour) if width or hollow else "none"
    fill = inside if hollow else colour
    return f'd="{shape.get(base, shape["circle"])}" fill="{fill}" stroke="{edge}" stroke-width="{width or 1.5}"'


def key_of(plot: Plot, trace: Drawing, hatches: Hatches, colour: str) -> Iterator[str]:
    """Yield the key of a trace for the legend, 24 × 12 pixels."""
    marker, line = trace.get("marker", {}), trace.get("line", {})
    if trace["type"] == "bar" or "fillcolor" in trace:
        tint = spread(marker.get("color", trace.get("fillcolor", colour)), 1)[0]
        fill = hatches.fill_of(tint, hatch_of(marker, plot.ink))
        yield f'<rect x="6" width="12" height="12" fill="{fill}"/>'
        if "fillcolor" in trace and line.get("width", 2):
            yield f'<path d="M6 0h12" {stroke_of(line, colour)}/>'
        return
    if "lines" in trace.get("mode", "lines"):
        yield f'<path d="M0 6h24" {stroke_of(line, colour)}/>'
    if "markers" in trace.get("mode", "lines"):
        yield f'<path transform="translate(12 6)" {marker_attributes(marker, line.get("color", colour))}/>'


def spans(line: str) -> str:
    """Return a line of plotly's text as SVG text. Only the tag <b> is kept."""
    parts = enumerate(re.split(r"</?b>", line))
    return "".join(
        f'<tspan font-weight="600">{escaped(plain(part))}</tspan>' if place % 2 else escaped(plain(part))
        for place, part in parts
        if part
    )


def rich(line: str) -> str:
    """Return a line of plotly's text as HTML. Only the tag <b> is kept."""
    parts = enumerate(re.split(r"</?b>", line))
    return "".join(f"<b>{escape(plain(part))}</b>" if place % 2 else escape(plain(part)) for place, part in parts)


def plain(text: str) -> str:
    """Return plotly's text without tags and entities."""
    return unescape(_TAGS.sub("", text))


def text_attributes(colour: str, size: float, anchor: str) -> str:
    """Return the attributes of a text that differ from its picture's defaults."""
    found = f'fill="{colour}"'
    if size != SIZE:
        found += f' font-size="{number(size)}"'
    if anchor != "start":
        found += f' text-anchor="{anchor}"'
    return found
