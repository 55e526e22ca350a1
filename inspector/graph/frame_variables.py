"""The variables of running functions, read without keeping alive the objects that they release."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from types import FrameType

from torch import nn

MODULE_CALL = nn.Module._call_impl.__code__
_NOBODY_ELSE = 3  # references to a dict held only by its frame: the frame, our local variable, getrefcount's argument


def is_of_function(frame: FrameType) -> bool:
    """Return whether the frame is a function's. The variables of a module or class body are in a separate dict."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def variables_of(frame: FrameType) -> dict[str, object]:
    """Return the variables of a function's frame.

    Up to Python 3.12 the frame keeps the dict `f_locals`, which would keep alive objects that the function has
    released. So the dict is cleared, unless the user has it, too, by `locals()`, or a trace function runs (pdb): then
    removing an entry would delete the function's variable.
    """
    shown = frame.f_locals
    variables = {name: shown[name] for name in list(shown)}
    if type(shown) is dict and sys.getrefcount(shown) <= _NOBODY_ELSE:
        is_traced = frame.f_trace is not None or sys.gettrace() is not None
        if is_of_function(frame) and not is_traced:
            code = frame.f_code
            for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
                shown.pop(name, None)
    return variables


def running_modules(frames: Iterable[FrameType]) -> list[nn.Module]:
    """Return the modules that these frames call, in the frames' order.

    Only calls by nn.Module count: other methods of a module also run outside of its forward.
    """
    objects = (variables_of(frame).get("self") for frame in frames if frame.f_code is MODULE_CALL)
    return [each for each in objects if isinstance(each, nn.Module)]
