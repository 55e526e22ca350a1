"""The arguments of an operation, kept so that it can be replayed: `ts.capture(keep_inputs=True)`.

Nodes refer to them, and Python's garbage collector cannot see the references of a node, so nothing here may lead back
to a node. Tensors are kept without their graph, containers are copied, and other objects are referenced weakly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import Parameter, signature
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.function import Function

from ..torch_private.tensors import computes_itself, storage_of, version_of
from ..torch_private.thread_state import functorch_is_active, unobserved, without_torch_function
from ..validation import a_kind

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, range, type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.Generator),
)
_DEEPEST = 3  # maximum depth of nested containers
_SIGNATURE = re.compile(r"\s*(\w+)\(([^()]*)\)\s*->")  # "addmm(input, mat1, mat2, *, beta=1, alpha=1) -> Tensor"
_NAME = re.compile(r"[a-zA-Z_]\w*")


class KeptTensor:
    """A tensor argument of an operation.

    Attributes:
        name: its name: "weight", "input 0", "tensors[1]".
        tensor: a tensor with the same bytes and version counter, without a graph; or a copy from before the operation
            wrote to it.
        requires_grad: whether the argument itself required grad.
        is_copy: whether it is a copy, which the program cannot have modified.
        written: whether the operation itself wrote to it, and there is no copy.
    """

    __slots__ = ("_nbytes", "_version", "is_copy", "name", "requires_grad", "tensor", "written")

    def __init__(self, tensor: Tensor, name: str, is_copy: bool) -> None:
        self.name = name
        self.requires_grad = tensor.requires_grad
        self.is_copy = is_copy
        self.written = False
        self.tensor = tensor.detach().clone() if is_copy else tensor.detach()
        self._version = version_of(self.tensor)
        storage = storage_of(self.tensor)
        self._nbytes = storage.nbytes if storage else 0

    def close(self) -> None:
        """Note whether the operation, which has run, wrote to it."""
        if version_of(self.tensor) != self._version:
            self.written = True
            self._version = version_of(self.tensor)

    @property
    def modified(self) -> bool:
        """Return whether it was modified in place, or its storage freed, after the operation."""
        storage = storage_of(self.tensor)
        if (storage.nbytes if storage else 0) != self._nbytes:
            return True
        return version_of(self.tensor) != self._version


class _KeptObject:
    """A weak reference to an argument that is not a tensor."""

    __slots__ = ("_kind", "_name", "_reference")

    def __init__(self, value: object, name: str) -> None:
        self._name = name
        self._kind = type(value).__name__
        self._reference: Callable[[], object]
        try:
            self._reference = ref(value)
        except TypeError:
            self._reference = lambda: None

    def value(self) -> object:
        value = self._reference()
        if value is None:
            raise LookupError(f"its argument {self._name}, a {self._kind}, was not kept by the capture and was freed")
        return value


class KeptInputs:
    """The arguments of one call of an operation.

    Attributes:
        tensors: those among them, in order.
        subclassed: the names of tensors whose subclass has its own operations (DTensor); they are not kept.
    """

    __slots__ = ("_args", "_kwargs", "subclassed", "tensors")

    def __init__(self, function: Callable[..., Any] | type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.tensors: list[KeptTensor] = []
        self.subclassed: list[str] = []
        names = names_by_place(argument_names(function), len(args))
        with unobserved():
            written = _written_storages(function, args, kwargs)
            self._args = tuple([self._keep(value, name, written) for value, name in zip(args, names, strict=True)])
            self._kwargs = {name: self._keep(value, name, written) for name, value in kwargs.items()}

    def close(self) -> KeptInputs:
        """Note which arguments the operation, which has run, wrote to."""
        for each in self.tensors:
            each.close()
        return self

    def rebuilt(self, value_of: Callable[[KeptTensor], Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, with the kept tensors replaced by these tensors.

        Raises:
            LookupError: An argument is no longer alive; the message names it.
        """
        return _rebuilt(self._args, value_of), _rebuilt(self._kwargs, value_of)

    def _keep(self, value: object, name: str, written: _Written, depth: int = 0) -> object:
        if isinstance(value, Tensor):
            if computes_itself(value):
                self.subclassed.append(f"{name} is {a_kind(value)}")
                return _KeptObject(value, name)
            found = storage_of(value) if written else None
            kept = KeptTensor(value, name, written is _ALL or (found is not None and found.address in written))
            self.tensors.append(kept)
            return kept
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, slice):
            return slice(*[self._keep(each, name, written) for each in (value.start, value.stop, value.step)])
        if depth < _DEEPEST and isinstance(value, tuple | list):
            parts = [self._keep(each, f"{name}[{place}]", written, depth + 1) for place, each in enumerate(value)]
            return _like(value, parts)
        if depth < _DEEPEST and type(value) is dict:
            return {key: self._keep(each, f"{name}[{key!r}]", written, depth + 1) for key, each in value.items()}
        return _KeptObject(value, name)


