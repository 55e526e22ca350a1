"""The Python state of hooks and custom Functions, including iterators, read before a task and restored by undo."""

from __future__ import annotations

import dis
import gc
import io
import itertools
import sys
from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import partial
from operator import is_, length_hint
from types import CellType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import dataloader
from torch.utils.hooks import BackwardHook

from ...inspector.graph.source_lines import Source
from ...inspector.torch_private.hooks import ModuleHook
from ...inspector.torch_private.tensors import version_of
from .undo_snapshots import (
    Array,
    ByKey,
    ClosureCell,
    Entries,
    OfClass,
    OfSlots,
    Place,
    PlaceChange,
    Set,
    drawn_by,
    drawn_by_all,
)

_SEQUENCES: tuple[Any, ...] = ([], (), "", "ä", b"", bytearray())
_BY_INDEX = {type(iter(each)) for each in _SEQUENCES} | {type(reversed([])), reversed}
"""Iterators of sequences, whose `__reduce__` tells the index. Another count would be wrong of a list that grows."""

_DICTS: tuple[Any, ...] = ({}, {}.values(), {}.items())
_COUNTED: tuple[Any, ...] = (range(1), range(1 << 70), set(), *_DICTS)
_BY_REST = {type(iter(each)) for each in _COUNTED} | {type(reversed(each)) for each in _DICTS} | {itertools.repeat}
"""Those that tell how much is left."""

_BY_OTHERS = {zip, map, filter, enumerate, type(iter(int, 1))}
_BY_OTHERS |= {
    getattr(itertools, name)
    for name in (
        *("accumulate", "batched", "chain", "compress", "dropwhile", "filterfalse", "islice", "pairwise", "starmap"),
        *("takewhile", "zip_longest"),
    )
    if hasattr(itertools, name)  # batched: since Python 3.12
}
"""Those that go on as the iterators do to which they refer."""


@dataclass(frozen=True, slots=True)
class IteratorProgress:
    """How far an iterator, or a file that is read, was.

    Attributes:
        others: what it referred to: of a generator also what waits on its stack.
    """

    iterator: Iterator[Any]
    at: object
    others: tuple[Any, ...]

    @staticmethod
    def of(iterator: Iterator[Any]) -> IteratorProgress | None:
        """None for one of which that can't be seen."""
        at = _position_of(iterator)
        others = () if isinstance(iterator, io.IOBase) else tuple(gc.get_referents(iterator))
        return None if at is None else IteratorProgress(iterator, at, others)

    @property
    def is_another(self) -> bool:
        """Whether somebody has advanced it since."""
        now = IteratorProgress.of(self.iterator)
        if now is None or now.at != self.at or len(now.others) != len(self.others):
            return True
        return not all(map(is_, now.others, self.others))


def is_iterator(found: object) -> bool:
    """Whether it is an iterator that is written in C, or a file that is only read. Others keep what they are in
    attributes; a file that is written stays written."""
    if isinstance(found, io.IOBase):
        return not found.closed and found.readable() and not found.writable()
    return isinstance(found, Iterator) and not hasattr(found, "__dict__")


def _position_of(iterator: Any) -> object:
    if isinstance(iterator, io.IOBase):
        try:
            return -1 if iterator.closed else iterator.tell()
        except OSError:  # a pipe; a text that is read by `for`
            return None
    if isinstance(iterator, GeneratorType):
        return "over" if iterator.gi_frame is None else iterator.gi_frame.f_lasti
    kind: type = type(iterator)
    if kind is itertools.count:
        return repr(iterator)
    if kind in _BY_INDEX:
        return iterator.__reduce__()[-1]
    if kind in _BY_REST:
        return length_hint(iterator, -1)  # of `repeat` without an end
    return "as they are" if kind in _BY_OTHERS else None


_DEEP = 10  # hooks, one of them, its closure, torch's BackwardHook, its list, the user's hook, its closure, a dict, ...
_NOT_OURS_TO_TOUCH = ("torch.utils.checkpoint", "tapescope")  # they know by themselves what another run of a task is
_MANY = 3_000  # objects, each with up to 30 entries or 1 KiB: at most some 50 ms for a task, and 3 MB that are copied


