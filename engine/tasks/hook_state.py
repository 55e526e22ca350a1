"""What hooks and custom Functions keep in Python between their calls: a task that is taken back takes it along."""

from __future__ import annotations

import dis
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import cache, partial
from operator import is_
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import BackwardHook

from ...inspector.graph.source import Source
from ...inspector.torch_internals import version_of

_MISSING = object()
_DEEP = 10  # hooks, one of them, its closure, torch's BackwardHook, its list, the user's hook, its closure, a dict, ...
_NOT_OURS_TO_TOUCH = ("torch.utils.checkpoint", "tapehead")  # they know by themselves what another run of a task is


class HookState:
    """What the code of one task may change in Python, as it was before the task and as the task left it.

    That is what closures, globals by name, attributes (of objects, their classes, a Function's `ctx`) and defaults
    refer to, the lists, dicts, sets and deques there, and the generators of random numbers. So the next call of a hook
    finds what it found before: the module's gradients of a full backward hook, the count of a multi-grad hook, a log.

    Known limitations. What lies elsewhere stays as the task left it: in files, in C++, in iterators, in arrays, in the
    attributes of an optimizer. What somebody else has changed since stays as he left it. Tensors are not copied;
    one that was changed in place is told: `spoiled`.

    Attributes:
        spoiled: what was changed and can't be put back, in words.
    """

    def __init__(self, code: Iterable[Any]) -> None:
        self._changes: list[_Change] = []
        self.spoiled: str | None = None
        self._before: list[tuple[_Place, Any]] | None = []
        self._tensors: list[tuple[Tensor, int, str, Any]] = []
        code = list(code)
        for found, name, owner in _reach(code):
            if isinstance(found, Tensor):
                self._tensors.append((found, version_of(found), name, owner))
            else:
                self._before.append((found, found.read()))
        if code:
            self._before += [(each, each.read()) for each in _drawn_by_all()]

    def end(self) -> bool:
        """The task has run. Says whether anything was changed."""
        for place, before in self._before or ():
            change = place.change(before)
            if change is not None:
                self._changes.append(change)
        for tensor, version, name, owner in self._tensors:
            if version_of(tensor) != version:
                self.spoiled = f"{_written(owner)} `{name}`, a tensor that it keeps, in place"
        self._before = None
        self._tensors.clear()
        return bool(self._changes)

    def undo(self) -> None:
        """Puts back what there was before the task."""
        for change in reversed(self._changes):
            change.undo()

    def redo(self) -> None:
        """Puts back what the task left."""
        for change in self._changes:
            change.redo()


class _Change(Protocol):
    def undo(self) -> None: ...

    def redo(self) -> None: ...


class _Place(Protocol):
    """Where something is kept that code may change."""

    def read(self) -> Any: ...

    def change(self, before: Any) -> _Change | None: ...


@dataclass(slots=True)
class _ByKey:
    """A dict, or the names in one that code refers to."""

    kept: MutableMapping[Any, Any]
    names: tuple[str, ...] | None = None

    def read(self) -> dict[Any, Any]:
        if self.names is None:
            return dict(self.kept)
        return {name: self.kept.get(name, _MISSING) for name in self.names}

    def change(self, before: dict[Any, Any]) -> _Change | None:
        after = self.read()
        keys = [*before, *(key for key in after if key not in before)]
        changed = [(key, before.get(key, _MISSING), after.get(key, _MISSING)) for key in keys]
        changed = [each for each in changed if each[1] is not each[2]]
        return _Rebound(self.kept, changed, tuple(before), tuple(after)) if changed else None


@dataclass(slots=True)
class _Rebound:
    """Keys with what they had before and after; hooks that are put back stand where they stood."""

    kept: MutableMapping[Any, Any]
    changed: list[tuple[Any, Any, Any]]
    keys_before: tuple[Any, ...]
    keys_after: tuple[Any, ...]

    def undo(self) -> None:
        self._put([(key, after, before) for key, before, after in self.changed], self.keys_before)

    def redo(self) -> None:
        self._put(self.changed, self.keys_after)

    def _put(self, changed: list[tuple[Any, Any, Any]], keys: tuple[Any, ...]) -> None:
        kept, again = self.kept, False
        for key, expected, wanted in changed:
            if kept.get(key, _MISSING) is not expected:
                continue
            if wanted is _MISSING:
                del kept[key]
            else:
                again |= expected is _MISSING
                kept[key] = wanted
        if again:
            for key in [*(key for key in keys if key in kept), *(key for key in list(kept) if key not in keys)]:
                kept[key] = kept.pop(key)


