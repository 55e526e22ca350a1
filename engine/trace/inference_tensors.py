"""PyTorch's error for an inference tensor in a forward that trains gets a note: which one, where, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from traceback import walk_tb

from torch import Tensor, nn

from ...inspector.graph.source import is_library
from ..words.phrases import joined

_MOST_NAMES = 3


def explain_inference_tensors(error: BaseException, modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Adds the note, once; other errors stay as they are.

    Args:
        modules: those that may have such tensors, by path.
    """
    if not isinstance(error, RuntimeError) or not str(error).startswith(_ERRORS):
        return
    if any(_MADE in note for note in getattr(error, "__notes__", ())):
        return
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    places = [place for place in places if not is_library(place[0])]
    at = f" at {os.path.basename(places[-1][0])}:{places[-1][1]}" if places else ""
    names = list(_names(modules))
    several = len(names) > 1
    it, each = ("them", "each") if several else ("it", "it")
    which = f"{joined(names[:_MOST_NAMES])} {'were' if several else 'was'}" if names else "a tensor that it takes was"
    error.add_note(
        f"tapescope: the forward fails{at}: {which} {_MADE}, as a cache that an evaluation has filled. Make "
        f"{it} under torch.no_grad() instead, or take .clone() of {each} in training"
    )


_ERRORS = "Inference tensors", "Inplace update to inference tensor"
_MADE = "made under torch.inference_mode()"


def _names(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[str]:
    """Yields the names of the inference tensors that modules have as attributes, buffers or parameters."""
    for path, module in modules:
        for name, each in {**vars(module), **module._buffers, **module._parameters}.items():
            if isinstance(each, Tensor) and each.is_inference():
                yield f"{path or type(module).__name__}.{name}"