class HookState:
    """What the code of one task may change in Python, as it was before the task and as the task left it.

    That is what closures, globals by name, attributes (of objects, their classes, a Function's `ctx`) and defaults
    refer to, the lists, dicts, sets, deques and arrays there, and the generators of random numbers. So the next call of
    a hook finds what it found before: the module's gradients of a full backward hook, the count of a multi-grad hook, a
    log. What can't be put back is told: `spoiled`. That is a tensor that was changed in place, as tensors are not
    copied; an iterator that was advanced, or one of which that can't be seen; and all of it where code leads to so much
    that looking at it would slow down each task (`_MANY`).

    Known limitations. What lies elsewhere stays as the task left it: in files that are written, in C++, in objects of
    the standard library's classes, in the attributes of an optimizer. What somebody else has changed since stays as he
    left it.

    Attributes:
        spoiled: what was or may have been changed and can't be put back, in words.
    """

    def __init__(self, code: Iterable[Any]) -> None:
        self._changes: list[PlaceChange] = []
        self.spoiled: str | None = None
        self._before: list[tuple[Place, Any]] | None = []
        self._tensors: list[tuple[Tensor, int, str, _Owner]] = []
        self._iterators: list[tuple[IteratorProgress, str, _Owner]] = []
        code = list(code)
        for found, name, owner in reach(code, _MANY):
            if isinstance(found, Tensor):
                self._tensors.append((found, version_of(found), name, owner))
            elif isinstance(found, IteratorProgress):
                self._iterators.append((found, name, owner))
            elif isinstance(found, Unseen):
                self.spoiled = _can_call(owner, f"may have changed `{name}`: {found.why}")
            else:
                self._before.append((found, found.read()))
        if code:
            self._before += [(each, each.read()) for each in drawn_by_all()]

    def end(self) -> bool:
        """The task has run. Says whether anything was changed."""
        for place, before in self._before or ():
            change = place.change(before)
            if change is not None:
                self._changes.append(change)
        for tensor, version, name, owner in self._tensors:
            if version_of(tensor) != version:
                self.spoiled = _can_call(owner, f"changed `{name}`, a tensor that it keeps, in place")
        for before, name, owner in self._iterators:
            if before.is_another:
                kind = type(before.iterator).__name__
                self.spoiled = _can_call(owner, f"advanced `{name}`, {_ADVANCED.format(kind=kind)}")
        self._before = None
        self._tensors.clear()
        self._iterators.clear()
        return bool(self._changes)

    def undo(self) -> None:
        """Puts back what there was before the task."""
        for change in reversed(self._changes):
            change.undo()

    def redo(self) -> None:
        """Puts back what the task left."""
        for change in self._changes:
            change.redo()


@dataclass(frozen=True, slots=True)
class Unseen:
    """Something of which can't be seen whether a task changes it."""

    why: str


_Owner = FunctionType | None


def reach(code: Iterable[Any], most: int | None = None, goes_on: bool = False) -> Iterator[tuple[Any, str, _Owner]]:
    """The places, and the tensors and iterators by name, to which hooks or what a Function keeps leads, each once, with
    the function that leads there.

    Args:
        most: of so many objects; that there are more is the last that it says.
        goes_on: it leaves out what is too large, and looks at the rest.
    """
    seen: set[int] = set()
    objects = 0
    queue: deque[tuple[Any, str, _Owner, int]] = deque((each, "", None, 0) for each in code)
    while queue:
        each, name, owner, depth = queue.popleft()  # the nearest first: what is far away for one may be near another
        if id(each) in seen or depth > _DEEP:
            continue
        seen.add(id(each))
        weight = _weight(each)
        if most is not None and objects + weight > most:
            yield Unseen(_TOO_MUCH.format(size=_size_of(each))), name, owner
            if goes_on:
                continue
            return
        objects += weight
        if isinstance(each, FunctionType):
            if (each.__module__ or "").startswith(_NOT_OURS_TO_TOUCH):
                continue
            owner = each if owner is None or _is_torchs(owner) else owner
        place, follow = _at(each, name)
        below = [(value, called, owner, depth + 1) for value, called in follow if _may_lead(value)]
        if most is not None and objects + len(queue) + len(below) > most:
            yield Unseen(_TOO_MUCH.format(size=_size_of(each))), name, owner
            if not goes_on:
                return
            below = []
        if place is not None:
            yield place, name, owner
        queue += below


_Found = Place | Tensor | IteratorProgress | Unseen


