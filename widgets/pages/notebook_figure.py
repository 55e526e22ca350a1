"""Plotly figures for notebooks. Plotly is imported only to create a figure, because saved pages do not need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...inspector.validation import expect
from .plotly_data import Drawing

if TYPE_CHECKING:
    import plotly.graph_objects as go


def figure_of(drawing: Drawing) -> go.Figure:
    """Return a drawing as a plotly figure, which keeps a picture beside its data in a notebook. Needs plotly."""
    from .shown_figure import ShownFigure

    return ShownFigure(drawing)


def with_picture(figure: go.Figure) -> go.Figure:
    """Return a copy of a figure that stores a picture beside its data when a notebook shows it.

    GitHub, an untrusted notebook and a PDF show the picture. It can contain lines, areas, markers, horizontal bars, and
    histograms with specified bins. Other figures are shown as usual, without a picture. No browser is started.

    Args:
        figure: a `plotly.graph_objects.Figure`. It is not modified.

    Raises:
        TypeError: `figure` is not a plotly figure.
    """
    import plotly.graph_objects as go

    from .shown_figure import ShownFigure

    expect(figure, go.Figure, "figure", "a plotly.graph_objects.Figure")
    return ShownFigure(figure)
