"""What users call as `th.<name>`, and a deck's verbs: an error that is said on purpose ends at their own line, not
inside of tapehead."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dis import opmap
from functools import wraps
from inspect import isfunction
from types import TracebackType
from typing import Any, TypeVar

FULL = "TAPEHEAD_TRACEBACKS"
"""The environment variable that, set to "full", leaves all frames where they are."""

_OURS = __name__.partition(".")[0]
_ON_THE_WAY = {_OURS, "torch", *sys.stdlib_module_names}
_RAISE = opmap["RAISE_VARARGS"]

Class = TypeVar("Class", bound=type)


def through_the_door(name: str, found: object) -> Any:
    """What `th.<name>` gives: of a function's errors those that are said on purpose end where it is called."""
    if not isfunction(found):
        return found
    call = _ending_where_called(found)
    if "torch" in sys.modules:
        from .inspector.torch_internals.compiled import look_past

        look_past(call)
    call.__module__, call.__qualname__ = __package__ or "", name  # where pickle finds it
    return call


def verbs_end_where_called(kind: Class) -> Class:
    """A decorator: the same for the methods and properties that a class has of its own, and that users call."""
    for name, found in [*vars(kind).items()]:
        if name.startswith("_"):
            continue
        if isfunction(found):
            setattr(kind, name, _ending_where_called(found))
        elif isinstance(found, property) and found.fget is not None:
            setattr(kind, name, found.getter(_ending_where_called(found.fget)))
    return kind


def _ending_where_called(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if os.environ.get(FULL) != "full" and _ends_in_a_sentence(error):
                error.__traceback__ = None
            raise  # without this frame: it is added when an error passes, not where one is caught

    return call


def _ends_in_a_sentence(error: Exception) -> bool:
    """Whether no code of the user's ran, and somebody refused on purpose: tapehead by a `raise`, torch, or the system
    for want of a file. A mistake of ours, and an error in a user's own code, keep all of their frames."""
    traceback = last = error.__traceback__
    while traceback is not None:
        if _package_of(traceback) not in _ON_THE_WAY:
            return False
        last, traceback = traceback, traceback.tb_next
    if last is None:
        return False
    if _package_of(last) == _OURS:
        return last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE
    return _package_of(last) == "torch" or isinstance(error, OSError)


def _package_of(traceback: TracebackType) -> str:
    return str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
