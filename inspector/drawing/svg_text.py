"""Texts, numbers and places as an SVG has them."""

from __future__ import annotations

from xml.sax.saxutils import escape

_NOT_XML = {code: "\ufffd" for code in (*range(0x20), 0xFFFE, 0xFFFF) if code not in (0x9, 0xA, 0xD)}
_NOT_XML |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


def escaped(text: str) -> str:
    """Anything as text of an SVG: escaped, and without what XML can't hold."""
    return escape(text.translate(_NOT_XML), {'"': "&quot;"})


def pixels(value: float) -> str:
    return f"{round(value, 1):g}" if value < 100_000 else str(round(value, 1))


def moved(x: float, y: float) -> str:
    return f"translate({pixels(x)} {pixels(y)})"
