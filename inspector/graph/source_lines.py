"""The user's source lines and variable names, and warnings that point at the user's line."""

from __future__ import annotations

import contextlib
import dis
import linecache
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from inspect import CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from types import CodeType, FrameType
from typing import Protocol

import torch
from torch import Tensor, nn

from ..torch_private.thread_state import unobserved
from .frame_variables import variables_of

PACKAGE = Path(__file__).parents[2]
"""The folder in which tapescope is installed."""

OWN_CODE = (
    *(str(PACKAGE / name) + os.sep for name in ("commands", "engine", "inspector", "widgets")),
    str(PACKAGE / "errors.py"),
)
"""Path prefixes of tapescope's own code. A clone of the repository may have the user's scripts beside them."""

# The rest of engine/ is not a library, because its ready models stand for the user's code. ts.recompute and ts.find_nan
# call the user's operations themselves, and ts.training runs in hooks that the user's calls trigger.
_ENGINE = PACKAGE / "engine"
_LIBRARY_FOLDERS = (
    str(Path(torch.__file__).parent) + os.sep,
    str(PACKAGE / "inspector") + os.sep,
    str(PACKAGE / "errors.py"),
    *(str(_ENGINE / name) for name in ("api", "diagnose", "recompute", "training")),
    "<frozen",
)
_PYTHONS = os.path.dirname(os.__file__) + os.sep