class _Attributes(MutableMapping[str, Any]):
    """Attributes that stand in no dict which may be written."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._found, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self._found, name)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _OfClass(_Attributes):
    """Those of a class: the `backward` of a custom Function is static, so a count has no other place."""

    def __getitem__(self, name: str) -> Any:
        return vars(self._found)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in vars(self._found) if not name.startswith("__"))


class _OfSlots(_Attributes):
    """Those of an object with `__slots__`."""

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._found, name)
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        slots = (vars(kind).get("__slots__", ()) for kind in type(self._found).__mro__)
        names = (name for each in slots for name in ((each,) if isinstance(each, str) else each))
        return (name for name in names if not name.startswith("__") and hasattr(self._found, name))


@dataclass(slots=True)
class _Drawn:
    """The state of a generator of random numbers."""

    read: Callable[[], Any]
    write: Callable[[Any], object]

    def change(self, before: Any) -> _Change | None:
        after = self.read()
        return None if after == before else _Whole(self, before, after)

    def same(self, one: Any, other: Any) -> bool:
        return bool(one == other)


def _drawn_by_all() -> Iterator[_Drawn]:
    """Of Python's and NumPy's own numbers; torch's are kept with each task."""
    yield _Drawn(random.getstate, random.setstate)
    if (numpy := sys.modules.get("numpy")) is not None:
        yield _pickled(numpy.random.get_state, numpy.random.set_state)


def _drawn_by(found: Any) -> _Drawn | None:
    if isinstance(found, random.Random):
        return _Drawn(found.getstate, found.setstate)
    if isinstance(found, torch.Generator):
        return _Drawn(lambda: found.get_state().tolist(), lambda state: found.set_state(torch.ByteTensor(state)))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(found, numpy.random.Generator):
        bits = found.bit_generator
        return _pickled(lambda: bits.state, lambda state: setattr(bits, "state", state))
    return None


def _pickled(read: Callable[[], Any], write: Callable[[Any], object]) -> _Drawn:
    """A state with arrays in it, as bytes that can be compared."""
    return _Drawn(lambda: pickle.dumps(read()), lambda state: write(pickle.loads(state)))


