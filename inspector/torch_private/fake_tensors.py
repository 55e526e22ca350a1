"""Fake tensors without torch's compiler, which torch loads to read three settings (800 modules, about a second).

Nothing in torch is replaced for other users, and `sys.modules` is unchanged. If the compiler is needed after all, it is
loaded as usual; from then on these functions do what torch does.
"""

from __future__ import annotations

import builtins
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import CellType, CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import Optimizer, _use_grad_for_differentiable
from torch.utils._python_dispatch import _disable_current_modes

from .tensors import is_fake, is_fake_of


def fake_mode(**options: Any) -> FakeTensorMode:
    """Return a `FakeTensorMode`. As far as known, neither creating nor using it loads the compiler."""
    if _compiler_is_loaded():
        return FakeTensorMode(**options)
    _call_undisabled()
    mode = _mode_class()(**options)
    mode.fake_tensor_converter = _Converter()
    return mode


NEEDS_NUMBERS = (DataDependentOutputException, DynamicOutputShapeException)
"""Errors of fake tensors if a program reads a value (`.item()`), or if a result's size depends on values."""


def unsupported_on_fakes(error: RuntimeError | AssertionError) -> str | None:
    """Return the operator that torch cannot run on fake tensors ("aten.mul_.Tensor"); None for other errors."""
    if isinstance(error, UnsupportedOperatorException):
        return str(error.func)
    if (operator := re.search(r"HigherOrderOperator (\w+)", str(error))) is not None:
        return operator[1]
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    inside = traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_FOLDER)
    return "an operation" if inside and isinstance(error, AssertionError | NotImplementedError) else None


_FOLDER = str(Path(fake_tensor.__file__).parent) + os.sep

_MOST_NUMBERS = 1024


@contextmanager
def values_kept(mode: FakeTensorMode) -> Iterator[None]:
    """Let results of known values have known values, up to 1,024 elements; by default only single elements do."""
    mode.may_turn_const = lambda tensor: (  # type: ignore[assignment, method-assign]
        tensor.numel() <= _MOST_NUMBERS and not is_fake(tensor) and tensor.device.type == "cpu"
    )
    try:
        yield
    finally:
        del mode.may_turn_const


def keep_known_values(
    mode: FakeTensorMode, operator: Any, args: Any, kwargs: Any, result: Any, most: int | None = None
) -> None:
    """Store the values in a fake tensor that an operator created without tensor arguments, if they are few."""
    if is_fake_of(result, mode) and result.device.type == "cpu" and result.numel() <= (most or _MOST_NUMBERS):
        with _disable_current_modes():
            result.constant = operator(*args, **kwargs)
        mode.fake_tensor_converter.set_tensor_memo(result.constant, result)  # so that writing to it returns `result`
        mode.fake_tensor_converter.add_constant_storage_mapping(result)


def fake_implementation(operator: Any) -> Callable[..., Any]:
    """Return the operator, or for a few operators an equivalent that runs with the fake tensor mode open.

    torch closes the mode while one of its Python kernels runs. Each operation then checks for DTensors, and imports all
    of torch.distributed.tensor for that, which takes a sixth of a second.
    """
    if operator in _without_fake_kernel():
        return _does_nothing
    if "torch.distributed.tensor" in sys.modules:
        found: Callable[..., Any] = operator
    else:
        found = _with_mode_open().get(operator, operator)
    return found


@cache
def _without_fake_kernel() -> frozenset[object]:
    """Return the operators of fused optimizers that torch cannot run on fake tensors. They only write to arguments."""
    packets = torch.ops.aten._fused_sgd_, torch.ops.aten._fused_adagrad_
    names = [(packet, name) for packet in packets for name in packet.overloads()]  # type: ignore[no-untyped-call]
    return frozenset(getattr(packet, name) for packet, name in names if "out" not in name)


def _does_nothing(*args: Any, **kwargs: Any) -> None:
    pass


@cache
def _with_mode_open() -> dict[object, Callable[..., Any]]:
    aten = torch.ops.aten
    refs = import_module("torch._refs")
    view = partial(refs._reshape_view_helper, allow_copy=False)
    return {
        aten.view.default: view,
        aten._unsafe_view.default: view,
        aten.clone.default: refs.clone,
        aten.permute.default: refs.permute,
        aten.pow.Tensor_Scalar: lambda base, exponent: (
            refs.clone(base) if exponent == 1 else aten.pow.Tensor_Scalar(base, exponent)
        ),
        aten.tril.default: refs.tril,
        aten.masked_fill.Scalar: refs.masked_fill,
        aten.sum.dim_IntList: refs.sum,
        **{operator: partial(_filled, operator) for operator in (aten.normal_.default, aten.uniform_.default)},
    }


