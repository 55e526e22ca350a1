"""Plotly figures in notebooks: they follow the page's theme, and store a picture for viewers without scripts."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from IPython.display import display

from .figure_still import figure_svg
from .png import bundle_of
from .theme import AUTO, LIGHT, follow_page, in_light

_CLEAR = AUTO["panel"]
# The style sheet is a separate output. Hiding that output also removes the space around it.
_STYLE = f"""<style class="tapescope-figures">
.jp-OutputArea-child:has(style.tapescope-figures){{display:none}}
{follow_page()}
</style>"""


class ShownFigure(go.Figure):
    """A `go.Figure` that stores a picture beside its data, for GitHub, an untrusted notebook, or a PDF.

    The picture is drawn when the figure is shown. If the figure then has anything that tapescope cannot draw, there is
    no picture.
    """

    def still(self) -> str | None:
        """Return the picture as SVG, light if the figure has no background; None if it is not supported."""
        background = self.layout.paper_bgcolor
        if background != _CLEAR:
            return figure_svg(self.to_dict(), background or LIGHT["panel"])
        svg = figure_svg(self.to_dict(), LIGHT["panel"])
        return None if svg is None else in_light(svg)

    def _ipython_display_(self) -> None:
        data = self._repr_mimebundle_()
        if not data:  # another plotly renderer was chosen, such as a browser
            super()._ipython_display_()
            return
        if self.layout.paper_bgcolor == _CLEAR:
            display({"text/html": _STYLE}, raw=True)
        picture: dict[str, Any] = {}
        metadata: dict[str, Any] = {}
        if (svg := self.still()) is not None:
            # Before plotly runs, its JupyterLab extension shows the picture at its full size and clips it: use scale 1.
            picture, metadata = bundle_of(svg, "", scale=1.0)
            del picture["text/plain"]
            if "image/png" in picture:  # the SVG would only add detail, which the figure's data already provide
                del picture["image/svg+xml"]
        display({**picture, **data}, metadata=metadata, raw=True)
