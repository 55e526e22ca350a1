"""How counts, places, shapes and dtypes read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

import torch

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)", re.IGNORECASE)

_UNITS = {"b": 1} | {
    f"{prefix}{ending}".lower(): base**power
    for ending, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate("KMGTP", 1)
}

SIZES = 'such as "8GB" (8 × 10⁹ bytes) or "8GiB" (8 × 2³⁰)'


def counted(count: int, noun: str) -> str:
    """`1 parameter`, `1,024 parameters`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def nth(number: int) -> str:
    """`1st`, `2nd`, `53rd`, `1,011th`: a task's place in its run. widgets/js/src/text.ts writes it in the same way."""
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def shape_text(shape: Sequence[int] | None) -> str:
    """`4×8`, `scalar`; `nested` of None."""
    return "nested" if shape is None else "×".join(map(str, shape)) or "scalar"


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")


def bytes_of(text: str, name: str, wanted: str) -> int:
    """The bytes that a size says: "8GB", "1.5 GiB", "512 MiB", "100 B". GB counts in thousands, GiB in 1,024s.

    Args:
        text: the size.
        name: of the argument.
        wanted: what to pass, in words.

    Raises:
        ValueError: it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    unit = None if found is None else _UNITS.get(found[2].lower())
    if found is None or unit is None:
        doubt = "" if found is None or found[2].lower() not in "kmgtp" else f": {found[2]}B and {found[2]}iB differ"
        raise ValueError(f"{name} is {text!r}{doubt}; expected {wanted}, or a size {SIZES}")
    return int(Decimal(found[1]) * unit)


def refuse_bare_size(value: int | float, name: str, otherwise: str = "") -> None:
    """Refuses a number of bytes that nobody means: 50 is a size without its unit, or percent.

    Args:
        value: the bytes, from a number.
        name: of the argument.
        otherwise: what it may have meant beside a size, to stand at the end.

    Raises:
        ValueError: it is one from 2 to 1,023; 1 asks for as little as can be.
    """
    if isinstance(value, int) and 1 < value < 1024:
        raise ValueError(
            f'{name} is {value}, which would be {value} bytes; write a size with its unit, such as "{value} MiB" or '
            f'"{value}GB", or "{value} B" if it is that{otherwise}'
        )
