"""Sentences about programs that cannot be run on fake tensors."""

from __future__ import annotations

from pathlib import Path
from traceback import extract_tb

import torch

from ...inspector.graph.source_lines import innermost_user_line


def numbers_sentence(error: Exception, place: str, verb: str = "ts.fits") -> str:
    """Return the sentence about a value that fake tensors lack, with its line; `place`: of a backward's operation."""
    line = innermost_user_line(frame for frame in extract_tb(error.__traceback__) if not _is_ours(frame.filename))
    where = "" if line is None or place else f"{line.short}: "
    operator = str(error).removeprefix("aten.").partition(".")[0]
    what = (
        "the value of a tensor, as .item() does"
        if "scalar_dense" in operator
        else f"the number of elements that {operator} finds"
    )
    return (
        f"{where}{place or 'the program'} needs {what}, and fake tensors have no values. Pass {verb} a version "
        "without it, or measure a step that fits with ts.profile"
    )


def unfakeable_sentence(error: Exception, operation: str, verb: str = "ts.fits") -> str:
    """Return the sentence about an operation that does not run on fake tensors, with its line."""
    frames = extract_tb(error.__traceback__)
    line = innermost_user_line(frame for frame in frames if not _is_ours(frame.filename))
    steps = any(Path(frame.filename).is_relative_to(_OPTIMIZERS) for frame in frames)
    where = "in the optimizer's step: " if steps else "" if line is None else f"{line.short}: "
    return (
        f"{where}{verb} trains on fake tensors, on which {operation} does not run; few operations on sparse, nested, "
        f"quantized and MKL-DNN tensors do, and torch.cond and similar ones do not. Pass {verb} a version without it "
        "(for nn.Embedding, one with sparse=False), or measure a step with ts.profile_step"
    )


_OPTIMIZERS = Path(torch.optim.__file__).parent


def _is_ours(filename: str) -> bool:
    return any(Path(filename).is_relative_to(folder) for folder in _OURS)


_OURS = Path(__file__).parents[1], Path(__file__).parents[2] / "inspector"