def _at(each: Any, name: str) -> tuple[_Found | None, Iterable[tuple[Any, str]]]:
    """What an object that goes by this name is, if a task can change it; and the objects to which it leads, by name."""
    place: _Found | None = None
    follow: Iterable[tuple[Any, str]] = ()
    if isinstance(each, Tensor):
        place = each
    elif isinstance(each, FunctionType):
        place, follow = _names(each), _below_function(each)
    elif isinstance(each, MethodType):
        follow = ((each.__func__, name), (each.__self__, "self"))
    elif isinstance(each, partial):
        if not (getattr(each.func, "__module__", None) or "").startswith(_NOT_OURS_TO_TOUCH):
            follow = ((each.func, name), *((argument, name) for argument in (*each.args, *each.keywords.values())))
    elif isinstance(each, ModuleHook):
        follow = [(each.hook, name)] + ([(each.module(), "module")] if each.with_module else [])
    elif isinstance(each, CellType):
        place = ClosureCell(each)
        follow = ((place.read(), name),)
    elif isinstance(each, type):
        attributes = OfClass(each)
        place, follow = ByKey(attributes), [(value, key) for key, value in attributes.items()]
    elif isinstance(each, dict | list | deque | set) and _has_own_access(type(each)):
        place = Unseen(_OWN_ACCESS.format(kind=type(each).__name__))
    elif isinstance(each, dict):
        place = ByKey(each)
        follow = [(value, key if isinstance(key, str) else name) for key, value in list(each.items())]
    elif isinstance(each, list | deque):
        place, follow = Entries(each), _containers(each, name)
    elif isinstance(each, set):
        place = Set(each)
    elif isinstance(each, tuple):
        follow = _containers(each, name)
    elif (array := Array.of(each)) is not None:
        place = array
    elif (drawn := drawn_by(each)) is not None:
        place = drawn
    elif isinstance(each, dataloader._BaseDataLoaderIter):  # its attributes alone would not wind it back
        follow = [(value, name) for value in vars(each).values()]
    elif _has_attributes(each):
        place, follow = ByKey(vars(each)), [*_attributes(each), (type(each), type(each).__name__)]
    elif _is_users(type(each)) and (slots := OfSlots(each)):
        place = ByKey(slots)
        follow = [*((value, key) for key, value in slots.items()), (type(each), type(each).__name__)]
    elif is_iterator(each):
        progress = IteratorProgress.of(each)
        place = progress or Unseen(_HIDDEN.format(kind=type(each).__name__))
        follow = [(other, name) for other in (progress.others if progress else ())]
    return place, follow


_TOO_MUCH = "it leads to more than is looked at before each task{size}; let it keep less, to go back over its tasks"
_OWN_ACCESS = "a {kind} reads and writes its entries by methods of its own, which are not called to look at it"
_ADVANCED = "an iterator ({kind}), which can't be wound back; keep a number instead"
_HIDDEN = "an iterator ({kind}) does not show how far it is; keep a number, or keep it where no hook leads"


def _has_own_access(kind: type) -> bool:
    """Whether a container's class overrides how entries are read or written: reading them would run its code, which may
    import, load or count (the lazy mappings of transformers import all models)."""
    own = (each for each in kind.__mro__ if each.__module__ not in ("builtins", "collections"))
    return any(not _ACCESS.isdisjoint(vars(each)) for each in own)


_ACCESS = {"__iter__", "__getitem__", "__setitem__", "__delitem__", "keys", "values", "items", "get", "pop"}


def _weight(found: Any) -> int:
    """For how many objects it counts."""
    array = Array.of(found)
    if array is not None:
        return 1 + (array.nbytes >> 10)
    return 1 + len(found) // 30 if isinstance(found, dict | list | deque | set | tuple) else 1


def _size_of(found: Any) -> str:
    array = Array.of(found)
    if array is not None:
        return f" ({array.nbytes:,} bytes)"
    return f" ({len(found):,} entries)" if isinstance(found, dict | list | deque | set | tuple) else ""


_Names = MutableMapping[str, Tensor | None]


