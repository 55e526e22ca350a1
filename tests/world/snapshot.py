"""All that a verb could change in the world of its user, to be compared bit for bit."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.parallel import DistributedDataParallel

from tapescope.inspector.torch_private.hooks import leaf_hooks, node_hooks, post_accumulate_hooks
from tapescope.inspector.torch_private.tensors import parts_of

from .programs import Program

Snapshot = dict[str, object]


def snapshot(program: Program, nodes: tuple[Node, ...] = ()) -> Snapshot:
    """Return each fact by name, as a value that can be compared. `nodes`: those of an existing graph."""
    return dict(_facts(program, nodes))


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """The names of the facts that are others."""
    names = [*before, *(name for name in after if name not in before)]
    return [name for name in names if before.get(name, "none") != after.get(name, "none")]


def _facts(program: Program, nodes: tuple[Node, ...]) -> Iterator[tuple[str, object]]:
    for name, tensor in program.tensors().items():
        yield from _of_tensor(name, tensor)
        yield from _of_tensor(f"{name}.grad", tensor.grad if tensor.is_leaf or tensor.retains_grad else None)
        if tensor.is_leaf and tensor.requires_grad:
            yield f"{name}, hooks", [*map(id, leaf_hooks(tensor)), *map(id, post_accumulate_hooks(tensor))]
    for module in program.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            yield f"{type(module).__name__} {id(module)}, {kind}", list(getattr(module, kind))
        yield (
            f"{type(module).__name__} {id(module)}, attributes",
            {name: value for name, value in vars(module).items() if isinstance(value, bool | int | float | str)},
        )
        yield from _of_fsdp(module)
    for number, node in enumerate(nodes):
        yield f"node {number}", (node._sequence_nr(), [list(map(id, hooks)) for hooks in node_hooks(node)])
    for name, generator in program.generators.items():
        yield name, generator.get_state().tolist()
    yield "torch's random numbers", torch.get_rng_state().tolist()
    yield "Python's random numbers", random.getstate()
    yield "NumPy's random numbers", [str(each) for each in numpy.random.get_state()[1:]]
    yield "what the program counts", dict(program.counts)
    yield from _of_process()


def _of_tensor(name: str, tensor: Tensor | None) -> Iterator[tuple[str, object]]:
    if tensor is None:
        yield name, None
        return
    if tensor.layout is not torch.strided:
        yield f"{name}, values", [bits(each) for each in (tensor._indices(), tensor._values())]
    else:
        yield f"{name}, values", [bits(each) for each in parts_of(tensor)]
        yield f"{name}, bytes are at", [each.data_ptr() for each in parts_of(tensor)]
    yield f"{name}, object", (id(tensor), type(tensor), tensor.requires_grad, tensor.grad_fn is None)
    yield f"{name}, version", tensor._version


def bits(tensor: Tensor) -> object:
    """Return a value that represents its bits: NaN equals NaN, and 0 is not -0."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return tensor.dtype, tuple(tensor.shape), sha256(raw.data).hexdigest()


def _of_fsdp(module: nn.Module) -> Iterator[tuple[str, object]]:
    if not hasattr(module, "_get_fsdp_state"):
        return
    state = module._get_fsdp_state()
    groups = state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
    for number, group in enumerate(filter(None, groups)):  # before torch 2.13 a module has one group, or none
        name = f"FSDP of {id(module)}, {number}"
        yield f"{name}, state", (str(group._training_state), str(group._sharded_state), group.reduce_grads)
        for place, each in enumerate(group.fsdp_params):
            yield from _of_tensor(f"{name}, accumulated {place}", each.unsharded_accumulated_grad)
            yield f"{name}, sharded {place}", str(each.sharded_state)


def _of_process() -> Iterator[tuple[str, object]]:
    yield "modes", (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack())
    yield "gradients", (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled())
    yield "hooks of saved tensors", torch._C._autograd._top_saved_tensors_default_hooks(True)
    yield "autocast", (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled())
    yield "deterministic", torch.are_deterministic_algorithms_enabled()
    yield "dtype", torch.get_default_dtype()
    yield (
        "replaced",
        [
            id(each)
            for each in (
                torch.autograd.Function.__dict__.get("apply"),
                torch.autograd._engine_run_backward,
                torch.autograd.graph._engine_run_backward,
                torch.autograd.backward,
                DistributedDataParallel._pre_forward,
                DistributedDataParallel._post_forward,
                torch._C._current_graph_task_id,
                torch.Tensor.backward,
            )
        ],
    )
    hooks = nn.modules.module
    yield (
        "hooks of all modules",
        [list(getattr(hooks, name)) for name in dir(hooks) if name.startswith("_global_") and name.endswith("_hooks")],
    )
    yield "garbage collector", (gc.isenabled(), gc.get_threshold())


def state_of(program: Program) -> dict[str, Any]:
    """The values alone, by which two programs can be compared that were built alike."""
    found: dict[str, Any] = {}
    for name, tensor in program.tensors().items():
        found[name] = [bits(each) for each in parts_of(tensor)]
        grad = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        dense = grad.to_dense() if grad is not None and grad.layout is not torch.strided else grad
        found[f"{name}.grad"] = None if dense is None else [bits(each) for each in parts_of(dense)]
    return found
