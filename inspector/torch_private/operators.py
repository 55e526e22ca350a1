"""Operators of `torch.ops`, seen as they run, run on fake tensors or in float64."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, Self

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from .compiled import keep_compiler_out
from .engine import in_backward
from .fake_tensors import fake_mode, numbers_known, on_fakes, tell_numbers
from .tensors import ALIAS, DETACH, LIFT, StorageBytes, is_fake_of, storage_of
from .thread_state import unobserved


def is_operator(function: object) -> bool:
    """Whether it is one operator of `torch.ops`, with a schema."""
    return isinstance(function, OpOverload)


def schema_names(function: object) -> tuple[str, ...] | None:
    """What an operator of `torch.ops` calls its arguments; None for anything else."""
    if isinstance(function, OpOverloadPacket):
        function = getattr(function, "default", None)
    if not isinstance(function, OpOverload):
        return None
    return tuple(argument.name for argument in function._schema.arguments if not argument.kwarg_only)


def writes_arguments(function: object) -> bool | None:
    """Whether an operator of `torch.ops` writes something that it is given; None for anything else."""
    if isinstance(function, OpOverloadPacket):
        return any(writes_arguments(getattr(function, name)) for name in function.overloads())  # type: ignore[no-untyped-call]
    return bool(schema_writes(function)[0]) if isinstance(function, OpOverload) else None


def warm_up_fakes() -> None:
    """Loads what torch needs for its first operations on fake tensors. Touches no tensor of others."""
    with fake_mode():
        pictures, weights = (torch.empty(shape, device="cpu") for shape in ((2, 3, 8, 8), (4, 3, 3, 3)))
        torch.nn.functional.conv2d(pictures, weights).relu().sum()


@contextmanager
def _unlogged() -> Iterator[None]:
    """What torch can't do on fake tensors, whoever asks is told by an exception: in this thread it is not logged."""
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
"""What gives numbers by place, which models are made by."""


