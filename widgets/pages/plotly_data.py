"""Plotly's figures as plain data, and text that plotly shows as it is. Plotly is imported only to show a figure."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from ...inspector.arguments import expect

if TYPE_CHECKING:
    import plotly.graph_objects as go

Drawing = dict[str, Any]
LINE = 80  # characters of a line in a box that opens on hover: plotly breaks none


def escaped(text: str) -> str:
    """A user's text in a label: plotly reads `<b>`, `<a href>` and entities in it, and TeX between dollars."""
    text = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")


def wrapped(text: str) -> str:
    """A text in a box that opens on hover, in lines of `LINE` characters."""
    return "<br>".join(map(escaped, wrap(text, LINE)))


def cut(text: str, most: int) -> str:
    """As much of a text as has room, with an ellipsis where that is not all."""
    return text if len(text) <= most else text[: most - 1] + "…"


def figure_of(drawing: Drawing) -> go.Figure:
    """Return plotly's figure of a drawing; a notebook keeps a picture beside its data. Needs plotly."""
    from .shown_figure import ShownFigure

    return ShownFigure(drawing)


def with_picture(figure: go.Figure) -> go.Figure:
    """Return a copy of your own figure that leaves a picture beside its data where a notebook shows it.

    GitHub, an untrusted notebook and a PDF show the picture: lines, areas, markers, horizontal bars, and histograms
    whose bins are given. A figure with anything else is shown as usual, without a picture. No browser is started.

    Args:
        figure: a `plotly.graph_objects.Figure`. It is not changed.

    Raises:
        TypeError: not a plotly figure.
    """
    import plotly.graph_objects as go

    from .shown_figure import ShownFigure

    expect(figure, go.Figure, "figure", "a plotly.graph_objects.Figure")
    return ShownFigure(figure)
