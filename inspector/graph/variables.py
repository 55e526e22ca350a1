"""What a program calls a tensor: the variables of the functions that are running, and what these hold."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType

from torch import Tensor, nn

from ..torch_internals.modes import unobserved
from .source import OWN_CODE, is_library

_MOST_VALUES = 10_000
_DEPTH = 4


def variable_name(wanted: Callable[[Tensor], bool]) -> str | None:
    """The first such tensor among the variables of the functions that called this one, from the innermost on:
    `hidden[0] of train()`. None where none of them has it; no code of the user's is run to find it.

    Known limitations: of objects only modules are looked into; another thread's variables are not seen.
    """
    looked_at = 0
    with unobserved():
        for frame in _users_frames():
            for name, value in list(frame.f_locals.items()):
                for expression, tensor in _tensors(name, value, _DEPTH):
                    looked_at += 1
                    if tensor is not None and wanted(tensor):
                        function = frame.f_code.co_name
                        return f"{expression}{'' if function.startswith('<') else f' of {function}()'}"
                    if looked_at > _MOST_VALUES:
                        return None
    return None


def _users_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file) and not file.startswith(OWN_CODE):
            yield frame
        frame = frame.f_back


def _tensors(expression: str, value: object, depth: int) -> Iterator[tuple[str, Tensor | None]]:
    """The tensors in a value, each with how to write it; None for each value that is none."""
    kind = type(value)
    if issubclass(kind, Tensor):
        assert isinstance(value, Tensor)
        yield expression, value
        return
    yield expression, None
    if not depth:
        return
    if isinstance(value, nn.Module) and issubclass(kind, nn.Module):
        for name, each in list(vars(value).items()):
            if name in ("_modules", "_parameters", "_buffers"):
                for own, inner in list(each.items()):
                    yield from _tensors(f"{expression}.{own}", inner, depth - 1)
            elif not name.startswith("_") or isinstance(each, Tensor):
                yield from _tensors(f"{expression}.{name}", each, depth - 1)
    elif kind in (tuple, list):
        for number, each in enumerate(value):  # type: ignore[arg-type]
            yield from _tensors(f"{expression}[{number}]", each, depth - 1)
    elif kind is dict:
        for key, each in list(value.items()):  # type: ignore[attr-defined]
            if type(key) in (str, int):
                yield from _tensors(f"{expression}[{key!r}]", each, depth - 1)
