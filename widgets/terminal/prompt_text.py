"""Text of the user's at the prompt."""

from __future__ import annotations

import re

from rich.text import Text


def plain(text: object, style: str = "") -> Text:
    """One line as it is: without markup being read in it, or what would move a terminal's cursor."""
    shown = "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in str(text))
    return Text(shown, style=style)


def step_words(text: str) -> tuple[str, str | None]:
    """`3 on cuda:0`: how many or which task, and of which device; None where none is named."""
    match = re.fullmatch(r"(?:(.*) )?on (\S+)", text.strip())
    return (match[1] or "", match[2]) if match else (text, None)
