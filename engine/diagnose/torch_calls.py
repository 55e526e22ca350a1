"""Records the torch functions that the user's code calls, with their arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet, ref

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode, resolve_name

from ...inspector.graph.node_metadata import tensors_of
from ...inspector.graph.phrases import operation_title
from ...inspector.torch_private.tensors import StorageBytes, computable, detached, is_abstract, storage_of
from ...inspector.torch_private.thread_state import unobserved
from ..session.breakpoints.nan_origin import dense_parts, first_bad, is_bad, what_is_bad


class GivenTensor:
    """An operation's input tensor with its values at that time. It is copied before a later write in place."""

    __slots__ = ("__weakref__", "requires_grad", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.requires_grad = tensor.requires_grad
        self.tensor = detached(tensor)

    def copy(self) -> None:
        self.tensor = self.tensor.clone()


class KeptTensors:
    """The recorded tensors, by the address of their bytes."""

    def __init__(self) -> None:
        self._by_address: dict[int, WeakSet[GivenTensor]] = {}
        self._limit = 256

    def keep(self, tensor: Tensor) -> GivenTensor:
        kept = GivenTensor(tensor)
        for storage in _storages(kept.tensor):
            if len(self._by_address) >= self._limit:
                self._by_address = {address: each for address, each in self._by_address.items() if each}
                self._limit = max(256, 2 * len(self._by_address))
            self._by_address.setdefault(storage.address, WeakSet()).add(kept)
        return kept

    def about_to_write(self, tensor: Tensor) -> None:
        """Copy the recorded tensors that share this tensor's bytes before a write in place."""
        for storage in _storages(tensor):
            for kept in self._by_address.pop(storage.address, ()):
                kept.copy()


def _storages(tensor: Tensor) -> Iterator[StorageBytes]:
    """Yield the storages of the tensors that hold its elements."""
    for part in dense_parts(tensor):
        if (storage := storage_of(part)) is not None:
            yield storage


class BadResult(NamedTuple):
    """The bad values in a result: a description, and of the tensor the first one's index and value, shape and dtype."""

    text: str
    place: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_nan: bool

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> BadResult | None:
        for each in tensors:
            if is_bad(each):
                place = first_bad(each)
                is_nan = not bool(computable(each)[place].isinf())
                return BadResult(what_is_bad(each), place, tuple(each.shape), each.dtype, is_nan)
        return None


class GivenArgument(NamedTuple):
    """A label such as `argument 0`, the number or tensor, and a weak reference to the original tensor."""

    label: str
    value: GivenTensor | complex
    own: ref[Tensor] | None = None


class FunctionCall:
    """One call of a torch function.

    Attributes:
        arguments: its arguments, recorded only if an operation within the call returned bad values.
        bad: the bad values in its result; None if the result is finite.
    """

    __slots__ = ("_args", "_kwargs", "_title", "arguments", "bad", "function")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function = function
        self.arguments: tuple[GivenArgument, ...] | None = None
        self.bad: BadResult | None = None
        self._args = args
        self._kwargs = kwargs
        self._title: str | None = None

    @property
    def title(self) -> str:
        """The short name: `linear` for `torch.nn.functional.linear`."""
        if self._title is None:
            name = resolve_name(self.function) or str(getattr(self.function, "__name__", self.function))
            self._title = operation_title(name)
        return self._title

    def keep(self, tensors: KeptTensors) -> None:
        """Record the arguments, because an operation within the call returned bad values."""
        if self.arguments is not None:
            return
        found = []
        for label, value in [*enumerate(self._args), *self._kwargs.items()]:
            if isinstance(value, int | float) and len(self._args) + len(self._kwargs) == 2:
                found.append(GivenArgument(f"argument {label}", value))
            for each in tensors_of(value):
                if not is_abstract(each):
                    found.append(GivenArgument(f"argument {label}", tensors.keep(each), ref(each)))
        self.arguments = tuple(found)

    def returned(self, result: object) -> None:
        """Record the bad values in the result, and drop arguments that the call returned (modified in place)."""
        if self.arguments is not None:
            try:
                with unobserved():
                    results = list(tensors_of(result))
                    self.bad = BadResult.of([part for each in results for part in dense_parts(each)])
                    own = {id(each) for each in results}
                    self.arguments = tuple(
                        each for each in self.arguments if each.own is None or id(each.own()) not in own
                    )
            except Exception:  # a tensor subclass may raise anything; the forward must continue
                pass

    def left(self) -> None:
        """Release the user's tensors."""
        self._args, self._kwargs = (), {}


class FunctionCalls(TorchFunctionMode):
    """A mode that tracks the innermost call in progress.

    Attributes:
        current: that call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current: FunctionCall | None = None

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if is_dynamo_compiling():
            return function(*args, **kwargs)
        outer, self.current = self.current, FunctionCall(function, args, kwargs)
        call = self.current
        try:
            result = function(*args, **kwargs)
            call.returned(result)
            return result
        finally:
            call.left()
            self.current = outer
