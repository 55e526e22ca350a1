"""The user's state as values that can be compared: tensors, objects, flags of the process."""

from __future__ import annotations

import builtins
import gc
import random
import sys
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from program import Program
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as torch_optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

State = dict[str, Any]

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


_SET_ONCE = {"_has_rebuilt_buckets", "_lazy_init_ran", "_static_graph_delay_allreduce_enqueued"}
"""Attributes of DistributedDataParallel that its first iteration sets, with state in C++ that nobody can take back."""


def bits(tensor: Tensor | None) -> Any:
    """Return dtype, shape and bytes of a tensor of any layout; nested tuples where it has several parts."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        return type(tensor).__name__, tensor.device.type, tuple(tensor.shape), str(tensor.dtype)
    if tensor.layout in _COMPRESSED:
        rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
        compressed = tensor.crow_indices() if rows else tensor.ccol_indices()
        plain = tensor.col_indices() if rows else tensor.row_indices()
        return str(tensor.layout), bits(compressed), bits(plain), bits(tensor.values())
    if tensor.layout is torch.sparse_coo:
        coalesced = tensor.coalesce()
        return "coo", tuple(tensor.shape), bits(coalesced.indices()), bits(coalesced.values())
    if tensor.is_nested:
        return "nested", *map(bits, tensor.unbind())
    if tensor.is_mkldnn:
        return "mkldnn", bits(tensor.to_dense())
    if tensor.is_quantized:
        return "quantized", bits(tensor.int_repr())
    if hasattr(tensor, "__tensor_flatten__") and type(tensor) is not Tensor:
        names, _ = tensor.__tensor_flatten__()
        inner = [getattr(tensor, name) for name in names]  # of a DTensor the mesh is among them
        return type(tensor).__name__, *(bits(each) for each in inner if isinstance(each, Tensor))
    plain = tensor.as_subclass(Tensor).resolve_conj().resolve_neg().contiguous()
    raw = plain.reshape(-1).view(torch.uint8) if plain.numel() else plain.new_empty(0, dtype=torch.uint8)
    return str(plain.dtype), tuple(plain.shape), raw.numpy().tobytes()


def is_near(one: Any, other: Any, is_rough: bool) -> bool:
    """Return whether two results of `bits` differ by no more than the rounding of another order."""
    if isinstance(one, tuple) and len(one) == 3 and isinstance(one[2], bytes):
        if one[:2] != other[:2]:
            return False
        dtype = getattr(torch, one[0].removeprefix("torch."))
        if not one[2]:
            return True
        values = [torch.frombuffer(bytearray(each[2]), dtype=dtype) for each in (one, other)]
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.equal(*values)
        wide = [each.to(torch.complex128 if dtype.is_complex else torch.float64) for each in values]
        relative, absolute = (5e-2, 1e-2) if is_rough else (1e-4, 1e-6)
        return torch.allclose(*wide, rtol=relative, atol=absolute, equal_nan=True)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(lambda a, b: is_near(a, b, is_rough), one, other))
    return bool(one == other)


def values_of(program: Program, with_log: bool = True) -> State:
    """Return the bits of all tensors of the user's, and the states of the generators."""
    with _disable_current_modes(), torch.no_grad():
        return dict(_values(program, with_log))


def _values(program: Program, with_log: bool) -> Iterator[tuple[str, Any]]:
    for name, leaf in program.leaves.items():
        yield f"{name}.grad", bits(leaf.grad)
        yield name, bits(leaf)
    buffers = dict(program.buffers)
    if program.model is not None:
        buffers.update(program.model.named_buffers())
    for name, buffer in buffers.items():
        yield f"buffer {name}", bits(buffer)
    for name, tensor in program.extra().items():
        yield f"extra {name}", bits(tensor)
    for number, optimizer in enumerate(program.optimizers):
        yield f"optimizer {number}", _optimizer_state(optimizer)
    yield "random numbers", random_numbers()
    if with_log and program.log is not None:
        yield "hook calls", repr(program.log)


def _optimizer_state(optimizer: torch.optim.Optimizer) -> Any:
    state = optimizer.state_dict()
    entries = {
        place: {name: bits(each) if isinstance(each, Tensor) else repr(each) for name, each in entry.items()}
        for place, entry in state["state"].items()
    }
    return entries, [{name: repr(each) for name, each in group.items()} for group in state["param_groups"]]


