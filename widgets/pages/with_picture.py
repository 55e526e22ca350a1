"""`ts.with_picture`: a user's own figure, shown in a notebook as tapescope's are. Needs plotly when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...inspector.arguments import expect

if TYPE_CHECKING:
    import plotly.graph_objects as go


def with_picture(figure: go.Figure) -> go.Figure:
    """A figure of your own that leaves a picture beside its data where a notebook shows it, as tapescope's do.

    GitHub, an untrusted notebook and a PDF show it: lines, areas, marks, bars that lie, histograms whose bins are
    given. With anything else in it the figure is shown as ever, and leaves none. No browser is started.

    Args:
        figure: a `plotly.graph_objects.Figure`. It stays as it is.

    Raises:
        TypeError: it is none.
    """
    import plotly.graph_objects as go

    from .shown_figure import ShownFigure

    expect(figure, go.Figure, "figure", "a plotly.graph_objects.Figure")
    return ShownFigure(figure)
