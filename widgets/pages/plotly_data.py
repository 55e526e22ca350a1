"""Plotly's figures as plain data, and text that plotly shows as it is."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

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
