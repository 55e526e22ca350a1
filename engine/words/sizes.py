"""Bytes and shares as people read them. widgets/js/src/text.ts writes bytes in the same way."""

from __future__ import annotations

import math
from numbers import Real

from ...inspector.arguments import expect_number

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_UNITS_OF_TEN = ("B", "kB", "MB", "GB", "TB")


def size_text(nbytes: int) -> str:
    """`0 B`, `512 B`, `1.5 KiB`, `256 KiB`, `51.0 MiB`, `-20 KiB`: binary units, one digit after the point."""
    expect_number(nbytes, Real, "nbytes", "a number of bytes")
    scale = unit_of(nbytes)
    if scale == 0:
        return f"{nbytes} B"
    if scale == 1 and nbytes % 1024 == 0:
        return f"{nbytes // 1024} KiB"
    return f"{nbytes / 1024**scale:.1f} {_UNITS[scale]}"


def both_units(nbytes: int) -> str:
    """`7.5 GiB (8.0 GB)`: in binary units and in those of ten, for sizes that somebody has asked for. `512 B`."""
    if nbytes < 1024:
        return size_text(nbytes)
    power = 1
    while power + 1 < len(_UNITS_OF_TEN) and nbytes >= 999.5 * 1000**power:
        power += 1
    return f"{size_text(nbytes)} ({nbytes / 1000**power:.1f} {_UNITS_OF_TEN[power]})"


def unit_of(nbytes: int) -> int:
    """Which unit a size is written in: 0 for bytes, 1 for KiB, and so on. 1,023.9 KiB is already 1.0 MiB."""
    scale = 0
    while scale + 1 < len(_UNITS) and abs(nbytes) >= (1024 if scale == 0 else 999.5 * 1024**scale):
        scale += 1
    return scale


def unit_name(scale: int) -> str:
    """`MiB` for 2."""
    return _UNITS[scale]


def share_text(part: int, whole: int) -> str:
    """`94 %`, and `under 1 %` for what is less."""
    expect_number(part, Real, "part", "a number of bytes")
    expect_number(whole, Real, "whole", "a number of bytes")
    share = 100 * part / whole if whole else 0.0
    return "under 1 %" if 0 < share < 1 else f"{share:.0f} %"


def percent_text(share: float) -> str:
    """`33 %`, `0.035 %`: of a relative difference, two digits. `–` where there is no comparing, and it is infinite."""
    expect_number(share, Real, "share", "a number")
    if not math.isfinite(share):
        return "–"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