def _filled(operator: Callable[..., Any], tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
    """Fill a fake tensor with random numbers, which changes nothing unless its values are known."""
    return tensor if tensor.constant is None else operator(tensor, *args, **kwargs)


def _compiler_is_loaded() -> bool:
    return "torch._dynamo" in sys.modules


class _Settings(SimpleNamespace):
    """Replacement for `torch._dynamo` in the two functions that read its settings, with torch's default values."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["torch"]._dynamo, name)  # loads the compiler


class _Torch:
    """Replacement for `torch` in these functions."""

    _without = _Settings(
        config=_Settings(
            fake_tensor_cache_enabled=True, fake_tensor_cache_crosscheck_enabled=False, _custom_ops_profile=None
        ),
        graph_break=lambda: None,
    )

    @property
    def _dynamo(self) -> Any:
        return torch._dynamo if _compiler_is_loaded() else self._without

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


_torch = _Torch()


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """Replacement for `__import__` in these functions: `import torch._dynamo.config` binds `torch`."""
    if name in ("torch._dynamo", "torch._dynamo.config") and not fromlist and not _compiler_is_loaded():
        return _torch
    found = __import__(name, globals, locals, fromlist or (), level)
    return _torch if found is torch else found


def _reading_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of one of torch's functions in which `torch` is `_torch`."""
    assert isinstance(function, FunctionType)
    names = {**function.__globals__, "torch": _torch, "__builtins__": {**vars(builtins), "__import__": _import}}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@cache
def _mode_class() -> type[FakeTensorMode]:
    own = {name: _reading_settings(getattr(FakeTensorMode, name)) for name in ("__init__", "_dispatch_impl")}
    return type("FakeTensorMode", (FakeTensorMode,), {**own, "_should_skip_dynamo": classmethod(lambda cls: False)})


class _Converter(FakeTensorConverter):
    """Makes fake tensors of known values without the compiler, which torch loads to name where they come from."""

    def from_real_tensor(
        self, fake_mode: FakeTensorMode, t: Tensor, make_constant: bool = False, shape_env: Any = None, **options: Any
    ) -> FakeTensor:
        is_plain = type(t) is Tensor and t.layout is torch.strided and not (t.requires_grad or t.is_conj())
        if _compiler_is_loaded() or not (make_constant and is_plain) or shape_env is not None:
            return super().from_real_tensor(fake_mode, t, make_constant, shape_env, **options)
        if (known := self._get_memo(t)) is not None:  # written to in place
            return known
        with _disable_current_modes():
            aliases = self.constant_storage_mapping.get(StorageWeakRef(t._typed_storage()), ())  # type: ignore[no-untyped-call]
            alias = next((fake for each in aliases if (fake := each()) is not None), None)
            size = t.untyped_storage().nbytes() // t.element_size()
            flat = torch.empty(size, dtype=t.dtype, device="meta") if alias is None else alias
            on_meta = torch.empty(0, dtype=t.dtype, device="meta")
            on_meta.set_(flat.untyped_storage(), t.storage_offset(), t.shape, t.stride())
            fake = FakeTensor(fake_mode, on_meta, t.device, constant=t)
        self.set_tensor_memo(t, fake)
        self.add_constant_storage_mapping(fake)
        return fake


_OF_FAKES = (
    "torch.optim",
    "torch._subclasses",
    "torch._refs",
    "torch._decomp",
    "torch._prims",
    "torch._meta_registrations",
)


@cache
def _call_undisabled() -> None:
    """Let functions under `_disable_dynamo` run without the compiler, as long as nobody has loaded it.

    `_disable_dynamo` looks up an attribute of the function, and loads the compiler to create it.
    """
    code: CodeType = torch._compile._disable_dynamo(lambda: None).__code__
    # All functions that `_disable_dynamo` has wrapped are closures of this one code object, so they refer to it.
    for disabled in gc.get_referrers(code):
        if isinstance(disabled, FunctionType) and disabled.__module__.startswith(_OF_FAKES):
            assert disabled.__closure__ is not None
            function = disabled.__closure__[code.co_freevars.index("fn")].cell_contents
            if not hasattr(function, _FOUND):
                setattr(function, _FOUND, _until_loaded(disabled, function))


_FOUND = "__dynamo_disable"


def _until_loaded(disabled: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _compiler_is_loaded():
            return function(*args, **kwargs)
        if getattr(function, _FOUND, None) is call:
            # The compiler is loaded by now: torch creates its own function at the next lookup.
            delattr(function, _FOUND)
        return disabled(*args, **kwargs)

    return call


def step_without_compiler(optimizer: Optimizer) -> Callable[[], object]:
    """Return the optimizer's `step`; one of torch's own classes loads the compiler otherwise, to tell it something."""
    step = optimizer.step
    own = getattr(step, "__func__", None)
    if _compiler_is_loaded() or own is None or own is not getattr(type(optimizer), "step", None):
        return step
    return partial(_undifferentiated(own), optimizer)


_USE_GRAD = _use_grad_for_differentiable(lambda self: None).__code__


def _undifferentiated(step: Any) -> Any:
    """Return a copy of a decorated step in which `_use_grad_for_differentiable` does not import the compiler."""
    if not isinstance(step, FunctionType):
        return step
    if step.__code__ is _USE_GRAD:
        return _reading_settings(step)
    if step.__closure__ is None or "func" not in step.__code__.co_freevars:
        return step
    place = step.__code__.co_freevars.index("func")
    cells = list(step.__closure__)
    cells[place] = CellType(_undifferentiated(cells[place].cell_contents))
    copy = FunctionType(step.__code__, step.__globals__, step.__name__, step.__defaults__, tuple(cells))
    copy.__kwdefaults__ = step.__kwdefaults__
    return copy
