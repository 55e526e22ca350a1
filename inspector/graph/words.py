"""How counts, shapes and dtypes read."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def counted(count: int, noun: str) -> str:
    """`1 parameter`, `1,024 parameters`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shape_text(shape: Sequence[int] | None) -> str:
    """`4×8`, `scalar`; `nested` of None."""
    return "nested" if shape is None else "×".join(map(str, shape)) or "scalar"


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")
