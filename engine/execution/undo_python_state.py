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
    global_generators,
    saved_state_of,
)

_SEQUENCES: tuple[Any, ...] = ([], (), "", "ä", b"", bytearray())
_BY_INDEX = {type(iter(each)) for each in _SEQUENCES} | {type(reversed([])), reversed}
"""Iterators of sequences, whose `__reduce__` returns the index. The remaining length would be wrong for a growing
list."""

_DICTS: tuple[Any, ...] = ({}, {}.values(), {}.items())
_COUNTED: tuple[Any, ...] = (range(1), range(1 << 70), set(), *_DICTS)
_BY_REST = {type(iter(each)) for each in _COUNTED} | {type(reversed(each)) for each in _DICTS} | {itertools.repeat}
"""Iterators that report the remaining length."""

_BY_OTHERS = {zip, map, filter, enumerate, type(iter(int, 1))}
_BY_OTHERS |= {
    getattr(itertools, name)
    for name in (
        *("accumulate", "batched", "chain", "compress", "dropwhile", "filterfalse", "islice", "pairwise", "starmap"),
        *("takewhile", "zip_longest"),
    )
    if hasattr(itertools, name)  # batched: since Python 3.12
}
"""Iterators whose position is that of the iterators they refer to."""


@dataclass(frozen=True, slots=True)
class IteratorProgress:
    """The position of an iterator, or of a file being read.

    Attributes:
        others: the objects to which it refers; for a generator also those on its stack.
    """

    iterator: Iterator[Any]
    at: object
    others: tuple[Any, ...]

    @staticmethod
    def of(iterator: Iterator[Any]) -> IteratorProgress | None:
        """Return the position; None if it cannot be read."""
        at = _position_of(iterator)
        others = () if isinstance(iterator, io.IOBase) else tuple(gc.get_referents(iterator))
        return None if at is None else IteratorProgress(iterator, at, others)

    @property
    def is_another(self) -> bool:
        """True if it was advanced since."""
        now = IteratorProgress.of(self.iterator)
        if now is None or now.at != self.at or len(now.others) != len(self.others):
            return True
        return not all(map(is_, now.others, self.others))


def is_iterator(found: object) -> bool:
    """Return whether it is an iterator written in C, or a file opened for reading. Other iterators have their state in
    attributes; writes to files are not undone."""
    if isinstance(found, io.IOBase):
        return not found.closed and found.readable() and not found.writable()
    return isinstance(found, Iterator) and not hasattr(found, "__dict__")


def _position_of(iterator: Any) -> object:
    if isinstance(iterator, io.IOBase):
        try:
            return -1 if iterator.closed else iterator.tell()
        except OSError:  # a pipe, or a text file read by `for`
            return None
    if isinstance(iterator, GeneratorType):
        return "over" if iterator.gi_frame is None else iterator.gi_frame.f_lasti
    kind: type = type(iterator)
    if kind is itertools.count:
        return repr(iterator)
    if kind in _BY_INDEX:
        return iterator.__reduce__()[-1]
    if kind in _BY_REST:
        return length_hint(iterator, -1)  # -1 for an infinite `repeat`
    return "as they are" if kind in _BY_OTHERS else None


_DEEP = 10  # e.g. hooks, a hook, its closure, torch's BackwardHook, its list, the user's hook, its closure, a dict
_NOT_OURS_TO_TOUCH = ("torch.utils.checkpoint", "tapescope")  # these handle repeated runs of a task themselves
_MANY = 3_000  # objects, each with up to 30 entries or 1 KiB: at most about 50 ms and 3 MB of copies per task


