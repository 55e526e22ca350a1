"""How counts, places, shapes and dtypes read."""

from __future__ import annotations

from collections.abc import Sequence

import torch


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