@dataclass(slots=True)
class _Cell:
    """A variable of the function around."""

    cell: CellType

    def read(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return _MISSING

    def change(self, before: Any) -> _Change | None:
        after = self.read()
        return None if after is before else _Whole(self, before, after)

    def write(self, value: Any) -> None:
        if value is _MISSING:
            del self.cell.cell_contents
        else:
            self.cell.cell_contents = value

    def same(self, one: Any, other: Any) -> bool:
        return one is other


@dataclass(slots=True)
class _Row:
    """A list or a deque."""

    kept: list[Any] | deque[Any]

    def read(self) -> tuple[Any, ...]:
        return tuple(self.kept)

    def change(self, before: tuple[Any, ...]) -> _Change | None:
        after = self.read()
        if self.same(before, after):
            return None
        if isinstance(self.kept, list) and self.same(before, after[: len(before)]):  # a log: keep what is new alone
            return _Grown(self.kept, len(before), after[len(before) :])
        return _Whole(self, before, after)

    def write(self, value: tuple[Any, ...]) -> None:
        self.kept.clear()
        self.kept.extend(value)

    def same(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        return len(one) == len(other) and all(map(is_, one, other))


@dataclass(slots=True)
class _Grown:
    kept: list[Any]
    length: int
    added: tuple[Any, ...]

    def undo(self) -> None:
        tail = self.kept[self.length :]
        if len(tail) == len(self.added) and all(one is other for one, other in zip(tail, self.added, strict=True)):
            del self.kept[self.length :]

    def redo(self) -> None:
        if len(self.kept) == self.length:
            self.kept.extend(self.added)


@dataclass(slots=True)
class _Set:
    kept: set[Any]

    def read(self) -> frozenset[Any]:
        return frozenset(self.kept)

    def change(self, before: frozenset[Any]) -> _Change | None:
        after = self.read()
        return None if before == after else _Whole(self, before, after)

    def write(self, value: frozenset[Any]) -> None:
        self.kept.clear()
        self.kept.update(value)

    def same(self, one: frozenset[Any], other: frozenset[Any]) -> bool:
        return one == other


@dataclass(slots=True)
class _Whole:
    """Something that is put back as a whole."""

    place: _Cell | _Row | _Set | _Drawn
    before: Any
    after: Any

    def undo(self) -> None:
        self._put(self.after, self.before)

    def redo(self) -> None:
        self._put(self.before, self.after)

    def _put(self, expected: Any, wanted: Any) -> None:
        now: Any = self.place.read()
        if self.place.same(now, expected):
            self.place.write(wanted)


def _reach(code: Iterable[Any]) -> Iterator[tuple[Any, str, FunctionType | None]]:
    """The places, and the tensors by name, to which hooks or what a Function keeps leads, each once, with the function
    that leads there."""
    seen: set[int] = set()
    queue: deque[tuple[Any, str, FunctionType | None, int]] = deque((each, "", None, 0) for each in code)
    while queue:
        each, name, owner, depth = (
            queue.popleft()
        )  # the nearest first: what is too far away for one may be near another
        if id(each) in seen or depth > _DEEP:
            continue
        seen.add(id(each))
        place: _Place | Tensor | None = None
        follow: Iterable[tuple[Any, str]] = ()
        if isinstance(each, Tensor):
            place = each
        elif isinstance(each, FunctionType):
            if (each.__module__ or "").startswith(_NOT_OURS_TO_TOUCH):
                continue
            owner = each if owner is None or _is_torchs(owner) else owner
            place, follow = _names(each), _below_function(each)
        elif isinstance(each, MethodType):
            follow = ((each.__func__, name), (each.__self__, "self"))
        elif isinstance(each, partial):
            follow = ((each.func, name), *((argument, name) for argument in (*each.args, *each.keywords.values())))
        elif isinstance(each, CellType):
            place = _Cell(each)
            follow = ((place.read(), name),)
        elif isinstance(each, type):
            attributes = _OfClass(each)
            place, follow = _ByKey(attributes), [(value, key) for key, value in attributes.items()]
        elif isinstance(each, dict):
            place = _ByKey(each)
            follow = [(value, key if isinstance(key, str) else name) for key, value in list(each.items())]
        elif isinstance(each, list | deque):
            place, follow = _Row(each), _containers(each, name)
        elif isinstance(each, set):
            place = _Set(each)
        elif isinstance(each, tuple):
            follow = _containers(each, name)
        elif (drawn := _drawn_by(each)) is not None:
            place = drawn
        elif _has_attributes(each):
            place, follow = _ByKey(vars(each)), [*_attributes(each), (type(each), type(each).__name__)]
        elif _is_users(type(each)) and (slots := _OfSlots(each)):
            place = _ByKey(slots)
            follow = [*((value, key) for key, value in slots.items()), (type(each), type(each).__name__)]
        if place is not None:
            yield place, name, owner
        queue.extend((value, called, owner, depth + 1) for value, called in follow if _may_lead(value))


_Names = MutableMapping[str, Tensor | None]


def tensors_below(code: Iterable[Any]) -> Iterator[tuple[_Names | None, str, Tensor]]:
    """The tensors to which code refers, and the buffers of the modules that it calls, of all inside these too: each
    with its name, and where it is bound to that if it is a buffer. Parameters are not among them."""
    modules: dict[nn.Module, None] = {}
    seen: set[int] = set()
    tensors: list[tuple[_Names | None, str, Tensor | None]] = []
    for found, name, _ in _reach(code):
        if isinstance(found, Tensor):
            tensors.append((None, name, found))
        elif isinstance(found, _ByKey) and found.kept.keys() >= {"_modules", "_buffers"}:  # what a module is made of
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
    kinds = {kind for kind in set(map(type, elements)) if not issubclass(kind, (*_ATOMS, Tensor))}
    return [(each, name) for each in elements if type(each) in kinds] if kinds else []  # of a long log none


def _has_attributes(found: Any) -> bool:
    """Whether code may keep something in the attributes of this object: one of the user's, or torch's own for hooks."""
    if isinstance(found, nn.Module | SimpleNamespace | BackwardHook):
        return True
    return hasattr(found, "__dict__") and _is_users(type(found)) and not isinstance(found, Optimizer)


def _is_users(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in _OTHERS


_OTHERS = {*sys.stdlib_module_names, "torch", "tapehead", "IPython"}


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


def _names(function: FunctionType) -> _ByKey | None:
    """The names of its module to which a function assigns."""
    stored = () if _is_torchs(function) else _globals_of(function.__code__)[1]
    return _ByKey(function.__globals__, stored) if stored else None


def _is_torchs(function: FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] == "torch"


@cache
def _globals_of(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The global names that code, and functions inside of it, read and assign."""
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


def _written(owner: FunctionType | None) -> str:
    """Who it was that changed something."""
    if owner is None:
        return "is of a Function that changed"
    at = Source(owner.__code__.co_filename, owner.__code__.co_firstlineno, "").short
    return f"had `{owner.__qualname__}` ({at}) change"