class Frame(Protocol):
    """The attributes of a `traceback.FrameSummary` that are read here."""

    filename: str
    name: str

    @property
    def lineno(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Source:
    """A line of a source file.

    Attributes:
        file: its path; for a notebook's cell the name that IPython gives it.
        line: the number of the line, from 1.
        function: the name of the function in which the line is.
    """

    file: str
    line: int
    function: str

    @property
    def short(self) -> str:
        """The file's name and the line: `model.py:120`; in a notebook the cell's, `In[2]:3`.

        A cell of another process, as in a saved run, has no number: `cell:3`.
        """
        in_notebook = "ipykernel_" in self.file or self.file.startswith("<ipython-input")
        return f"{_cell_name(self.file) if in_notebook else Path(self.file).name}:{self.line}"

    def code(self, before: int = 0, after: int = 0) -> tuple[str, ...]:
        """Return the line's text with its neighbours; empty if the file cannot be read. Notebook cells can be read."""
        lines = linecache.getlines(self.file)
        return tuple(line.rstrip("\n") for line in lines[max(self.line - 1 - before, 0) : self.line + after])


def _cell_name(file: str) -> str:
    """Return the name of a notebook's cell as IPython writes it in tracebacks, `In[2]`; "cell" if it is unknown."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    known = None if shell is None else shell.compile.format_code_name(file)
    return "cell" if known is None else str(known[1])


def innermost_user_line(frames: Iterable[Frame]) -> Source | None:
    """Return the innermost frame outside torch, given the frames from the outermost to the innermost."""
    for frame in reversed(list(frames)):
        if frame.lineno is not None and not is_library(frame.filename):
            return Source(frame.filename, frame.lineno, frame.name)
    return None


def is_library(filename: str) -> bool:
    """Return whether a file belongs to torch or another library, so that its lines are not the user's."""
    return filename.startswith(_LIBRARY_FOLDERS)


def is_users(filename: str) -> bool:
    """Return whether a file belongs neither to torch, nor to Python, nor to tapescope."""
    is_pythons = filename.startswith(_PYTHONS) and "site-packages" not in filename
    return not is_library(filename) and not filename.startswith(OWN_CODE) and not is_pythons


def is_of_library(module_class: type[torch.nn.Module]) -> bool:
    """Return whether a library defines the forward of a module's class."""
    code = getattr(module_class.forward, "__code__", None)
    return code is not None and is_library(code.co_filename)


_MOST_UNPACKED = 8  # variables in one assignment

Place = tuple[CodeType, int]
"""A position in running code: the code object and the instruction's offset. A frame would keep its variables alive."""


_MOST_FILES = 10_000  # each cell of a notebook is one more
_in_library: dict[str, bool] = {}  # by file; without this cache the check would be a large part of a capture's cost


def users_place(inner: CodeType | None = None, known: Place | None = None) -> Place | None:
    """Return the innermost place outside torch that the caller was called from; `source_at` finds its line.

    Frames that only pass arguments on are skipped: libraries that wrap torch's functions call them from one line.

    Args:
        inner: code of torch whose caller's place is known.
        known: that place.
    """
    frame = sys._getframe(1)
    wrapper: Place | None = None
    while True:
        code = frame.f_code
        if code is inner:
            return known
        try:
            if not _in_library[code.co_filename]:
                place = code, frame.f_lasti
                if not (code.co_flags & CO_VARARGS or code.co_name in OVERRIDES) or not passes_on(place):
                    return place
                wrapper = wrapper or place
        except KeyError:
            if len(_in_library) >= _MOST_FILES:
                _in_library.clear()
            _in_library[code.co_filename] = is_library(code.co_filename)
            continue
        if (back := frame.f_back) is None:
            return wrapper
        frame = back


OVERRIDES = frozenset({"__torch_function__", "__torch_dispatch__"})
"""Methods by which subclasses and modes call torch's functions on behalf of the user's line."""

_MOST_PLACES = 10_000
_passing: dict[tuple[int, int], tuple[CodeType, bool]] = {}  # by id, since hashing a code object reads all its bytes


def passes_on(place: Place) -> bool:
    """Return whether the code at this place only calls another function with its own arguments."""
    code, instruction = place
    if code.co_name in OVERRIDES:
        return True
    key = id(code), instruction
    known = _passing.get(key)
    if known is None or known[0] is not code:
        if len(_passing) >= _MOST_PLACES:
            _passing.clear()
        known = _passing[key] = code, _is_call_with_own_arguments(code, instruction)
    return known[1]


def _is_call_with_own_arguments(code: CodeType, instruction: int) -> bool:
    """Return whether the instruction is `function(*args, **kwargs)`.

    This is a call with only the code's own parameters, including `*args`, and without other calls in its arguments.
    """
    steps = list(dis.get_instructions(code))
    call = next((step for step in reversed(steps) if step.offset <= instruction), None)
    if call is None or call.opname != "CALL_FUNCTION_EX":
        return False
    loads: list[str] = []  # the function's own first
    for step in steps:
        if step.offset < call.offset and _is_within(step.positions, call.positions):
            if step.opname in ("CALL", "CALL_KW", "PRECALL", "FOR_ITER"):
                return False
            if step.opname.startswith("LOAD_FAST"):
                loads += step.argval if isinstance(step.argval, tuple) else (step.argval,)  # two instructions in one
            elif step.opname.startswith("LOAD_") and not loads:
                loads.append("")
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[: count + 1 + bool(code.co_flags & CO_VARKEYWORDS)]
    return names[count] in loads[1:] and set(loads[1:]) <= set(names)


def _is_within(inner: dis.Positions | None, outer: dis.Positions | None) -> bool:
    if inner is None or outer is None or None in (*inner, *outer):
        return False
    starts = (outer.lineno, outer.col_offset) <= (inner.lineno, inner.col_offset)
    return starts and (inner.end_lineno, inner.end_col_offset) <= (outer.end_lineno, outer.end_col_offset)


def variables_assigned(code: CodeType) -> dict[int, str]:
    """Map instruction offsets to the variable or attribute (`self.cache`) to which the result is assigned directly.

    For a result that is unpacked, this is all of the variables: `a, b`.
    """
    found: dict[int, str] = {}
    steps = list(dis.get_instructions(code))
    for number, step in enumerate(steps):
        count, rest = 1, steps[number + 1 : number + 3 + _MOST_UNPACKED]
        if rest and rest[0].opname == "COPY":  # `a = b = ...` or `(a := ...)`: the first variable is taken
            rest = rest[1:]
        if rest and rest[0].opname == "UNPACK_SEQUENCE":
            count, rest = rest[0].argval, rest[1:]
        if count > _MOST_UNPACKED or len(rest) < count:
            continue
        names = [_variable_stored(*rest[place : place + 2]) for place in range(count)]
        if all(names):
            end = steps[number + 1].offset  # while a call runs, the offset is among the caches behind its instruction
            found.update(dict.fromkeys(range(step.offset, end, 2), ", ".join(names)))
    return found


def _variable_stored(step: dis.Instruction, following: dis.Instruction | None = None) -> str:
    """Return the variable that an instruction sets, or the attribute that it sets with the next one; "" if neither."""
    if step.opname.startswith("STORE_FAST") and isinstance(step.argval, tuple):  # two instructions in one
        return str(step.argval[0])
    if step.opname in ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"):
        return str(step.argval)
    if step.opname.startswith("LOAD_FAST") and following is not None and following.opname == "STORE_ATTR":
        return f"{step.argval}.{following.argval}"
    return ""


def source_at(place: Place) -> Source | None:
    """Return the line of a place; None if its code has no line."""
    code, instruction = place
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return None if line is None else Source(code.co_filename, line, code.co_name)
    return None


def warn(text: str) -> None:
    """Warn at the user's line: the innermost one that belongs to neither tapescope nor a library."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and (is_library(file := frame.f_code.co_filename) or file.startswith(_OURS)):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


_OURS = *OWN_CODE, contextlib.__file__  # a `with` block leaves tapescope's contexts through contextlib


_MOST_VALUES = 10_000
_DEPTH = 4


def variable_name(wanted: Callable[[Tensor], bool]) -> str | None:
    """Return the name of the first wanted tensor in the variables of the calling functions: `hidden[0] of train()`.

    The innermost function is searched first. Return None if no variable has such a tensor. No user code runs.

    Known limitations: modules are the only objects whose attributes are searched; other threads are not searched.
    """
    looked_at = 0
    with unobserved():
        for frame in _users_frames():
            for name, value in variables_of(frame).items():
                for expression, tensor in tensors_within(name, value, _DEPTH):
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
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def tensors_within(expression: str, value: object, depth: int) -> Iterator[tuple[str, Tensor | None]]:
    """Yield the tensors in a value, each with its expression; and None for each value that is not a tensor."""
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
                    yield from tensors_within(f"{expression}.{own}", inner, depth - 1)
            elif not name.startswith("_") or isinstance(each, Tensor):
                yield from tensors_within(f"{expression}.{name}", each, depth - 1)
    elif kind in (tuple, list):
        for number, each in enumerate(value):  # type: ignore[arg-type]
            yield from tensors_within(f"{expression}[{number}]", each, depth - 1)
    elif kind is dict:
        for key, each in list(value.items()):  # type: ignore[attr-defined]
            if type(key) in (str, int):
                yield from tensors_within(f"{expression}[{key!r}]", each, depth - 1)
