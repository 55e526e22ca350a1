"""Sizes and counts as text, and sizes parsed from text: "8GB", 51.0 MiB, 1,024 tasks, 53rd, 4×8."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING

from ..validation import expect_number

if TYPE_CHECKING:
    import torch

_SIZE_PATTERN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)", re.IGNORECASE)

_BYTES_OF_UNIT = {"b": 1} | {
    f"{prefix}{ending}".lower(): base**power
    for ending, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate("KMGTP", 1)
}

SIZES = 'such as "8GB" (8 × 10⁹ bytes) or "8GiB" (8 × 2³⁰)'


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 parameter`, `1,024 parameters`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def nth(number: int) -> str:
    """Return an ordinal: `1st`, `2nd`, `53rd`, `1,011th`. widgets/js/src/format.ts does the same."""
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def shape_text(shape: Sequence[int] | None) -> str:
    """Return a shape as text: `4×8`, `scalar`; `nested` for None."""
    return "nested" if shape is None else "×".join(map(str, shape)) or "scalar"


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")


def bytes_of(text: str, name: str, wanted: str = "") -> int:
    """Parse a size: "8GB", "1.5 GiB", "512 MiB", "100 B". GB uses powers of 1,000, GiB powers of 1,024.

    Args:
        text: the size.
        name: name of the argument, for the message.
        wanted: description of the expected value if it need not be a size, for the message.

    Raises:
        ValueError: `text` is not a size.
    """
    found = _SIZE_PATTERN.fullmatch(text.strip())
    unit = None if found is None else _BYTES_OF_UNIT.get(found[2].lower())
    if found is None or unit is None:
        doubt = "" if found is None or found[2].lower() not in "kmgtp" else f": {found[2]}B and {found[2]}iB differ"
        raise ValueError(f"{name} is {text!r}{doubt}; expected {wanted and f'{wanted}, or '}a size {SIZES}")
    return int(Decimal(found[1]) * unit)


def refuse_bare_size(value: int | float, name: str, otherwise: str = "") -> None:
    """Reject a number of bytes that is too small to be meant: 50 lacks its unit, or is a percentage.

    Args:
        value: the number of bytes.
        name: the argument's name.
        otherwise: another meaning that the user may have intended, for the end of the message.

    Raises:
        ValueError: the number is from 2 to 1,023. 1 is allowed and means "as little as possible".
    """
    if isinstance(value, int) and 1 < value < 1024:
        raise ValueError(
            f'{name} is {value}, which would be {value} bytes; write a size with its unit, such as "{value} MiB" or '
            f'"{value}GB", or "{value} B" if it is that{otherwise}'
        )


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_UNITS_OF_TEN = ("B", "kB", "MB", "GB", "TB")


def size_text(nbytes: int) -> str:
    """Return a size in binary units: `0 B`, `512 B`, `1.5 KiB`, `256 KiB`, `51.0 MiB`, `-20 KiB`."""
    expect_number(nbytes, Real, "nbytes", "a number of bytes")
    scale = unit_of(nbytes)
    if scale == 0:
        return f"{nbytes} B"
    if scale == 1 and nbytes % 1024 == 0:
        return f"{nbytes // 1024} KiB"
    return f"{nbytes / 1024**scale:.1f} {_UNITS[scale]}"


def both_units(nbytes: int) -> str:
    """Return a size in binary and decimal units, `7.5 GiB (8.0 GB)` or `512 B`, for sizes passed by the user."""
    if nbytes < 1024:
        return size_text(nbytes)
    power = 1
    while power + 1 < len(_UNITS_OF_TEN) and nbytes >= 999.5 * 1000**power:
        power += 1
    return f"{size_text(nbytes)} ({nbytes / 1000**power:.1f} {_UNITS_OF_TEN[power]})"


def unit_of(nbytes: int) -> int:
    """Return the unit for a size: 0 for bytes, 1 for KiB, and so on. 1,023.9 KiB already rounds to 1.0 MiB."""
    scale = 0
    while scale + 1 < len(_UNITS) and abs(nbytes) >= (1024 if scale == 0 else 999.5 * 1024**scale):
        scale += 1
    return scale


def unit_name(scale: int) -> str:
    """Return the name of a unit: `MiB` for 2."""
    return _UNITS[scale]


def share_text(part: int, whole: int) -> str:
    """Return a share as text: `94 %`, or `under 1 %` for smaller ones."""
    expect_number(part, Real, "part", "a number of bytes")
    expect_number(whole, Real, "whole", "a number of bytes")
    share = 100 * part / whole if whole else 0.0
    return "under 1 %" if 0 < share < 1 else f"{share:.0f} %"


def percent_text(share: float) -> str:
    """Return a relative difference as text with two digits: `33 %`, `0.035 %`; `–` if it is infinite."""
    expect_number(share, Real, "share", "a number")
    if not math.isfinite(share):
        return "–"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def number_text(value: object) -> str:
    """Return a value with six digits."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:.6g}"
    return str(value)


def index_text(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"
