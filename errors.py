"""Short tracebacks: an error that tapescope raises deliberately ends at the user's call of `ts.<name>`.

Frames inside of tapescope are removed from such errors. Set the environment variable TAPESCOPE_TRACEBACKS to "full" to
keep all frames.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from dis import opmap
from functools import cached_property, wraps
from inspect import isclass, isfunction
from types import TracebackType
from typing import Any, TypeVar, cast

FULL = "TAPESCOPE_TRACEBACKS"
"""The environment variable that keeps all frames if it is "full"."""

_PACKAGE = __name__.partition(".")[0]
_OTHERS = {"torch", "traitlets"}  # their errors are clear as well; a deck's attributes are traits
_REMOVABLE = {_PACKAGE, *_OTHERS, *sys.stdlib_module_names}
_RAISE = opmap["RAISE_VARARGS"]
_MARK = "_ends_where_called"

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


def public_object(found: object, module: str, name: str) -> Any:
    """Return a public object. If it is a function or class, its deliberate errors end at the user's call.

    Args:
        found: the function, class or constant.
        module, name: its public location, which pickle stores.
    """
    if isclass(found):
        own = vars(found)
        init = own.get("__init__")
        # Dataclasses without `__post_init__` are skipped: they check nothing, and thousands of them are created.
        is_checking = not is_dataclass(found) or "__post_init__" in own
        if isfunction(init) and not hasattr(init, "__wrapped__") and is_checking:
            found.__init__ = ending_where_called(init)  # type: ignore[method-assign]
    if not isfunction(found):
        return found
    call = ending_where_called(found)
    # torch.compile must not trace into the wrapper.
    if "torch" in sys.modules:
        from .inspector.torch_private.compiled import keep_compiler_out

        keep_compiler_out(call, of_calls=False)
    call.__module__, call.__qualname__ = module, name
    return call


def verbs_end_where_called(kind: Class) -> Class:
    """Class decorator that applies `ending_where_called` to the class's own public methods and properties."""
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


def ending_where_called(function: Function) -> Function:
    """Function decorator that removes tapescope's frames from deliberate errors."""
    if hasattr(function, _MARK):  # dataclass(slots=True) creates a new class from an already wrapped one
        return function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if (sentence := missing_in_torch(error)) is not None:
                raise RuntimeError(sentence) from error
            caller = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
            # If the caller is tapescope itself, the error ends at an outer call.
            if os.environ.get(FULL) != "full" and caller != _PACKAGE and _is_deliberate(error):
                error.__traceback__ = None
            raise  # a bare raise does not add this frame again

    setattr(call, _MARK, True)
    return cast("Function", call)


def missing_in_torch(error: Exception) -> str | None:
    """Return a sentence for an error caused by a private name that this version of torch does not have."""
    if not isinstance(error, AttributeError | ImportError) or "torch" not in sys.modules:
        return None
    from .inspector.torch_private.private_names import explain

    return explain(error)


def _is_deliberate(error: Exception) -> bool:
    """Return whether an error is deliberate: raised by a `raise` of tapescope, by torch, or by the system for a file.

    An error about an invalid call is also deliberate. Bugs of tapescope and errors in the user's own code are not; they
    keep all of their frames.
    """
    traceback = last = error.__traceback__
    if traceback is not None and traceback.tb_next is None:
        return True  # the function did not start, because an argument is missing or unknown
    while traceback is not None:
        if _package_of(traceback) not in _REMOVABLE:
            return False
        last, traceback = traceback, traceback.tb_next
    if last is None:
        return False
    if _package_of(last) == _PACKAGE:
        # The C++ code of torch, which torch_private calls, has no frame of its own.
        module = str(last.tb_frame.f_globals.get("__name__", ""))
        is_torchs = type(error) is RuntimeError and module.startswith(f"{_PACKAGE}.inspector.torch_private.")
        return isinstance(error, OSError) or is_torchs or last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE
    no_path = _package_of(last) in ("pathlib", "posixpath", "ntpath") and isinstance(error, TypeError)
    return _package_of(last) in _OTHERS or isinstance(error, OSError) or no_path


def _package_of(traceback: TracebackType) -> str:
    return str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