def keep_inputs(
    function: Callable[..., Any] | type, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> KeptInputs | None:
    """Keep the arguments of an operation before it runs.

    Return None if it cannot create a node, or inside transforms of torch.func.
    """
    if not torch.is_grad_enabled() or functorch_is_active():
        return None
    with without_torch_function():
        return KeptInputs(function, args, kwargs) if _any_requires_grad((args, kwargs)) else None


def argument_names(function: Callable[..., Any] | type | str) -> tuple[tuple[str, ...], str | None]:
    """Return the names of an operation's positional arguments, and of the variadic one (`*tensors`)."""
    if isinstance(function, str):
        return (), None
    if not isinstance(function, type):
        return _names_of(function)
    if not issubclass(function, Function):
        return (), None
    try:  # not cached, since a custom Function's class may be created in each forward
        names, rest = _by_place(signature(function.forward).parameters.values())
    except (TypeError, ValueError):
        return (), None
    return (names if function.setup_context is not Function.setup_context else names[1:]), rest  # without `ctx`


def names_by_place(names: tuple[tuple[str, ...], str | None], count: int) -> tuple[str, ...]:
    """Return names for this number of arguments, from `argument_names`."""
    known, rest = names
    more = (f"input {place}" if rest is None else f"{rest}[{place - len(known)}]" for place in range(len(known), count))
    return (*known[:count], *more)


def writes_first_argument(name: str) -> bool:
    """Return whether a torch function of this name modifies its first argument."""
    return name.endswith("_") and (name == "__setitem__" or not name.endswith("__") or name.startswith("__i"))


_Written = frozenset[int]
_ALL: _Written = frozenset([-1])


def _any_requires_grad(value: object, depth: int = 0) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    if depth > _DEEPEST:
        return False
    if isinstance(value, tuple | list):
        return any(_any_requires_grad(each, depth + 1) for each in value)
    return isinstance(value, dict) and any(_any_requires_grad(each, depth + 1) for each in list(value.values()))


def _written_storages(function: Callable[..., Any] | type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Written:
    """Return the addresses of the storages to which the operation is known to write, before it runs."""
    if isinstance(function, type):
        return _ALL if issubclass(function, Function) and marks_dirty(function) else frozenset()
    writes = writes_first_argument(getattr(function, "__name__", ""))
    if not writes:
        place = _inplace_place(function)
        writes = place is not None and bool(args[place] if place < len(args) else kwargs.get("inplace", False))
    first = args[0] if args else next(iter(kwargs.values()), None)
    storage = storage_of(first) if writes and isinstance(first, Tensor) else None
    return frozenset() if storage is None else frozenset([storage.address])


def marks_dirty(function: type[Function]) -> bool:
    """Return whether a custom Function may modify its arguments."""
    codes = (getattr(each, "__code__", None) for each in (function.forward, function.setup_context))
    return any(code is not None and "mark_dirty" in code.co_names for code in codes)


@lru_cache(maxsize=4096)
def _inplace_place(function: Callable[..., Any]) -> int | None:
    """Return the position of a torch function's `inplace` parameter."""
    names, _ = _names_of(function)
    return names.index("inplace") if "inplace" in names else None


@lru_cache(maxsize=4096)
def _names_of(function: Callable[..., Any]) -> tuple[tuple[str, ...], str | None]:
    from ..torch_private.operators import schema_names

    names = schema_names(function)
    if names is not None:
        return names, None
    try:
        return _by_place(signature(function).parameters.values())
    except (TypeError, ValueError):  # most of torch's functions are built in; only their docstrings have a signature
        found = _SIGNATURE.match(function.__doc__ or "")
        known = found is not None and found[1] == getattr(function, "__name__", None)
        by_place = found[2].partition("*")[0].split(",") if found is not None and known else []
        is_method = isinstance(function, MethodDescriptorType | WrapperDescriptorType)
        documented = [name[0] for each in by_place if (name := _NAME.match(each.strip()))]
        return (*(["self"] if is_method else []), *documented), None


def _by_place(parameters: Any) -> tuple[tuple[str, ...], str | None]:
    by_place = [each.name for each in parameters if each.kind in (Parameter.POSITIONAL_ONLY, _EITHER)]
    rest = next((each.name for each in parameters if each.kind is Parameter.VAR_POSITIONAL), None)
    return tuple(by_place), rest


_EITHER = Parameter.POSITIONAL_OR_KEYWORD


def _like(value: tuple[Any, ...] | list[Any], parts: list[Any]) -> object:
    if isinstance(value, list):
        return parts
    return cast(Any, type(value))._make(parts) if hasattr(value, "_make") else tuple(parts)


def _rebuilt(value: Any, value_of: Callable[[KeptTensor], Tensor]) -> Any:
    if isinstance(value, KeptTensor):
        return value_of(value)
    if isinstance(value, _KeptObject):
        return value.value()
    if isinstance(value, slice):
        return slice(*[_rebuilt(each, value_of) for each in (value.start, value.stop, value.step)])
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        return _like(value, [_rebuilt(each, value_of) for each in value])
    if type(value) is dict:
        return {key: _rebuilt(each, value_of) for key, each in value.items()}
    return value
