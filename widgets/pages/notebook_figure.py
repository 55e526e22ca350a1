"""Plotly figures for notebooks. Plotly is imported when a figure is made, since saved pages do not need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...inspector.validation import expect
from .plotly_data import Drawing

if TYPE_CHECKING:
    import plotly.graph_objects as go


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
