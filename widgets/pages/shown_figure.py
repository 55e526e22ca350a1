"""Figures of plotly's as notebooks show and keep them: in the page's theme, and with a picture for where none runs."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from IPython.display import display

from .figure_still import figure_svg
from .png import bundle_of
from .theme import AUTO, LIGHT, follow_page, in_light

_CLEAR = AUTO["panel"]
# The style sheet is an output of its own: none of the space between outputs is for it.
_STYLE = f"""<style class="tapescope-figures">
.jp-OutputArea-child:has(style.tapescope-figures){{display:none}}
{follow_page()}
</style>"""


class ShownFigure(go.Figure):
    """A `go.Figure` that leaves a picture of itself beside its data, for GitHub, an untrusted notebook, or a PDF.

    The picture is drawn when the figure is shown, of what it has then; where something was added of which tapescope has
    no drawing, there is none.
    """

    def still(self) -> str | None:
        """The picture as SVG, light where the figure has no background of its own."""
        background = self.layout.paper_bgcolor
        if background != _CLEAR:
            return figure_svg(self.to_dict(), background or LIGHT["panel"])
        svg = figure_svg(self.to_dict(), LIGHT["panel"])
        return None if svg is None else in_light(svg)

    def _ipython_display_(self) -> None:
        data = self._repr_mimebundle_()
        if not data:  # another way of plotly's to show it was chosen: a browser, say
            super()._ipython_display_()
            return
        if self.layout.paper_bgcolor == _CLEAR:
            display({"text/html": _STYLE}, raw=True)
        picture, metadata = self._picture()
        display({**picture, **data}, metadata=metadata, raw=True)

    def _picture(self) -> tuple[dict[str, Any], dict[str, Any]]:
        svg = self.still()
        if svg is None:
            return {}, {}
        # Until plotly runs its extension for JupyterLab shows the picture pixel for pixel, and cuts what is wider.
        data, metadata = bundle_of(svg, repr(self.layout.title.text or "a figure"), scale=1.0)
        if "image/png" in data:  # the figure's own data are there to be looked at more closely
            del data["image/svg+xml"]
        return {name: each for name, each in data.items() if name != "text/plain"}, metadata
