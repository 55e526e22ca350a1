"""Automatic display of decks at the end of their cell, the latest deck, and the holders of a widget."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Protocol

from IPython import get_ipython
from IPython.core.error import UsageError
from IPython.display import display
from ipywidgets import Widget
from ipywidgets.widgets import widget as ipywidgets_widget

_NONE_OPEN = "ts.debug(loss), %tapescope loss and %%tapescope loss open"
_MOST_LOOKED_AT = 1_000  # entries of a user's list: longer ones hold data, not decks


class Shown(Protocol):
    """The part of a deck that this module uses."""

    @property
    def is_shown(self) -> bool: ...

    @property
    def status(self) -> str: ...


_latest: list[Shown] = []


def show_after_cell(deck: Shown) -> None:
    """Display the deck when the current cell ends, unless the cell displayed it itself, alone or in another widget.

    If no cell is running, as in a button's callback, the deck is displayed at once. Without a Jupyter kernel nothing is
    displayed: marimo displays the last value of a cell.
    """
    _latest[:] = [deck]
    shell = get_ipython()
    if getattr(shell, "kernel", None) is None:
        return
    if shell.get_parent().get("header", {}).get("msg_type") != "execute_request":
        display(deck)
        return

    def show(*_: object) -> None:
        shell.events.unregister("post_run_cell", show)
        if not deck.is_shown and deck.status != "closed":
            display(deck)

    shell.events.register("post_run_cell", show)


def latest_deck() -> Any:
    """Return the latest deck.

    Raises:
        UsageError: there is no deck, or it was closed.
    """
    if not _latest:
        raise UsageError(f"no deck is open: {_NONE_OPEN} one")
    return _latest[0]


def forget(deck: Shown) -> None:
    """Forget a closed deck, so that its graph is freed."""
    if _latest and _latest[0] is deck:
        _latest.clear()


def is_held(widget: Widget) -> bool:
    """Return whether another widget has it among its children."""
    return any(widget in _children(other) for other in list(ipywidgets_widget._instances.values()))


def is_laid_out_by(layout: Widget) -> bool:
    """Return whether a widget uses this layout."""
    return any(getattr(other, "layout", None) is layout for other in list(ipywidgets_widget._instances.values()))


def names_of(widget: Widget) -> list[str]:
    """Return the user's variables that hold the widget, directly, in a list or dict, or in another widget.

    IPython's own variables (`_`, `Out`) do not count. Other objects of the user are not searched.
    """
    shell = get_ipython()
    if shell is None:
        return []
    hidden = shell.user_ns_hidden
    return [
        name
        for name, value in list(shell.user_ns.items())
        if name not in hidden and not name.startswith("_") and _holds(value, widget)
    ]


def _holds(value: object, widget: Widget) -> bool:
    waiting, seen = [value], set()
    while waiting:
        each = waiting.pop()
        if each is widget:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            waiting.extend(_parts(each))
    return False


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, Widget):
        yield from _children(value)
    elif isinstance(value, dict | list | tuple | set | frozenset) and len(value) <= _MOST_LOOKED_AT:
        yield from list(value.values() if isinstance(value, dict) else value)


def _children(widget: Widget) -> Collection[Widget]:
    children: Collection[Widget] = getattr(widget, "children", ())
    return children
