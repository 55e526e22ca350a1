"""Converts a batch to tensors and JSON and back, and decides which tensors a folder keeps."""

from __future__ import annotations

import keyword
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ....inspector.text.sizes_and_counts import dtype_name
from ....inspector.torch_private.tensors import computes_itself
from ....inspector.torch_private.thread_state import unobserved

_DTYPES = {
    str(found).removeprefix("torch."): found
    for found in vars(torch).values()
    if isinstance(found, torch.dtype) and found.itemsize and not str(found).startswith(("torch.q", "torch.bits"))
}
_MOST_DIMENSIONS = 64  # torch's own limit
_MOST = 2**53  # larger integers are not exact in JSON


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor's dtype, shape, strides and device. The strides, in elements, describe a tensor without gaps."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str

    @classmethod
    def of(cls, tensor: Tensor, device: object) -> TensorFacts:
        return cls(tensor.dtype, tuple(tensor.shape), tensor.stride(), str(device))

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        """`float32 64×32`."""
        return f"{dtype_name(self.dtype)} {'×'.join(map(str, self.shape)) or 'scalar'}"

    def as_json(self) -> dict[str, Any]:
        return {
            "dtype": dtype_name(self.dtype),
            "shape": list(self.shape),
            "strides": list(self.strides),
            "device": self.device,
        }

    @classmethod
    def read(cls, content: object) -> TensorFacts:
        """Read the facts from JSON.

        Raises:
            ValueError: if they are malformed, or do not describe a tensor without gaps.
        """
        match content:
            case {"dtype": str(dtype), "shape": list(shape), "strides": list(strides), "device": str(device)}:
                if dtype not in _DTYPES:
                    raise ValueError(f"{dtype!r} is not a supported dtype")
                if not _are_sizes(shape) or not _are_sizes(strides) or not _is_dense(shape, strides):
                    raise ValueError(f"a tensor of shape {shape} cannot have the strides {strides}")
                try:
                    torch.device(device)
                except RuntimeError:
                    raise ValueError(f"{device!r} is not a device") from None
                return cls(_DTYPES[dtype], tuple(shape), tuple(strides), device)
        raise ValueError("the facts of a tensor must be its dtype, shape, strides and device")


def why_not_kept(tensor: Tensor) -> str:
    """Return why a tensor cannot be written as bytes; "" if it can."""
    if is_lazy(tensor):
        return "an uninitialized parameter of a lazy module"
    if computes_itself(tensor):
        return f"a {type(tensor).__name__}, which has no storage"
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')}, not dense"
    if tensor.device.type == "meta":
        return "on the meta device"
    return "" if dtype_name(tensor.dtype) in _DTYPES else "quantized"


def own_copy(tensor: Tensor, device: torch.device | str | None = None) -> Tensor:
    """Copy a tensor's elements to a new storage with the same order of dimensions; for a slice, only the slice."""
    with unobserved():
        plain = tensor.detach().resolve_conj().resolve_neg()
        copy = plain.clone(memory_format=torch.preserve_format)
        if not _is_dense(copy.shape, copy.stride()):
            copy = copy.contiguous()
        return copy if device is None else copy.to(device)


def _is_dense(shape: Any, strides: Any) -> bool:
    """Return whether the strides cover each element of the storage exactly once."""
    if len(shape) != len(strides) or len(shape) > _MOST_DIMENSIONS:
        return False
    if 0 in shape:
        return True
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return expected < _MOST


def _are_sizes(values: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value < _MOST for value in values)


_DEPTH = 32  # deepest nesting of containers
_PLAIN = (str, int, float, bool, type(None))


class NamedValues(dict[str, Any]):
    """A stand-in for a mapping or dataclass whose class is not loaded, with its values as items and attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to(self, *given: Any, **options: Any) -> NamedValues:
        """Return a copy with all tensors moved, as `Tensor.to` does."""
        return NamedValues(
            {name: each.to(*given, **options) if isinstance(each, Tensor) else each for name, each in self.items()}
        )


def tensors_in(value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor of a batch once, with its place, such as `[0]`, `['labels']` or `.x`."""
    seen: set[int] = set()
    todo = [("", value, 0)]
    while todo:
        place, each, depth = todo.pop()
        if isinstance(each, Tensor):
            if id(each) not in seen:
                seen.add(id(each))
                yield place, each
        elif depth < _DEPTH:
            todo += [(place + at, part, depth + 1) for at, part in reversed(_parts(each))]


def _parts(value: object) -> list[tuple[str, object]]:
    """Return the items of a container with their places."""
    if isinstance(value, Mapping):
        return [(f"[{name!r}]", each) for name, each in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{number}]", each) for number, each in enumerate(value)]
    if _is_record(value):
        return [(f".{field.name}", getattr(value, field.name, None)) for field in fields(value)]  # type: ignore[arg-type]
    return []


