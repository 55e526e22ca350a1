"""The axes of a figure that is drawn as SVG: where a value is, and lines, numbers and titles beside the plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape
from typing import Any

from ...inspector.drawing.svg_text import escaped
from .plotly_data import Drawing

Box = tuple[float, float, float, float]

_TICKS = 6  # about so many


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high`, in powers of ten where it is logarithmic, at pixels `start` to `stop`."""

    letter: str
    options: Drawing
    low: float
    high: float
    start: float
    stop: float

    @property
    def is_log(self) -> bool:
        return bool(self.options.get("type") == "log")

    def at(self, value: float) -> float:
        """Where a value is, pixels."""
        if self.is_log:
            value = math.log10(value) if value > 0 else self.low
        return self.start + (value - self.low) / ((self.high - self.low) or 1) * (self.stop - self.start)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """(Where, what is said there)."""
        options = self.options
        if "tickvals" in options:
            values = options["tickvals"]
            for value, text in zip(values, options.get("ticktext") or values, strict=True):
                yield self.at(value), str(text)
            return
        low, high = sorted((self.low, self.high))
        step = _round_step((high - low) / options.get("nticks", _TICKS))
        suffix = options.get("ticksuffix", "")
        for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
            value = number * step
            yield self.at(10**value if self.is_log else value), f"{10**value if self.is_log else value:,.10g}{suffix}"


def _round_step(least: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next((each * power for each in (1, 2, 5) if each * power >= least), 10 * power)


def axes_of(layout: Mapping[str, Any], box: Box) -> dict[str, Axis]:
    """By plotly's name, `x`, `y2`, the axes of a layout. Each says from where to where it goes."""
    left, top, right, bottom = box
    found = {}
    for name, options in layout.items():
        if name[1:5] != "axis":
            continue
        low, high = options["range"]
        begin, end = options.get("domain", (0, 1))
        letter = name[0]
        start, stop = (
            (left + begin * (right - left), left + end * (right - left))
            if letter == "x"
            else (bottom - begin * (bottom - top), bottom - end * (bottom - top))
        )
        found[letter + name[5:]] = Axis(letter, options, low, high, start, stop)
    return found


def drawn_axes(axes: Mapping[str, Axis], box: Box, ink: str) -> Iterator[str]:
    """Grid, numbers and titles."""
    left, top, right, bottom = box
    for axis in axes.values():
        options = axis.options
        colour = options.get("tickfont", {}).get("color", ink)
        size = options.get("tickfont", {}).get("size", 11)
        for at, text in axis.ticks():
            here = round(at, 1)
            if options.get("showgrid", True):
                path = f"M{here:g} {top:g}V{bottom:g}" if axis.letter == "x" else f"M{left:g} {here:g}H{right:g}"
                yield f'<path d="{path}" stroke="{options.get("gridcolor", "none")}" fill="none"/>'
            if axis.letter == "x":
                place = f'x="{here:g}" y="{bottom + 16:g}" text-anchor="middle"'
            else:
                standoff = options.get("ticklabelstandoff", 0)
                place = f'x="{left - 6 - standoff:g}" y="{here + 4:g}" text-anchor="end"'
            yield f'<text {place} fill="{colour}" font-size="{size}">{escaped(unescape(text))}</text>'
        yield from _title(axis, box, ink)


def _title(axis: Axis, box: Box, ink: str) -> Iterator[str]:
    title = axis.options.get("title", {})
    text = title.get("text", "") if isinstance(title, dict) else title
    if not text:
        return
    _, top, _, bottom = box
    middle = (axis.start + axis.stop) / 2
    if axis.letter == "x":
        place = f'x="{middle:g}" y="{bottom + 36:g}"'
    else:
        place = f'transform="translate(14 {(top + bottom) / 2:g}) rotate(-90)"'
    yield f'<text {place} text-anchor="middle" fill="{ink}">{escaped(unescape(text))}</text>'