class HookState:
    """The Python state that the code of one task may change, before and after the task.

    It includes the objects that closures, globals by name, attributes (of objects, their classes, a Function's `ctx`)
    and defaults refer to, the lists, dicts, sets, deques and arrays in them, and random number generators. After an
    undo, the next call of a hook finds the earlier state: the module's gradients of a full backward hook, the count of
    a multi-grad hook, a log. `unrestorable` names state that cannot be restored: a tensor modified in place, because
    tensors are not copied; an iterator that was advanced or whose position cannot be read; or everything, if code
    reaches so many objects that reading them would slow down each task (`_MANY`).

    Known limitations: other state stays as the task left it: written files, C++ state, objects of the standard
    library's classes, attributes of an optimizer. State that something else has changed since is not restored.

    Attributes:
        unrestorable: the state that was or may have been changed and cannot be restored, in words.
    """

    def __init__(self, code: Iterable[Any]) -> None:
        self._changes: list[PlaceChange] = []
        self.unrestorable: str | None = None
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
                self.unrestorable = _can_call(owner, f"may have changed `{name}`: {found.why}")
            else:
                self._before.append((found, found.read()))
        if code:
            self._before += [(each, each.read()) for each in global_generators()]

    def end(self) -> bool:
        """Read the state after the task. Return whether anything was changed."""
        for place, before in self._before or ():
            change = place.change(before)
            if change is not None:
                self._changes.append(change)
        for tensor, version, name, owner in self._tensors:
            if version_of(tensor) != version:
                self.unrestorable = _can_call(owner, f"changed `{name}`, a tensor that it keeps, in place")
        for before, name, owner in self._iterators:
            if before.is_another:
                kind = type(before.iterator).__name__
                self.unrestorable = _can_call(owner, f"advanced `{name}`, {_ADVANCED.format(kind=kind)}")
        self._before = None
        self._tensors.clear()
        self._iterators.clear()
        return bool(self._changes)

    def undo(self) -> None:
        """Restore the state from before the task."""
        for change in reversed(self._changes):
            change.undo()

    def redo(self) -> None:
        """Restore the state that the task left."""
        for change in self._changes:
            change.redo()


@dataclass(frozen=True, slots=True)
class Unseen:
    """An object whose changes cannot be detected."""

    why: str


_Owner = FunctionType | None


def reach(code: Iterable[Any], most: int | None = None, skips_large: bool = False) -> Iterator[tuple[Any, str, _Owner]]:
    """Yield the places, and the named tensors and iterators, that hooks or a Function's state refer to, each once, with
    the function that refers to it.

    Args:
        code: the hooks and functions.
        most: the largest number of objects to examine; if there are more, the last item says so.
        skips_large: whether to skip large objects and continue.
    """
    seen: set[int] = set()
    objects = 0
    queue: deque[tuple[Any, str, _Owner, int]] = deque((each, "", None, 0) for each in code)
    while queue:
        each, name, owner, depth = queue.popleft()  # nearest first: an object far from one function may be near another
        if id(each) in seen or depth > _DEEP:
            continue
        seen.add(id(each))
        weight = _weight(each)
        if most is not None and objects + weight > most:
            yield Unseen(_TOO_MUCH.format(size=_size_of(each))), name, owner
            if skips_large:
                continue
            return
        objects += weight
        if isinstance(each, FunctionType):
            if (each.__module__ or "").startswith(_NOT_OURS_TO_TOUCH):
                continue
            owner = each if owner is None or _is_torchs(owner) else owner
        place, follow = _place_of(each, name)
        below = [  # values that code may change, or that may refer to such values
            (value, called, owner, depth + 1)
            for value, called in follow
            if (_is_users(value) if isinstance(value, type) else not isinstance(value, _ATOMS))
        ]
        if most is not None and objects + len(queue) + len(below) > most:
            yield Unseen(_TOO_MUCH.format(size=_size_of(each))), name, owner
            if not skips_large:
                return
            below = []
        if place is not None:
            yield place, name, owner
        queue += below


_Found = Place | Tensor | IteratorProgress | Unseen


def _place_of(each: Any, name: str) -> tuple[_Found | None, Iterable[tuple[Any, str]]]:
    """Return the place of an object with this name, if a task can change it, and the objects it refers to, by name."""
    place: _Found | None = None
    follow: Iterable[tuple[Any, str]] = ()
    if isinstance(each, Tensor):
        place = each
    elif isinstance(each, FunctionType):
        place, follow = _place_of_function(each)
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
    elif (drawn := saved_state_of(each)) is not None:
        place = drawn
    elif isinstance(each, dataloader._BaseDataLoaderIter):  # restoring its attributes would not rewind it
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


_TOO_MUCH = "it refers to too many objects to be read before each task{size}; keep less there to undo its tasks"
_OWN_ACCESS = "a {kind} overrides access to its entries, and these methods are not called to read it"
_ADVANCED = "an iterator ({kind}), which cannot be rewound; keep a number instead"
_HIDDEN = "an iterator ({kind}) does not show its position; keep a number, or keep it where no hook refers to it"


