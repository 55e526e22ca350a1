"""Operators of `torch.ops`: modes that observe them, run them on fake tensors, or run them in float64; and real
tensors on which one is run alone."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from math import prod
from typing import Any, Self

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from .compiled import keep_compiler_out
from .engine import in_backward
from .fake_tensors import fake_implementation, fake_mode, keep_known_values, values_kept
from .tensors import ALIAS, DETACH, LIFT, StorageBytes, View, is_fake_of, on_storage, storage_of
from .thread_state import DispatchMode, unobserved


def is_operator(function: object) -> bool:
    """Return whether the function is an operator of `torch.ops` with a schema."""
    return isinstance(function, OpOverload)


def schema_names(function: object) -> tuple[str, ...] | None:
    """Return the argument names of an operator of `torch.ops`; None for anything else."""
    if isinstance(function, OpOverloadPacket):
        function = getattr(function, "default", None)
    if not isinstance(function, OpOverload):
        return None
    return tuple(argument.name for argument in function._schema.arguments if not argument.kwarg_only)


def writes_arguments(function: object) -> bool | None:
    """Return whether an operator of `torch.ops` writes to an argument; None for anything else."""
    if isinstance(function, OpOverloadPacket):
        return any(writes_arguments(getattr(function, name)) for name in function.overloads())  # type: ignore[no-untyped-call]
    return bool(schema_writes(function)[0]) if isinstance(function, OpOverload) else None


def warm_up_fakes() -> None:
    """Load the modules torch needs for its first operations on fake tensors, without touching the user's tensors."""
    with fake_mode():
        pictures, weights = (torch.empty(shape, device="cpu") for shape in ((2, 3, 8, 8), (4, 3, 3, 3)))
        torch.nn.functional.conv2d(pictures, weights).relu().sum()


@contextmanager
def _unlogged() -> Iterator[None]:
    """Do not log unsupported operations on fake tensors in this thread; the exception is enough."""
    thread = threading.get_ident()

    def is_anothers(record: logging.LogRecord) -> bool:
        return record.thread != thread

    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addFilter(is_anothers)
    try:
        yield
    finally:
        log.removeFilter(is_anothers)


_COUNTED = torch.ops.aten.arange, torch.ops.aten.linspace, torch.ops.aten.logspace
"""Operators that create values by position, as used in building models."""

_FILLED = torch.ops.aten.zeros, torch.ops.aten.ones, torch.ops.aten.full, torch.ops.aten.scalar_tensor
"""Operators that create equal values, as used for the step counts of optimizers."""


_DEVICE = torch.ops.prim.device.default


def leaves_of(value: object) -> list[Any]:
    """Return the leaves of an operator's arguments or results, which are only tuples, lists and dicts.

    `tree_leaves` does the same, but took a third of the time of a step on fake tensors.
    """
    if not isinstance(value, tuple | list | dict):
        return [value]
    found: list[Any] = []
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, tuple | list | dict):
            found += leaves_of(each)
        else:
            found.append(each)
    return found


