"""Decks that show themselves at the end of their cell, and the one shown last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython import get_ipython
from IPython.core.error import UsageError
from IPython.display import display
from ipywidgets import Widget

if TYPE_CHECKING:
    from .deck import Deck

_latest: list[Deck] = []


def show_after_cell(deck: Deck) -> None:
    """Displays the deck when the cell that runs now has ended, unless that cell did it, alone or in another widget."""
    _latest[:] = [deck]
    shell = get_ipython()

    def show(*_: object) -> None:
        shell.events.unregister("post_run_cell", show)
        if not deck.is_shown and deck.status != "closed":
            display(deck)

    shell.events.register("post_run_cell", show)


def latest_deck() -> Deck:
    """The deck made last.

    Raises:
        UsageError: there is none, or it was closed.
    """
    if not _latest:
        raise UsageError("no deck is open: th.debug(loss), %tapehead loss and %%tapehead loss open one")
    deck = _latest[0]
    if deck.status == "closed":
        raise UsageError("the deck was closed; th.debug(loss), %tapehead loss and %%tapehead loss open another one")
    return deck


def forget(deck: Deck) -> None:
    """It is gone, and its graph need not be kept."""
    if _latest and _latest[0] is deck:
        _latest.clear()


def names_of(deck: Deck) -> list[str]:
    """The user's variables that hold the deck, alone or in another widget."""
    shell = get_ipython()
    found = {} if shell is None else shell.user_ns
    return [
        name
        for name, value in list(found.items())
        if not name.startswith("_") and (value is deck or _holds(value, deck))
    ]


def _holds(value: object, deck: Deck) -> bool:
    return isinstance(value, Widget) and any(each is deck for each in getattr(value, "children", ()))
