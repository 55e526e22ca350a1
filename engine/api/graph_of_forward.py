"""The graph of a model's forward, for `ts.graph(model, *inputs)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ...inspector.capture.build_graph import graph_of_unfinished, read_graph, why_no_graph
from ...inspector.capture.capture import capture
from ...inspector.capture.unfinished_forward import TensorNames, UnfinishedForward, named_tensors, tensor_name
from ...inspector.graph.graph import Graph, TensorMeta, Untracked, UntrackedKind
from ...inspector.graph.operations_and_calls import Operation
from ...inspector.torch_private.tensors import storage_of
from ...inspector.validation import a_kind
from ..execution.unsupported import refuse_transforms
from .restore_state import AsFound

_KEPT = "_tapescope_forward"  # an attribute of the exception that ended a model's forward


def unfinished_forward(error: BaseException) -> UnfinishedForward | None:
    """Return the forward that raised this exception in `ts.graph(model, *inputs)`; None if none did."""
    found = getattr(error, _KEPT, None)
    return found if isinstance(found, UnfinishedForward) else None


def graph_of_forward(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """Call a model once, and return the graph of its results. See `ts.graph`."""
    refuse_transforms("ts.graph(model, ...)")
    try:
        signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"ts.graph cannot call {type(model).__name__}: {error}. Pass its inputs as in a call of the model, "
            "ts.graph(model, *inputs); the graph of a loss is ts.graph(loss)"
        ) from None
    with AsFound(lambda: model(*args, **kwargs), "ts.graph") as world, world.watched():
        inputs = dict(named_tensors(type(model).forward, (model, *args), kwargs))
        recorded = capture(model, keep_inputs=True)
        try:
            with recorded as tape:
                tape.names = names = _names(model, inputs)
                result: object = world.make_loss()
        except Exception as error:
            setattr(error, _KEPT, tape.unfinished)
            if tape.unfinished is not None and tape.unfinished.nodes:
                error.add_note(
                    "tapescope: ts.graph(error) returns the graph of the forward until this error; in a notebook, "
                    "ts.graph(sys.last_value)"
                )
            raise
        results = _results(model, result)
        parameters = dict(model.named_parameters())
        found = read_graph(
            results, {**{name: each for name, each in inputs.items() if each.requires_grad}, **parameters}
        )
        found = replace(found, forward=type(model).__name__, untracked=_untracked(found, names))
        for task in found.tasks:
            if isinstance(task.operation, Operation):
                task.operation.inputs = None  # kept only for `_untracked`
        _ = found.saved  # which is freed with the results
        return found


def graph_of_error(error: BaseException) -> Graph:
    """Return the graph of the forward that raised this exception in `ts.graph(model, *inputs)`. See `ts.graph`."""
    unfinished = unfinished_forward(error)
    if unfinished is None:
        raise ValueError(
            f"this {type(error).__name__} was not raised in ts.graph(model, *inputs), so its forward is unknown; "
            "run the forward in `with ts.capture() as tape:`, and call tape.graph() after the error"
        )
    found = graph_of_unfinished(unfinished)
    merged: dict[object, Untracked] = {}
    # The failed call and the operations before it may take the same input, which is one pill.
    for each in (*_untracked(found, unfinished.names), *found.untracked):
        key = (each.kind, each.name) if each.kind != "tensor" else len(merged)
        before = merged.get(key)
        merged[key] = each if before is None else replace(before, users=(*before.users, *each.users))
    return replace(found, untracked=tuple(merged.values()))


def _names(model: nn.Module, inputs: Mapping[str, Tensor]) -> TensorNames:
    parameters = dict(model.named_parameters())
    kinds: list[tuple[UntrackedKind, Mapping[str, Tensor]]] = [
        ("input", inputs),
        ("buffer", dict(model.named_buffers())),
        ("frozen parameter", {name: each for name, each in parameters.items() if not each.requires_grad}),
        ("tensor", {name: each for name, each in parameters.items() if each.requires_grad}),  # used detached
    ]
    return {
        storage.address: (kind, name)
        for kind, tensors in kinds
        for name, tensor in tensors.items()
        if (storage := storage_of(tensor)) is not None
    }


def _results(model: nn.Module, result: object) -> list[Tensor]:
    """Return the tensors in a forward's result that require grad, each node's output once."""
    tensors = list(_tensors_in(result))
    name = type(model).__name__
    if not tensors:
        raise TypeError(f"{name} returned {a_kind(result)} without a tensor; expected one, or a container or dataclass")
    tracked = {get_gradient_edge(each): each for each in tensors if each.requires_grad}
    if tracked:
        return list(tracked.values())
    parameters = list(model.parameters())
    frozen = parameters and not any(each.requires_grad for each in parameters)
    if torch.is_grad_enabled() and frozen and not tensors[0].is_inference():
        raise RuntimeError(
            f"no result of {name} requires grad, so there is no graph: all its {len(parameters):,} parameters are "
            "frozen, and no input requires grad. Pass an input with requires_grad=True, or unfreeze a parameter"
        )
    raise RuntimeError(f"no result of {name} requires grad, so there is no graph: {why_no_graph(tensors[0])}")


def _tensors_in(value: object, depth: int = 4) -> Iterator[Tensor]:
    """Yield the tensors in a model's result: tensors, containers and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping | tuple | list):
        for each in list(value.values()) if isinstance(value, Mapping) else value:
            yield from _tensors_in(each, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors_in(getattr(value, field.name, None), depth - 1)


def _untracked(graph: Graph, names: TensorNames) -> tuple[Untracked, ...]:
    """Return the tensors without a gradient that the operations of a graph took."""
    last: dict[Operation, int] = {}
    for task in graph.tasks:
        if isinstance(task.operation, Operation) and not task.is_leaf:
            last[task.operation] = task.id
    kept = [(each, user) for operation, user in last.items() if operation.inputs for each in operation.inputs.tensors]
    tracked = {storage.address for each, _ in kept if each.requires_grad and (storage := storage_of(each.tensor))}
    found: dict[object, Untracked] = {}
    for each, user in kept:
        if not each.requires_grad:
            tensor = each.tensor
            kind, name = tensor_name(tensor, each.name, names, None)
            storage = storage_of(tensor)
            if kind == "tensor" and name == each.name and storage is not None and storage.address in tracked:
                name = "detached tensor"
            key = (kind, name) if kind != "tensor" else (storage and storage.address) or id(each)
            meta = TensorMeta(None if tensor.is_nested else tuple(tensor.shape), tensor.dtype, tensor.device)
            before = found.setdefault(key, Untracked(kind, name, meta, ()))
            if user not in before.users:
                found[key] = replace(before, users=(*before.users, user))
    return tuple(found.values())