def with_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return the same arguments with the function applied to each tensor in them."""
    if isinstance(value, Tensor):
        return function(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([with_tensors(function, each) for each in value])
    if kind is dict:
        return {name: with_tensors(function, each) for name, each in value.items()}
    return value if kind in _PLAIN else tree_map_only(Tensor, function, value)


_PLAIN = frozenset((bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout))


class FakeOperations(DispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which operations compute nothing: the tensors they create have a layout, but no data.

    It records when operations allocate storages and when these are freed. Memory allocated inside a kernel, or by
    Python operations that torch uses in place of a kernel, is not seen. Real tensors passed to an operation are
    unchanged, even by in-place operations, and so are the random number generators.

    Args:
        device: the device whose storages are recorded, except empty ones.

    Attributes:
        events: allocations and frees of storages, as `n` and `~n`, numbered from 0.
        nbytes: the size of each storage.
        given: by address, the storages of real tensors passed to operations.
        mode: the mode of the fake tensors.
    """

    grad = False
    """True if operations may be part of a graph and visible to the user's modes: in programs, not in single kernels."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self.given: dict[int, StorageBytes] = {}
        self.events: list[int] = []
        self.nbytes: list[int] = []
        # Otherwise an operation without a fake implementation would run, on zeros.
        self.mode = fake_mode(allow_fallback_kernels=False, allow_non_fake_inputs=True)
        self._watched: dict[int, weakref.ref[Tensor]] = {}  # by id(): tensors created by operations
        self._users: Counter[int] = Counter()  # number of watched tensors by storage address
        self._numbers: dict[int, int] = {}  # by address
        self._outside: dict[int, Tensor] = {}  # by address: tensors from before
        self._modes = ExitStack()
        self._kept: tuple[object, ...] = ()  # operators whose values are stored

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(_unlogged())
            if self.grad:
                stack.enter_context(torch.enable_grad())
                stack.enter_context(self._swapping())
            else:
                stack.enter_context(unobserved())
            stack.enter_context(self.mode)
            super().__enter__()  # type: ignore[no-untyped-call]
            stack.push(super().__exit__)
            self._modes = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)

    @contextmanager
    def making(self) -> Iterator[None]:
        """Keep the values of `torch.linspace` and similar operators, and of results computed from them alone.

        Models read such values as Python numbers while they are built, such as a rate for each layer.
        """
        with values_kept(self.mode):
            self._kept = _COUNTED
            try:
                yield
            finally:
                self._kept = ()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Keep the values of tensors of one element that `torch.zeros` and similar operators create.

        Optimizers create their counts so, and read them as Python numbers in a step.
        """
        self._kept = _FILLED
        try:
            yield
        finally:
            self._kept = ()

    def start(self) -> None:
        """Clear the recorded events."""
        self.events, self.nbytes = [], []
        for known in (self.given, self._watched, self._users, self._numbers, self._outside):
            known.clear()

    def tensor(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a fake tensor whose storage is not recorded."""
        with _disable_current_modes():
            on_meta = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            return self._take(FakeTensor(self.mode, on_meta, device))

    def number(self, tensor: Tensor) -> int:
        """Return the number of the tensor's storage; -1 if no operation allocated it."""
        storage = storage_of(tensor)
        return -1 if storage is None else self._numbers.get(storage.address, -1)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is _DEVICE:  # two thirds of all calls: the engine and optimizers ask fake tensors for their device
            return args[0].device
        return self.call(operator, args, kwargs or {})

    def call(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of an operation of the program, and record the storages that it allocates."""
        args, kwargs = with_tensors(self._as_fake, args), with_tensors(self._as_fake, kwargs)
        result = self.run(operator, args, kwargs)
        if self._kept and getattr(operator, "overloadpacket", None) in self._kept:
            keep_known_values(self.mode, operator, args, kwargs, result, most=1 if self._kept is _FILLED else None)
        for each in leaves_of(result):
            if isinstance(each, Tensor):
                self._note(each)
        return result

    def run(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Return the operator's result on these fake tensors."""
        return fake_implementation(operator)(*args, **kwargs)

    def _as_fake(self, tensor: Tensor) -> Tensor:
        if is_fake_of(tensor, self.mode):
            return tensor
        if (storage := storage_of(tensor)) is not None:
            self.given[storage.address] = storage
        if storage is None or type(tensor) not in (Tensor, Parameter) or tensor.is_conj() or tensor.is_neg():
            return self._take(self.mode.from_tensor(tensor))
        with _disable_current_modes():  # as torch does for plain tensors, but without its compiler
            flat = torch.empty(storage.nbytes // tensor.element_size(), dtype=tensor.dtype, device="meta")
            on_meta = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            return self._take(FakeTensor(self.mode, on_meta, tensor.device))

    def _take(self, tensor: Tensor) -> Tensor:
        storage = storage_of(tensor)
        if storage is not None:
            self._outside[storage.address] = tensor  # kept alive so that the address is not reused
        return tensor

    def alive(self) -> list[int]:
        """Return the numbers of the storages that are alive."""
        return list(self._numbers.values())

    def is_noted(self, device: torch.device) -> bool:
        """Return whether storages on this device are recorded."""
        return device == self._device

    def _note(self, tensor: Tensor) -> None:
        storage = storage_of(tensor)
        if storage is None or not storage.nbytes or id(tensor) in self._watched or not self.is_noted(tensor.device):
            return
        address = storage.address
        if address in self._outside:
            return
        self._watch(tensor, address)
        self._users[address] += 1
        if address not in self._numbers:
            self._numbers[address] = len(self.nbytes)
            self.events.append(len(self.nbytes))
            self.nbytes.append(storage.nbytes)

    def _watch(self, tensor: Tensor, address: int) -> None:
        self._watched[id(tensor)] = weakref.ref(tensor, partial(self._forget, id(tensor), address))

    @contextmanager
    def _swapping(self) -> Iterator[None]:
        """Let fake parameters be converted, as by `module.half()`, for which torch swaps two tensors.

        torch's function refuses tensors with weak references, and every fake tensor has some.
        """

        def swap(one: Tensor, other: Tensor) -> None:
            if not all(is_fake_of(each, self.mode) for each in (one, other)):
                original(one, other)  # type: ignore[no-untyped-call]
                return
            addresses = [self._unwatch(each) for each in (other, one)]
            one.__dict__, other.__dict__ = other.__dict__, one.__dict__
            torch._C._swap_tensor_impl(one, other)
            for each, address in zip((one, other), addresses, strict=True):
                if address is not None:
                    self._watch(each, address)

        original = torch.utils.swap_tensors
        torch.utils.swap_tensors = swap
        try:
            yield
        finally:
            torch.utils.swap_tensors = original

    def _unwatch(self, tensor: Tensor) -> int | None:
        """Stop watching a tensor. Return the address of its storage, or None if it was not watched."""
        storage = storage_of(tensor) if self._watched.pop(id(tensor), None) is not None else None
        return None if storage is None else storage.address

    def _forget(self, number: int, address: int, dead: object) -> None:
        if self._watched.get(number) is not dead:
            return  # reported by another thread's collector after `start` cleared everything
        del self._watched[number]
        self._users[address] -= 1
        if not self._users[address]:
            self.events.append(~self._numbers.pop(address))


_FLOAT8 = [each for name, each in vars(torch).items() if name.startswith("float8_")]
_DOUBLE = {
    **dict.fromkeys((*_FLOAT8, torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}


class InFloat64(DispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which operations with an explicit dtype of lower precision use float64 or complex128 instead."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [_DOUBLE.get(each, each) if type(each) is torch.dtype else each for each in args]
        kwargs = {
            name: _DOUBLE.get(each, each) if type(each) is torch.dtype else each
            for name, each in (kwargs or {}).items()
        }
        return operator(*args, **kwargs)


keep_compiler_out(InFloat64.__torch_dispatch__)


def in_float64(tensor: Tensor) -> Tensor:
    """Return a copy in float64 or complex128 without a graph; integers and booleans keep their dtype."""
    return tensor.detach().to(_DOUBLE.get(tensor.dtype, tensor.dtype), copy=True)


Operator = OpOverload
"""One overload of an operator of `torch.ops`: `torch.ops.aten.mul.Tensor`."""


class SeenOperations(DispatchMode):  # type: ignore[no-untyped-call]
    """A mode that passes each ATen operation of this thread to `run`, below autograd and autocast.

    Excluded are operations of a backward, `detach` (which hooks and in-place views also call), profiler ranges, and
    device queries of fake tensors. Higher-order operators such as flex_attention are excluded with their contents.
    """

    supports_higher_order_operators = True
    sees_backward = False  # whether operations of a backward are included

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of `operator(*args, **kwargs)`. Subclasses implement it."""
        raise NotImplementedError

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unseen = operator is DETACH or operator is ALIAS or operator is LIFT  # faster than hashing the operator
        if unseen or (not self.sees_backward and in_backward()):
            return operator(*args, **(kwargs or {}))
        if not isinstance(operator, OpOverload) or operator.namespace in ("profiler", "prim"):
            return operator(*args, **(kwargs or {}))
        return self.run(operator, args, kwargs or {})


keep_compiler_out(SeenOperations.__torch_dispatch__)


class EveryOperation(DispatchMode):  # type: ignore[no-untyped-call]
    """A mode that passes each computing operation of this thread to `run`, in forwards and backwards.

    It is below autograd, autocast and the transforms of torch.func. For subclasses with their own operations
    (DTensor, jagged tensors) it sees the operations on the inner tensors. Higher-order operators such as flex_attention
    count as one operation.
    """

    supports_higher_order_operators = True

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of `operator(*args, **kwargs)`. Subclasses implement it."""
        raise NotImplementedError

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(each.__torch_dispatch__ is not Tensor.__torch_dispatch__ for each in types if issubclass(each, Tensor)):
            if FakeTensor in types:  # has no data, and hides its operations from modes
                return operator(*args, **(kwargs or {}))
            return NotImplemented  # torch then calls the tensors' class, with this mode still open
        # LIFT is a view by its schema, and returns the tensor that torch.tensor created.
        views = getattr(operator, "is_view", False) and operator is not LIFT
        if views or getattr(operator, "namespace", "") == "profiler":
            return operator(*args, **(kwargs or {}))
        return self.run(operator, args, kwargs or {})


keep_compiler_out(EveryOperation.__torch_dispatch__)


def is_pointwise(operator: Operator) -> bool:
    """Return whether each element of the result is computed from the elements at the same position."""
    return torch.Tag.pointwise in operator.tags


def operator_named(name: str) -> Operator | None:
    """Return the operator of this name, such as "aten.mul.Tensor", or None if torch has none."""
    found: object = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


def schema_name(operator: Operator) -> str:
    """Return the operator's name with namespace, without overload: "aten::mm"."""
    name: str = operator._schema.name
    return name


def takes_tensor_first(operator: Operator) -> bool:
    """Return whether the first argument is a tensor rather than a list of tensors."""
    return bool(operator._schema.arguments[0].type.kind() == "TensorType")


def with_tensors_for_numbers(operator: Operator, args: Sequence[Any]) -> list[Any]:
    """Return the arguments with numbers converted to tensors if the operator expects tensors.

    A mode sees a number even if autograd uses a tensor: `x * 2` saves its 2 as a tensor, which the backward reads.
    """
    kinds = [argument.type.kind() for argument in operator._schema.arguments]
    return [
        torch.tensor(value, dtype=_OF_NUMBER[type(value)], device="cpu")
        if kind == "TensorType" and type(value) in _OF_NUMBER
        else value
        for value, kind in zip(args, kinds, strict=False)
    ]


_OF_NUMBER = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


@cache
def schema_writes(operator: Operator) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the arguments that an operator writes to according to its schema, by position and by name."""
    written = [
        (number, argument.name)
        for number, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return tuple(number for number, _ in written), tuple(name for _, name in written)


_CPU = torch.device("cpu")


def real_arguments(
    operator: Operator, args: Sequence[Any], kwargs: dict[str, Any], fill: int, tiny: bool
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with each tensor replaced by a real one, see `real_like`.

    Inside `zeros_shared`, floating-point tensors that the operator only reads are zeros on one storage. A kernel could
    spoil indices there, with a write that its schema does not declare, and then read outside a tensor.
    """
    positions, names = schema_writes(operator)

    def real(tensor: Tensor) -> Tensor:
        return real_like(tensor, fill, tiny)

    def read_only(tensor: Tensor) -> Tensor:
        can_share = _shared_zeros.depth > 0 and not tiny and tensor.is_floating_point()
        return _on_shared_zeros(tensor) if can_share else real(tensor)

    return (
        [tree_map_only(Tensor, real if place in positions else read_only, each) for place, each in enumerate(args)],
        {name: tree_map_only(Tensor, real if name in names else read_only, each) for name, each in kwargs.items()},
    )


def real_like(tensor: Tensor, fill: int, tiny: bool = False) -> Tensor:
    """Return a CPU tensor of the same shape, strides and dtype, filled with a number; if tiny, of one element."""
    view = View.of(tensor)._replace(offset=0)
    if tiny:
        view = view._replace(shape=(1,) * tensor.dim(), strides=(1,) * tensor.dim())
    storage = torch.full((span(view),), fill, dtype=tensor.dtype, device=_CPU).untyped_storage()
    return on_storage(storage, view)


def span(view: View) -> int:
    """Return the number of elements from the first to the last in memory."""
    if not prod(view.shape):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))


class _SharedZeros(threading.local):
    """Zeros that the kernels of this thread read in turn, since writing new ones took half of a run's time."""

    storage: torch.UntypedStorage | None = None
    depth = 0


_shared_zeros = _SharedZeros()


@contextmanager
def zeros_shared() -> Iterator[None]:
    """Keep the zeros of one kernel run for the next ones of this thread. They are freed in the end."""
    _shared_zeros.depth += 1
    try:
        yield
    finally:
        _shared_zeros.depth -= 1
        if not _shared_zeros.depth:
            _shared_zeros.storage = None


def _on_shared_zeros(tensor: Tensor) -> Tensor:
    """Return a CPU tensor of the same shape, strides and dtype on the shared zeros."""
    view = View.of(tensor)._replace(offset=0)
    nbytes = span(view) * tensor.element_size()
    storage = _shared_zeros.storage
    if storage is None or storage.nbytes() < nbytes:
        _shared_zeros.storage = storage = torch.zeros(nbytes, dtype=torch.uint8, device=_CPU).untyped_storage()
    return on_storage(storage, view)
