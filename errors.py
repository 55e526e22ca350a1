"""What users call as `ts.<name>`, and a deck's verbs: an error that is said on purpose ends at their own line, not
inside of tapescope."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from dis import opmap
from functools import cached_property, wraps
from inspect import isclass, isfunction
from types import FrameType, TracebackType
from typing import Any, TypeVar, cast

FULL = "TAPESCOPE_TRACEBACKS"
"""The environment variable that, set to "full", leaves all frames where they are."""

_OURS = __name__.partition(".")[0]
_OTHERS = {"torch", "traitlets"}  # whose own refusals are sentences; a deck's attributes are traits
_ON_THE_WAY = {_OURS, *_OTHERS, *sys.stdlib_module_names}
_RAISE = opmap["RAISE_VARARGS"]
_MARK = "_ends_where_called"

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


def through_the_door(found: object, module: str, name: str) -> Any:
    """What `ts.<name>` gives: of a function's errors those that are said on purpose end where it is called.

    Args:
        found: the function, class or constant.
        module, name: where users find it, and pickle.
    """
    if isclass(found):
        _constructor_ends_where_called(found)
    if not isfunction(found):
        return found
    call = ending_where_called(found)
    if "torch" in sys.modules:
        from .inspector.torch_private.compiled import look_past

        look_past(call)
    call.__module__, call.__qualname__ = module, name
    return call


def verbs_end_where_called(kind: Class) -> Class:
    """A decorator: the same for the methods and properties that a class has of its own, and that users call."""
    for name, found in [*vars(kind).items()]:
        if name.startswith("_") and name not in ("__getitem__", "__enter__"):
            continue
        if isfunction(found):
            setattr(kind, name, ending_where_called(found))
        elif isinstance(found, staticmethod | classmethod):
            setattr(kind, name, type(found)(ending_where_called(found.__func__)))
        elif isinstance(found, cached_property):
            found.func = ending_where_called(found.func)
        elif isinstance(found, property):
            get = None if found.fget is None else ending_where_called(found.fget)
            put = None if found.fset is None else ending_where_called(found.fset)
            setattr(kind, name, property(get, put, found.fdel, found.__doc__))
    return kind


def _constructor_ends_where_called(kind: type) -> None:
    """Of a class of ours that looks at what it is given. Dataclasses that do not are made by the thousand."""
    own = vars(kind)
    found = own.get("__init__")
    if isfunction(found) and not hasattr(found, "__wrapped__") and (not is_dataclass(kind) or "__post_init__" in own):
        kind.__init__ = ending_where_called(found)  # type: ignore[misc]


def ending_where_called(function: Function) -> Function:
    """A decorator: the same for one function."""
    if hasattr(function, _MARK):  # a dataclass with slots is made of the class that has been seen already
        return function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if (sentence := missing_in_torch(error)) is not None:
                raise RuntimeError(sentence) from error
            if os.environ.get(FULL) != "full" and not _is_ours(sys._getframe(1)) and _ends_in_a_sentence(error):
                error.__traceback__ = None
            raise  # without this frame: it is added when an error passes, not where one is caught

    setattr(call, _MARK, True)
    return cast("Function", call)


def missing_in_torch(error: Exception) -> str | None:
    """Return a sentence for an error caused by a private name that this version of torch does not have."""
    if not isinstance(error, AttributeError | ImportError) or "torch" not in sys.modules:
        return None
    from .inspector.torch_private.private_names import explain

    return explain(error)


def _ends_in_a_sentence(error: Exception) -> bool:
    """Whether no code of the user's ran, and somebody refused on purpose: tapescope by a `raise`, torch, or the system
    for want of a file; or the call itself did not fit. A mistake of ours, and an error in a user's own code, keep all
    of their frames."""
    traceback = last = error.__traceback__
    if traceback is not None and traceback.tb_next is None:
        return True  # nothing of the function has run: an argument is missing, or unknown
    while traceback is not None:
        if _package_of(traceback) not in _ON_THE_WAY:
            return False
        last, traceback = traceback, traceback.tb_next
    if last is None:
        return False
    if _package_of(last) == _OURS:
        refused = isinstance(error, OSError) or (type(error) is RuntimeError and _calls_torch(last))
        return refused or _is_raise(last)
    no_path = _package_of(last) in ("pathlib", "posixpath", "ntpath") and isinstance(error, TypeError)
    return _package_of(last) in _OTHERS or isinstance(error, OSError) or no_path


def _is_ours(frame: FrameType) -> bool:
    """Whether a function of ours called: who called that one is to see where it ends."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OURS


def _is_raise(traceback: TracebackType) -> bool:
    return traceback.tb_frame.f_code.co_code[traceback.tb_lasti] == _RAISE


def _calls_torch(traceback: TracebackType) -> bool:
    """Whether it is of the one room that calls torch's own code, which raises without a frame."""
    return str(traceback.tb_frame.f_globals.get("__name__", "")).startswith(f"{_OURS}.inspector.torch_private.")


def _package_of(traceback: TracebackType) -> str:
    return str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
