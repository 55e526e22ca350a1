"""Plotly figures as plain data, and escaped text for their labels."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

Drawing = dict[str, Any]
LINE = 80  # characters per line of a hover box; plotly does not break lines


def escaped(text: str) -> str:
    """Escape a user's text for a label. Plotly interprets tags, entities, and TeX between dollar signs."""
    text = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")


def wrapped(text: str) -> str:
    """Escape a text for a hover box and break it into lines of `LINE` characters."""
    return "<br>".join(map(escaped, wrap(text, LINE)))


def cut(text: str, most: int) -> str:
    """Return the text, shortened to `most` characters with an ellipsis if it is longer."""
    return text if len(text) <= most else text[: most - 1] + "…"
