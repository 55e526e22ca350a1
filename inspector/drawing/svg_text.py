"""Text in an SVG: escaping, measuring without a browser, and shortening."""

from __future__ import annotations

from functools import lru_cache
from unicodedata import category, east_asian_width
from xml.sax.saxutils import escape

_NOT_XML = {code: "\ufffd" for code in (*range(0x20), 0xFFFE, 0xFFFF) if code not in (0x9, 0xA, 0xD)}
_NOT_XML |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


def escaped(text: str) -> str:
    """Return `text` escaped for an SVG, without characters that XML does not allow."""
    return escape(text.translate(_NOT_XML), {'"': "&quot;"})


def pixels(value: float) -> str:
    return f"{round(value, 1):g}" if value < 100_000 else str(round(value, 1))


def moved(x: float, y: float) -> str:
    return f"translate({pixels(x)} {pixels(y)})"


# Advance widths of DejaVu Sans in 1/1000 em. It is the widest of the fonts that `system-ui` may select, so text that
# fits by this table also fits in Inter, Segoe UI, Roboto, SF and Cantarell.
_WIDTHS = dict(
    zip(
        " !\"#$%&'()*+,-./0123456789:;<=>?@",
        (318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337)
        + (636,) * 10
        + (337, 337, 838, 838, 838, 531, 1000),
        strict=True,
    )
)
_WIDTHS |= dict(
    zip(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863)
        + (748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685),
        strict=True,
    )
)
_WIDTHS |= dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz",
        (613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974)
        + (634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525),
        strict=True,
    )
)
_WIDTHS |= {"_": 500, "[": 390, "]": 390, "{": 636, "}": 636, "|": 337, "~": 838, "^": 838, "`": 500, "\\": 337}
_WIDTHS |= {"×": 838, "·": 318, "…": 1000, "–": 500}
_BOLD = 1.12  # width of weight 600 relative to weight 400


@lru_cache(maxsize=4096)
def text_width(text: str, size: float = 11, bold: bool = False) -> float:
    """Return the maximum width of `text` in pixels, in the system's sans serif font at `size` pixels."""
    units = sum(_WIDTHS.get(character) or _other_width(character) for character in text)
    return units * size / 1000 * (_BOLD if bold else 1)


@lru_cache(maxsize=4096)
def shorten(text: str, width: float, size: float = 11, bold: bool = False) -> str:
    """Return `text`, or as much of its beginning as fits into `width` pixels followed by "…"."""
    if text_width(text, size, bold) <= width:
        return text
    left = width - text_width("…", size, bold)
    kept = 0
    for character in text:
        left -= text_width(character, size, bold)
        if left < 0:
            break
        kept += 1
    return text[:kept].rstrip(". ") + "…"


@lru_cache(maxsize=4096)
def shorten_path(path: str, width: float, size: float = 11, bold: bool = False) -> str:
    """Return `path`, or "…" and as much of its end as fits into `width` pixels. The end identifies the module."""
    if text_width(path, size, bold) <= width:
        return path
    left = width - text_width("…", size, bold)
    kept = len(path)
    while kept and (left := left - text_width(path[kept - 1], size, bold)) >= 0:
        kept -= 1
    return "…" + path[kept:].lstrip(". ")


@lru_cache(maxsize=4096)
def shorten_middle(text: str, width: float, size: float = 11) -> str:
    """Return `text`, or as much of its beginning and end as fits into `width` pixels with "…" between."""
    if text_width(text, size) <= width:
        return text
    left, kept = 0.6 * width, len(text)
    while kept and (left := left - text_width(text[kept - 1], size)) >= 0:
        kept -= 1
    return shorten(text, width - text_width(text[kept:], size), size) + text[kept:]


def _other_width(character: str) -> int:
    if category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 1400 if east_asian_width(character) in "WF" else 1050
