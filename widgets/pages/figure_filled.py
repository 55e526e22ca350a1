"""Plotly's defaults for still pictures: axis ranges, names on an axis, and the counts of a histogram.

Only a few kinds of figures are supported, and ranges can differ from plotly's by some pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any

from .plotly_data import Drawing

_MARGIN = 0.06  # share of the data's extent, on both sides, so that no mark is cut off
_OF_TEMPLATE = ("gridcolor", "showgrid")


def filled(figure: Mapping[str, Any]) -> Drawing | None:
    """Return the figure with plotly's defaults filled in, or None if they are not known for this figure."""
    layout: Drawing = dict(figure["layout"])
    style = layout.pop("template", {}).get("layout", {})
    traces = [_histogram_as_curve(each) for each in figure["data"]]
    if any(each is None for each in traces):
        return None
    known: list[Drawing] = [each for each in traces if each is not None]
    # The axes of the traces, then the layout's others.
    used = {each.get(f"{letter}axis", letter) for each in known if "y" in each for letter in "xy"}
    names = [f"{axis[0]}axis{axis[1:]}" for axis in sorted(used)]
    names += [name for name in layout if name[1:5] == "axis" and name[0] + name[5:] not in used]
    without_range = [name for name in names if "range" not in layout.get(name, {})]
    # The range of bars and stacked areas depends on all traces together; tapescope's own figures set it.
    if without_range and any(each["type"] != "scatter" or "stackgroup" in each for each in known):
        return None
    for name in without_range:
        on_axis = [each for each in known if each.get(f"{name[0]}axis", name[0]) == name[0] + name[5:]]
        axis = {each: style.get(name[:5], {})[each] for each in _OF_TEMPLATE if each in style.get(name[:5], {})}
        axis = layout[name] = axis | layout.get(name, {})
        values = [value for each in on_axis for value in each[name[0]] if value is not None]
        if values and all(isinstance(value, str) for value in values):
            # Names get the positions 0, 1, 2 and so on, in the order of their first use.
            places = {text: place for place, text in enumerate(dict.fromkeys(values))}
            for each in on_axis:
                each[name[0]] = [None if value is None else places[value] for value in each[name[0]]]
            axis |= {"range": [-0.5, len(places) - 0.5], "tickvals": list(places.values()), "ticktext": list(places)}
        elif not values or not all(isinstance(value, Real) for value in values):
            return None
        else:
            axis["range"] = list(_range(axis, values, any("markers" in each.get("mode", "") for each in on_axis)))
    if "paper_bgcolor" not in layout and "paper_bgcolor" in style:
        layout["paper_bgcolor"] = style["paper_bgcolor"]
    return {"data": known, "layout": layout}


def _histogram_as_curve(trace: Drawing) -> Drawing | None:
    """Return a histogram as a step curve of its counts, and a copy of any other trace; None if it is not supported.

    A histogram is supported if it specifies its bins and contains only numbers.
    """
    if trace["type"] == "bar" and trace.get("orientation") != "h":
        return None
    if trace["type"] != "histogram":
        return dict(trace)
    bins, values = trace.get("xbins", {}), trace.get("x", ())
    if not {"start", "end", "size"} <= set(bins) or not all(isinstance(value, Real) for value in values):
        return None
    count = math.ceil((bins["end"] - bins["start"]) / bins["size"])
    edges = [bins["start"] + bins["size"] * number for number in range(count + 1)]
    counts = [sum(low <= value < high for value in values) for low, high in pairwise(edges)]
    colour = trace.get("marker", {}).get("color")
    shown: Drawing = {name: trace[name] for name in ("name", "showlegend", "xaxis", "yaxis") if name in trace}
    area: Drawing = {"fill": "tozeroy", "fillcolor": colour, "line": {"shape": "hv", "width": 0}} if colour else {}
    return {"type": "scatter", "mode": "lines", "x": edges, "y": [*counts, 0], **shown, **area}


def _range(axis: Drawing, values: Sequence[float], padded: bool) -> tuple[float, float]:
    is_log = axis.get("type") == "log"
    low, high = min(values), max(values)
    if is_log:
        low, high = math.log10(low), math.log10(high)
    elif axis.get("rangemode") == "tozero" or low == 0:
        low, high = min(low, 0), max(high, 0)
    margin = _MARGIN * (high - low or 1)
    on_zero = low == 0 and not is_log  # plotly draws counts without a margin below zero
    return low - (margin if padded and not on_zero else 0), high + margin