def _is_record(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


@dataclass(frozen=True, slots=True)
class JsonBatch:
    """A batch as JSON that refers to tensors by number.

    Attributes:
        json: the JSON value.
        tensors: the tensors, each once.
        left_out: the places of values that were not recorded, each with the reason.
    """

    json: dict[str, Any]
    tensors: list[Tensor]
    left_out: list[str]


def json_of_batch(batch: object) -> JsonBatch:
    """Convert a batch to JSON and tensors; `batch_of` does the reverse."""
    converter = _Converter()
    return JsonBatch(converter.convert(batch, "", 0), converter.tensors, converter.left_out)


class _Converter:
    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.left_out: list[str] = []
        self._numbers: dict[int, int] = {}

    def convert(self, value: object, place: str, depth: int) -> dict[str, Any]:
        if isinstance(value, Tensor):
            return self._tensor(value, place)
        if type(value) in _PLAIN:
            return {"value": value}
        if depth >= _DEPTH:
            return self._left_out(place, f"more than {_DEPTH} containers deep")
        parts = {at: self.convert(part, place + at, depth + 1) for at, part in _parts(value)}
        content = list(parts.values())
        if isinstance(value, Mapping) and all(type(name) in _PLAIN for name in value):
            return {"dict": [[name, each] for name, each in zip(value, content, strict=True)], **_class_of(value, dict)}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {
                "named": [[name, each] for name, each in zip(value._fields, content, strict=True)],
                **_class_of(value),
            }
        if isinstance(value, tuple):
            return {"tuple": content}
        if isinstance(value, list):
            return {"list": content}
        if _is_record(value):
            names = [field.name for field in fields(value)]  # type: ignore[arg-type]
            return {"record": [[name, each] for name, each in zip(names, content, strict=True)], **_class_of(value)}
        if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
            return self._array(value, place)
        return self._left_out(place, f"a {type(value).__qualname__}")

    def _tensor(self, tensor: Tensor, place: str) -> dict[str, Any]:
        if why := why_not_kept(tensor):
            return self._left_out(place, why)
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return {"tensor": self._numbers[id(tensor)], "requires_grad": tensor.requires_grad}

    def _array(self, array: Any, place: str) -> dict[str, Any]:
        try:
            content = self._tensor(torch.from_numpy(array.copy()), place)
        except TypeError:
            return self._left_out(place, f"an array of {array.dtype}")
        return {"array": content["tensor"]}

    def _left_out(self, place: str, why: str) -> dict[str, Any]:
        said = f"{place or 'the batch'} ({why})"
        self.left_out.append(said)
        return {"left_out": said}


def _class_of(value: object, plain: type | None = None) -> dict[str, str]:
    kind = type(value)
    return {} if kind is plain else {"class": f"{kind.__module__}:{kind.__qualname__}"}


def batch_of(content: object, tensor: Callable[[int], Tensor], depth: int = 0) -> Any:
    """Rebuild a batch from the JSON of `json_of_batch`.

    Classes are looked up in loaded modules, and none of their code runs. A `NamedValues` replaces an instance of a
    class that is not loaded. Values that were not recorded are None.

    Args:
        tensor: returns the tensor with a number.

    Raises:
        ValueError: if the JSON is malformed.
    """
    if depth > _DEPTH + 1:
        raise ValueError("the batch is nested too deeply")

    def made(each: object) -> Any:
        return batch_of(each, tensor, depth + 1)

    match content:
        case {"tensor": int(number), "requires_grad": bool(wanted)}:
            found = tensor(number)
            floats = found.is_floating_point() or found.is_complex()
            return found.requires_grad_() if wanted and floats else found
        case {"array": int(number)}:
            return tensor(number).numpy()
        case {"value": str() | int() | float() | None as value}:
            return value
        case {"left_out": str()}:
            return None
        case {"list": list(parts)}:
            return [made(each) for each in parts]
        case {"tuple": list(parts)}:
            return tuple(made(each) for each in parts)
        case {"dict": list(pairs), **rest}:
            return _mapping({key: made(each) for key, each in _pairs(pairs)}, rest.get("class"))
        case {"named": list(pairs), "class": str(path)}:
            return _named({key: made(each) for key, each in _names(pairs)}, path)
        case {"record": list(pairs), "class": str(path)}:
            return _record({key: made(each) for key, each in _names(pairs)}, path)
    raise ValueError("the batch is malformed")


def _pairs(pairs: Sequence[object]) -> Iterator[tuple[Any, object]]:
    for pair in pairs:
        match pair:
            case [str() | int() | float() | None as key, content]:
                yield key, content
            case _:
                raise ValueError("the batch is malformed")


def _names(pairs: Sequence[object]) -> Iterator[tuple[str, object]]:
    for key, content in _pairs(pairs):
        if not isinstance(key, str) or not key.isidentifier() or keyword.iskeyword(key):
            raise ValueError(f"{key!r} is not the name of a field")
        yield key, content


def _mapping(values: dict[Any, Any], path: object) -> Any:
    if path is None:
        return values
    kind = _loaded(path)
    if kind is not None and issubclass(kind, dict) and _is_plain(kind) and kind.__setitem__ is dict.__setitem__:
        made = dict.__new__(kind)
        dict.update(made, values)
        return made
    return NamedValues(values)


def _named(values: dict[str, Any], path: str) -> Any:
    kind = _loaded(path)
    if kind is not None and issubclass(kind, tuple) and getattr(kind, "_fields", None) == tuple(values):
        return tuple.__new__(kind, values.values())
    if any(name.startswith("_") for name in values):
        return NamedValues(values)
    name = path.rpartition(":")[2].rpartition(".")[2]
    return namedtuple(name if name.isidentifier() and not keyword.iskeyword(name) else "Batch", values)(**values)


def _record(values: dict[str, Any], path: str) -> Any:
    kind = _loaded(path)
    if kind is None or not is_dataclass(kind) or not _is_plain(kind) or issubclass(kind, dict):
        return NamedValues(values)
    if [field.name for field in fields(kind)] != list(values):
        return NamedValues(values)
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _is_plain(kind: type) -> bool:
    """Return whether an instance can be created and freed without running code of the class."""
    return not hasattr(kind, "__del__")


def _loaded(path: object) -> type | None:
    """Return a class if its module is loaded. No module is imported."""
    module, _, name = str(path).partition(":")
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = None if found is None else vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) else None