def leaves_of(value: object) -> list[Any]:
    """What stands in an operator's arguments or results, as `tree_leaves` has it, of which a third of a step on fakes
    was spent: these are tuples, lists and dicts alone."""
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
    """The same arguments with what the function gives for each tensor in them."""
    if isinstance(value, Tensor):
        return function(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([with_tensors(function, each) for each in value])
    if kind is dict:
        return {name: with_tensors(function, each) for name, each in value.items()}
    return value if kind in _PLAIN else tree_map_only(Tensor, function, value)


_PLAIN = frozenset((bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout))


class FakeOperations(TorchDispatchMode):
    """While it is open, operations compute nothing: the tensors that they make have a layout, and no bytes.

    It notes which storages operations make and when these die. What a kernel allocates inside, or Python operations
    that torch has in a kernel's place, isn't seen. Real tensors that an operation gets are left as they are, also by
    operations in place, as are the generators of random numbers.

    Args:
        device: storages on others are not noted, nor those of no bytes.

    Attributes:
        events: births and deaths of storages: `n` and `~n`, counted from 0.
        nbytes: the size of each.
        given: by address the storages of real tensors that operations got: somebody kept them.
    """

    grad = False
    """Whether operations may be of a graph, and are seen by the user's modes: where programs run, no single kernels."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.given: dict[int, StorageBytes] = {}
        self.events: list[int] = []
        self.nbytes: list[int] = []
        # An operation which torch can't fake would else run, on zeros.
        self._mode = fake_mode(allow_fallback_kernels=False, allow_non_fake_inputs=True)
        self._watched: dict[int, weakref.ref[Tensor]] = {}  # by id() the tensors that operations made
        self._users: Counter[int] = Counter()  # how many of them are on each storage, by its address
        self._numbers: dict[int, int] = {}  # by address
        self._outside: dict[int, Tensor] = {}  # by address what was there before
        self._modes = ExitStack()
        self._is_making = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(_unlogged())
            if self.grad:
                stack.enter_context(torch.enable_grad())
                stack.enter_context(self._swapping())
            else:
                stack.enter_context(unobserved())
            stack.enter_context(self._mode)
            super().__enter__()  # type: ignore[no-untyped-call]
            stack.push(super().__exit__)
            self._modes = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else each operation goes through a wrapper of torch's compiler; see `InFloat64`

    @property
    def mode(self) -> FakeTensorMode:
        """The mode whose fakes these are."""
        return self._mode

    @contextmanager
    def making(self) -> Iterator[None]:
        """Meanwhile a model is made: the numbers of `torch.linspace` and its like are known, and what is made of them
        alone, so that rates for each layer can be taken as Python numbers."""
        with numbers_known(self._mode):
            self._is_making = True
            try:
                yield
            finally:
                self._is_making = False

    def start(self) -> None:
        """Forgets what was noted."""
        self.events, self.nbytes = [], []
        for known in (self.given, self._watched, self._users, self._numbers, self._outside):
            known.clear()

    def tensor(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A fake tensor, whose storage is not noted."""
        with _disable_current_modes():
            bare = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            return self._take(FakeTensor(self._mode, bare, device))

    def number(self, tensor: Tensor) -> int:
        """The number of the tensor's storage; -1 if it is none of those that were made."""
        storage = storage_of(tensor)
        return -1 if storage is None else self._numbers.get(storage.address, -1)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = with_tensors(self._as_fake, args), with_tensors(self._as_fake, kwargs or {})
        result = self.run(operator, args, kwargs)
        if self._is_making and getattr(operator, "overloadpacket", None) in _COUNTED:
            tell_numbers(self._mode, operator, args, kwargs, result)
        for each in leaves_of(result):
            if isinstance(each, Tensor):
                self._note(each)
        return result

    def run(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Gives what the operator does on these fake tensors."""
        return on_fakes(operator)(*args, **kwargs)

    def _as_fake(self, tensor: Tensor) -> Tensor:
        if is_fake_of(tensor, self._mode):
            return tensor
        if (storage := storage_of(tensor)) is not None:
            self.given[storage.address] = storage
        if storage is None or type(tensor) not in (Tensor, Parameter) or tensor.is_conj() or tensor.is_neg():
            return self._take(self._mode.from_tensor(tensor))
        with _disable_current_modes():  # what it does where there is nothing special, without torch's compiler
            whole = torch.empty(storage.nbytes // tensor.element_size(), dtype=tensor.dtype, device="meta")
            bare = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            return self._take(FakeTensor(self._mode, bare, tensor.device))

    def _take(self, tensor: Tensor) -> Tensor:
        storage = storage_of(tensor)
        if storage is not None:
            self._outside[storage.address] = tensor  # kept, else the address could become another's
        return tensor

    def alive(self) -> list[int]:
        """The numbers of the storages that are alive."""
        return list(self._numbers.values())

    def is_noted(self, device: torch.device) -> bool:
        """Whether storages there are noted."""
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
        """Meanwhile fake parameters can be converted, as by `module.half()`, for which torch swaps them with what they
        become. Its function refuses all to which there are weak references, as there are to each fake."""

        def swap(one: Tensor, other: Tensor) -> None:
            if not all(is_fake_of(each, self._mode) for each in (one, other)):
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
        """The address of its storage, if it is watched, which it is no longer."""
        storage = storage_of(tensor) if self._watched.pop(id(tensor), None) is not None else None
        return None if storage is None else storage.address

    def _forget(self, number: int, address: int, dead: object) -> None:
        if self._watched.get(number) is not dead:
            return  # another thread's collector says it after `start` has forgotten all
        del self._watched[number]
        self._users[address] -= 1
        if not self._users[address]:
            self.events.append(~self._numbers.pop(address))


_FLOAT8 = [each for name, each in vars(torch).items() if name.startswith("float8_")]
_DOUBLE = {
    **dict.fromkeys((*_FLOAT8, torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}


class InFloat64(TorchDispatchMode):
    """While it is open, operations that are told to make numbers of less precision make float64 or complex128."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler, a second's work: `keep_compiler_out` does what is needed

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [_DOUBLE.get(each, each) if type(each) is torch.dtype else each for each in args]
        kwargs = {
            name: _DOUBLE.get(each, each) if type(each) is torch.dtype else each
            for name, each in (kwargs or {}).items()
        }
        return operator(*args, **kwargs)


keep_compiler_out(InFloat64.__torch_dispatch__)


def in_float64(tensor: Tensor) -> Tensor:
    """A copy without a graph; of whole numbers and truth values as they are."""
    return tensor.detach().to(_DOUBLE.get(tensor.dtype, tensor.dtype), copy=True)


Operator = OpOverload
"""One overload of an operator of `torch.ops`: `torch.ops.aten.mul.Tensor`."""


class SeenOperations(TorchDispatchMode):
    """While it is open, shows `run` each ATen operation of this thread: below autograd and autocast.

    Not shown are those of a backward, and `detach`, which also hooks and views in place call; the ranges of a profiler;
    how fake tensors are asked for their device; nor what is no ATen operation but made of such (flex_attention), nor
    what happens inside.
    """

    supports_higher_order_operators = True
    sees_backward = False  # whether those of a backward are shown, too

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in InFloat64

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Is to give what `operator(*args, **kwargs)` does."""
        raise NotImplementedError

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unseen = operator is DETACH or operator is ALIAS or operator is LIFT  # to hash an operator takes longer
        if unseen or (not self.sees_backward and in_backward()):
            return operator(*args, **(kwargs or {}))
        if not isinstance(operator, OpOverload) or operator.namespace in ("profiler", "prim"):
            return operator(*args, **(kwargs or {}))
        return self.run(operator, args, kwargs or {})


keep_compiler_out(SeenOperations.__torch_dispatch__)


class EveryOperation(TorchDispatchMode):
    """While it is open, shows `run` each operation that computes in this thread: of forwards and of backwards, below
    autograd, autocast and the transforms of torch.func.

    Of tensors that compute in their own way (DTensor, jagged ones) it sees what they do with the tensors inside. What
    is no ATen operation but made of such (flex_attention) it sees as one.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in InFloat64

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Is to give what `operator(*args, **kwargs)` does."""
        raise NotImplementedError

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(each.__torch_dispatch__ is not Tensor.__torch_dispatch__ for each in types if issubclass(each, Tensor)):
            if FakeTensor in types:  # has no numbers, and does not let a mode see what it does
                return operator(*args, **(kwargs or {}))
            return NotImplemented  # then torch asks the tensors, with this mode still open
        views = getattr(operator, "is_view", False) and operator is not LIFT  # which gives what torch.tensor has made
        if views or getattr(operator, "namespace", "") == "profiler":
            return operator(*args, **(kwargs or {}))
        return self.run(operator, args, kwargs or {})


keep_compiler_out(EveryOperation.__torch_dispatch__)


def is_pointwise(operator: Operator) -> bool:
    """Whether each element of what it gives is made of the elements at the same place."""
    return torch.Tag.pointwise in operator.tags


def operator_named(name: str) -> Operator | None:
    """The operator that calls itself so, "aten.mul.Tensor"; None where torch knows no such."""
    found: object = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


def schema_name(operator: Operator) -> str:
    """Its name with its namespace, without its overload: "aten::mm"."""
    name: str = operator._schema.name
    return name


def takes_tensor_first(operator: Operator) -> bool:
    """Whether its first argument is one tensor, no list of them."""
    return bool(operator._schema.arguments[0].type.kind() == "TensorType")


def with_tensors_for_numbers(operator: Operator, args: Sequence[Any]) -> list[Any]:
    """The arguments with tensors where the operator takes some: of a number that was made a tensor a mode sees the
    number (`x * 2` saves its 2 as a tensor, which the backward multiplies with)."""
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
    """Which arguments an operator writes into, as its schema says: by position and by name."""
    written = [
        (number, argument.name)
        for number, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return tuple(number for number, _ in written), tuple(name for _, name in written)