def _has_own_access(kind: type) -> bool:
    """Return whether a container's class overrides access to its entries. Reading them would run its code, which may
    import, load or count (the lazy mappings of transformers import all models)."""
    own = (each for each in kind.__mro__ if each.__module__ not in ("builtins", "collections"))
    return any(not _ACCESS.isdisjoint(vars(each)) for each in own)


_ACCESS = {"__iter__", "__getitem__", "__setitem__", "__delitem__", "keys", "values", "items", "get", "pop"}


def _weight(found: Any) -> int:
    """Return the number of objects that it counts as."""
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
    """Yield the tensors to which code refers, and the buffers of the modules that it calls and of their submodules,
    each with its name, and with the names in which a buffer is bound. Parameters are left out."""
    modules: dict[nn.Module, None] = {}
    seen: set[int] = set()
    tensors: list[tuple[_Names | None, str, Tensor | None]] = []
    for found, name, _ in reach(code):
        if isinstance(found, Tensor):
            tensors.append((None, name, found))
        elif isinstance(found, ByKey) and found.kept.keys() >= {"_modules", "_buffers"}:  # the attributes of a module
            inside = [each for each in found.kept["_modules"].values() if each is not None]
            modules.update((module, None) for each in inside for module in each.modules())
            tensors += [(found.kept["_buffers"], *each) for each in found.kept["_buffers"].items()]
    for module in modules:
        binds = not isinstance(module, torch.jit.ScriptModule)
        tensors += [(module._buffers if binds else None, *each) for each in module._buffers.items()]
    tensors.sort(key=lambda each: each[0] is None)  # prefer a tensor's entry as a buffer
    for names, name, tensor in tensors:
        if tensor is None or id(tensor) in seen:
            continue
        if tensor.layout is torch.strided and not tensor.requires_grad:
            seen.add(id(tensor))
            yield names, name, tensor


_ATOMS = (int, float, complex, str, bytes, type(None), ModuleType)


def _containers(elements: Iterable[Any], name: str) -> list[tuple[Any, str]]:
    """Return the elements that may be changed, tested by type, so that a long log of tensors is fast."""
    elements = tuple(elements)
    kinds = _leading(elements)
    found = [(each, name) for each in elements if type(each) in kinds] if kinds else []  # none in a log of tensors
    return [each for each in found if type(each[0]) is not tuple or _leading(each[0])] if tuple in kinds else found


def _leading(elements: Iterable[Any]) -> set[type]:
    return {kind for kind in set(map(type, elements)) if not issubclass(kind, (*_ATOMS, Tensor))}


def _has_attributes(found: Any) -> bool:
    """Return whether code may keep state in this object's attributes: it is the user's, or torch's own for hooks."""
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


def _place_of_function(function: FunctionType) -> tuple[ByKey | None, list[tuple[Any, str]]]:
    """Return the global names that a function assigns, and the objects it refers to: closure variables, defaults,
    globals."""
    variables = zip(function.__closure__ or (), function.__code__.co_freevars, strict=True)
    found: list[tuple[Any, str]] = list(variables)
    found += [(value, function.__name__) for value in function.__defaults__ or ()]
    found += [(value, key) for key, value in (function.__kwdefaults__ or {}).items()]
    if _is_torchs(function):
        return None, found
    loaded, stored = _globals_of(function.__code__)
    found += [(function.__globals__[name], name) for name in loaded if name in function.__globals__]
    return ByKey(function.__globals__, stored) if stored else None, found


def _is_torchs(function: FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] == "torch"


_globals: WeakKeyDictionary[CodeType, tuple[tuple[str, ...], tuple[str, ...]]] = WeakKeyDictionary()


def _globals_of(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the global names that code and nested functions read and assign."""
    if (found := _globals.get(code)) is not None:
        return found
    read, assigned = set(), set()
    codes = [code]
    for each in codes:
        codes += [constant for constant in each.co_consts if isinstance(constant, CodeType)]
        for instruction in dis.get_instructions(each):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                read.add(instruction.argval)
            elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                assigned.add(instruction.argval)
    _globals[code] = tuple(sorted(read)), tuple(sorted(assigned))
    return _globals[code]


def _can_call(owner: _Owner, did: str) -> str:
    """Return the subject of a sentence: the owner, and its action."""
    if owner is None:
        return f"belongs to a Function that {did}"
    at = Source(owner.__code__.co_filename, owner.__code__.co_firstlineno, "").short
    return f"can call `{owner.__qualname__}` ({at}), which {did}"