def tensors_below(code: Iterable[Any]) -> Iterator[tuple[_Names | None, str, Tensor]]:
    """The tensors to which code refers, and the buffers of the modules that it calls, of all inside these too: each
    with its name, and where it is bound to that if it is a buffer. Parameters are not among them."""
    modules: dict[nn.Module, None] = {}
    seen: set[int] = set()
    tensors: list[tuple[_Names | None, str, Tensor | None]] = []
    for found, name, _ in reach(code):
        if isinstance(found, Tensor):
            tensors.append((None, name, found))
        elif isinstance(found, ByKey) and found.kept.keys() >= {"_modules", "_buffers"}:  # what a module is made of
            inside = [each for each in found.kept["_modules"].values() if each is not None]
            modules.update((module, None) for each in inside for module in each.modules())
            tensors += [(found.kept["_buffers"], *each) for each in found.kept["_buffers"].items()]
    for module in modules:
        binds = not isinstance(module, torch.jit.ScriptModule)
        tensors += [(module._buffers if binds else None, *each) for each in module._buffers.items()]
    tensors.sort(key=lambda each: each[0] is None)  # a buffer as such
    for names, name, tensor in tensors:
        if tensor is None or id(tensor) in seen:
            continue
        if tensor.layout is torch.strided and not tensor.requires_grad:
            seen.add(id(tensor))
            yield names, name, tensor


_ATOMS = (int, float, complex, str, bytes, type(None), ModuleType)


def _may_lead(value: Any) -> bool:
    """Whether code may change it, or something in it."""
    return _is_users(value) if isinstance(value, type) else not isinstance(value, _ATOMS)


def _containers(elements: Iterable[Any], name: str) -> list[tuple[Any, str]]:
    """Those that may be changed: what a log of tensors has is not looked at one by one."""
    elements = tuple(elements)
    kinds = _leading(elements)
    found = [(each, name) for each in elements if type(each) in kinds] if kinds else []  # of a long log none
    return [each for each in found if type(each[0]) is not tuple or _leading(each[0])] if tuple in kinds else found


def _leading(elements: Iterable[Any]) -> set[type]:
    return {kind for kind in set(map(type, elements)) if not issubclass(kind, (*_ATOMS, Tensor))}


def _has_attributes(found: Any) -> bool:
    """Whether code may keep something in the attributes of this object: one of the user's, or torch's own for hooks."""
    if isinstance(found, nn.Module | SimpleNamespace | BackwardHook):
        return True
    return hasattr(found, "__dict__") and _is_users(type(found)) and not isinstance(found, Optimizer)


def _is_users(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in _OTHERS


_OTHERS = {*sys.stdlib_module_names, "torch", "tapescope", "IPython"}


def _attributes(found: Any) -> list[tuple[Any, str]]:
    values = vars(found)
    if not isinstance(found, nn.Module):
        return [(value, str(key)) for key, value in list(values.items())]
    buffers = [(value, key) for key, value in found._buffers.items() if value is not None]
    own = [(value, key) for key, value in values.items() if not key.startswith("_")]
    return buffers + [(value, key) for value, key in own if not isinstance(value, nn.Module)]


def _below_function(function: FunctionType) -> list[tuple[Any, str]]:
    variables = zip(function.__closure__ or (), function.__code__.co_freevars, strict=True)
    found: list[tuple[Any, str]] = list(variables)
    found += [(value, function.__name__) for value in function.__defaults__ or ()]
    found += [(value, key) for key, value in (function.__kwdefaults__ or {}).items()]
    if not _is_torchs(function):
        loaded, _ = _globals_of(function.__code__)
        found += [(function.__globals__[name], name) for name in loaded if name in function.__globals__]
    return found


def _names(function: FunctionType) -> ByKey | None:
    """The names of its module to which a function assigns."""
    stored = () if _is_torchs(function) else _globals_of(function.__code__)[1]
    return ByKey(function.__globals__, stored) if stored else None


def _is_torchs(function: FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] == "torch"


_globals: WeakKeyDictionary[CodeType, tuple[tuple[str, ...], tuple[str, ...]]] = WeakKeyDictionary()


def _globals_of(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The global names that code, and functions inside of it, read and assign."""
    found = _globals.get(code)
    if found is None:
        found = _globals[code] = _find_globals(code)
    return found


def _find_globals(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    read, assigned = set(), set()
    codes = [code]
    for each in codes:
        codes += [constant for constant in each.co_consts if isinstance(constant, CodeType)]
        for instruction in dis.get_instructions(each):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                read.add(instruction.argval)
            elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                assigned.add(instruction.argval)
    return tuple(sorted(read)), tuple(sorted(assigned))


def _can_call(owner: _Owner, did: str) -> str:
    """Who it is that did something."""
    if owner is None:
        return f"is of a Function that {did}"
    at = Source(owner.__code__.co_filename, owner.__code__.co_firstlineno, "").short
    return f"can call `{owner.__qualname__}` ({at}), which {did}"
