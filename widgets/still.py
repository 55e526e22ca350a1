"""A picture of a deck, for where no page runs: GitHub, nbconvert, a notebook opened without its kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..inspector.svg import graph_to_svg

if TYPE_CHECKING:
    from .deck import Deck

_CELL_WIDTH = 900  # pixels which an output cell of a notebook has at least on a usual screen
_MOST_SHOWN = 2_000  # tasks: a larger picture makes the notebook slow


def still(deck: Deck) -> dict[str, str]:
    """The graph as an SVG, by MIME type. The live page hides it: it knows it by its id."""
    graph = deck.graph
    if len(graph) > _MOST_SHOWN:
        return {"text/plain": repr(deck)}
    picture = graph_to_svg(graph, widest=_CELL_WIDTH)
    return {
        "image/svg+xml": picture.replace("<svg ", f'<svg id="tapehead-still-{deck._id}" ', 1),
        "text/plain": repr(deck),
    }