def random_numbers() -> str:
    """Return a digest of the states of torch's, Python's and NumPy's generators."""
    raw = torch.random.default_generator.get_state().numpy().tobytes()
    return sha256(raw + repr(random.getstate()).encode() + repr(np.random.get_state()).encode()).hexdigest()


def objects_of(program: Program) -> State:
    """Return the identities that a user may rely on: objects, storages, versions, hooks, attributes."""
    with _disable_current_modes():
        return dict(_objects(program))


def _objects(program: Program) -> Iterator[tuple[str, Any]]:
    for name, leaf in program.leaves.items():
        yield f"{name}.grad is", None if leaf.grad is None else (id(leaf.grad), _or_none(_address, leaf.grad))
        yield f"{name} has version", _or_none(_version, leaf)
        hooks = len(leaf._backward_hooks or ()), len(leaf._post_accumulate_grad_hooks or ())
        yield f"{name} is", (leaf.requires_grad, leaf.is_leaf, hooks, type(leaf).__name__, _or_none(_address, leaf))
    if program.model is None:
        return
    for name, module in program.model.named_modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            yield f"module {name}, {kind}", list(getattr(module, kind, ()))
        yield f"module {name}, class", type(module)
        yield f"module {name}, names", sorted(vars(module))
        yield f"module {name}, parameters", [id(each) for each in module._parameters.values()]
        yield f"module {name}, buffers", [id(each) for each in module._buffers.values()]
        plain = bool | int | float | str
        for key, each in vars(module).items():
            if isinstance(each, plain) and key not in _SET_ONCE:
                yield f"module {name}, {key}", each


def _or_none(read: Any, tensor: Tensor) -> Any:
    try:
        return read(tensor)
    except (RuntimeError, NotImplementedError, AttributeError):  # layouts without a storage, inference tensors
        return None


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _version(tensor: Tensor) -> int:
    return tensor._version


def flags() -> State:
    """Return the modes and flags of this thread and process that a verb could leave changed."""
    found: State = {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "dispatch modes": [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()],
        "function modes": [type(mode).__name__ for mode in _get_current_function_mode_stack()],
        "saved tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
        "saved tensor hooks disabled": torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
        "multithreading": torch._C._is_multithreading_enabled(),
        "view replay": torch._C._is_view_replay_enabled(),
        "anomaly mode": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "forward AD level": forward_ad._current_level,
        "functorch": torch._C._functorch.peek_interpreter_stack() is None,
        "tracers": (sys.gettrace(), sys.getprofile()),
        "garbage collector": (gc.isenabled(), gc.get_threshold()),
        "recursion limit": sys.getrecursionlimit(),
    }
    replaced = {
        "Tensor.backward": torch.Tensor.backward,
        "autograd.backward": torch.autograd.backward,
        "autograd.grad": torch.autograd.grad,
        "retain_grad": torch.Tensor.retain_grad,
        "register_hook": torch.Tensor.register_hook,
        "Function.apply": torch.autograd.Function.__dict__.get("apply"),
        "Module.__call__": nn.Module.__call__,
        "Module._call_impl": nn.Module._call_impl,
        "__import__": builtins.__import__,
        "checkpoint": checkpoint.checkpoint,
        "excepthook": sys.excepthook,
    }
    found.update((name, id(each)) for name, each in replaced.items())
    for where in (nn_module, torch_optimizer):
        for name, hooks in vars(where).items():
            if name.startswith("_global_") and isinstance(hooks, dict):
                found[name] = len(hooks)
    if "torch._dynamo.eval_frame" in sys.modules:
        stance = sys.modules["torch._dynamo.eval_frame"]._stance
        found["compiler stance"] = stance.stance, stance.backend
    return found


def differences(before: State, after: State, is_exact: bool = True, is_rough: bool = False) -> list[str]:
    """Return what differs, each with both values."""
    found = []
    for name in {**before, **after}:
        one, other = before.get(name, "absent"), after.get(name, "absent")
        if one == other or (name == "compiler stance" and "absent" in (one, other)):
            continue
        if is_exact or not isinstance(one, tuple) or not is_near(one, other, is_rough):
            found.append(f"{name} [{_shown(one)} | {_shown(other)}]")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], bytes) and value[2]:
        dtype = getattr(torch, value[0].removeprefix("torch."))
        return f"{value[1]} {torch.frombuffer(bytearray(value[2]), dtype=dtype)[:4].tolist()}"
    return repr(value)[:80]
