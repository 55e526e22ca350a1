"""Text of the user's at the prompt."""

from __future__ import annotations

from rich.text import Text


def plain(text: object, style: str = "") -> Text:
    """One line as it is: without markup being read in it, or what would move a terminal's cursor."""
    shown = "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in str(text))
    return Text(shown, style=style)
