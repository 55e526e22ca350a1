"""The axes of a figure: positions of values, and the numbers beside the plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .plotly_data import Drawing

_TICKS = 6  # approximate number per axis


@dataclass(frozen=True, slots=True)
class Axis:
    """A horizontal axis, with positions from 0 to 1, or a vertical one, with positions in pixels.

    Attributes:
        name: plotly's name, such as `x` or `y2`.
        low, high: values at its ends, or powers of ten if it is logarithmic.
        begin, end: the part of the plot that it covers, from 0 to 1.
        start, stop: positions of its ends.
    """

    name: str
    options: Drawing
    low: float
    high: float
    begin: float
    end: float
    start: float
    stop: float

    @property
    def letter(self) -> str:
        return self.name[0]

    @property
    def is_log(self) -> bool:
        return bool(self.options.get("type") == "log")

    @property
    def suffix(self) -> str:
        """The text after each number."""
        return str(self.options.get("ticksuffix", ""))

    def at(self, value: float) -> float:
        """Return the position of a value."""
        if self.is_log:
            value = math.log10(value) if value > 0 else self.low
        return self.start + (value - self.low) / ((self.high - self.low) or 1) * (self.stop - self.start)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield the position and the text of each number."""
        options = self.options
        if "tickvals" in options:
            values = options["tickvals"]
            first, last = sorted((self.start, self.stop))
            for value, text in zip(values, options.get("ticktext") or values, strict=True):
                if first - 1e-6 <= (at := self.at(value)) <= last + 1e-6:
                    yield at, str(text)
            return
        low, high = sorted((self.low, self.high))
        # Round the distance of the numbers up to 1, 2 or 5 times a power of ten.
        least = (high - low) / options.get("nticks", _TICKS)
        power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
        step = next((each * power for each in (1, 2, 5) if each * power >= least), 10 * power)
        # The tolerance keeps a tick at an end of the axis in spite of rounding.
        for count in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
            value = count * step
            shown = 10**value if self.is_log else value
            yield self.at(shown), f"{shown:,.10g}{self.suffix}"


def axes_of(layout: Mapping[str, Any], top: float, bottom: float) -> dict[str, Axis]:
    """Return the axes of a layout by name. `top` and `bottom` are the edges of the plot in pixels."""
    found = {}
    for key, options in layout.items():
        if key[1:5] != "axis":
            continue
        low, high = options["range"]
        begin, end = options.get("domain", (0, 1))
        name = key[0] + key[5:]
        ends = (0.0, 1.0) if key[0] == "x" else (bottom - begin * (bottom - top), bottom - end * (bottom - top))
        found[name] = Axis(name, options, low, high, begin, end, *ends)
    return found
