"""A forward that raised: the graph that it had built, and the call that failed."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from ..graph.frame_variables import MODULE_CALL, variables_of
from ..graph.graph import Edge, FailedCall, TensorMeta, Untracked, UntrackedKind
from ..graph.node_metadata import made_during, nodes_of, tensors_of
from ..graph.operation_inputs import argument_names, names_by_place
from ..graph.operations_and_calls import CallRecord, Facts, Operation
from ..graph.source_lines import innermost_user_line
from ..torch_private.tensors import storage_of
from ..torch_private.thread_state import without_torch_function
from .capture_record import CaptureRecord, innermost_module
from .watch_calls import WATCHED_CALL

TensorNames = Mapping[int, tuple[UntrackedKind, str]]
"""Kind and name of the model's and the inputs' tensors, by the address of their storage."""


class UnfinishedForward:
    """The graph of a forward that raised, read from the variables in the frames of its traceback.

    Args:
        record: the capture's record, while it is open.
        error: the exception.
        frames: its traceback, from the capture's block inwards.
        names: the names of tensors that are no parameters of a module that was called.
    """

    def __init__(
        self, record: CaptureRecord, error: BaseException, frames: TracebackType | None, names: TensorNames
    ) -> None:
        where = innermost_user_line(traceback.extract_tb(error.__traceback__))
        self.raised = type(error).__name__ + (f" at {where.short}" if where else "")
        with suppress(Exception):  # a user's exception may raise when it is read
            message = str(error).partition("\n")[0]
            self.raised += f": {message}" if message else ""
        self.facts = record.facts
        self.names = names
        self.call: CallRecord | None = None
        self._name: str | None = None  # of the failed call
        self._inputs: list[tuple[TensorMeta, Node | None, int, tuple[UntrackedKind, str]]] = []
        nodes: dict[Node, None] = {}
        called: tuple[Any, Sequence[Any], Mapping[str, Any]] | None = None
        while frames is not None:
            code = frames.tb_frame.f_code
            variables: Mapping[str, Any] = variables_of(frames.tb_frame)
            if code is WATCHED_CALL or code is MODULE_CALL:
                function = variables["function" if code is WATCHED_CALL else "self"]
                called = function, variables["args"], variables["kwargs"] or {}
            for value in variables.values():
                with suppress(Exception):  # a user's container may raise anything when it is read
                    nodes.update(dict.fromkeys(nodes_of(value)))
            frames = frames.tb_next
        self.nodes = [node for node in nodes if made_during(self.facts, node)]
        if record.raised_in is not None and record.raised_in[0]() is innermost_module(error):
            self.call = record.raised_in[1]
        if called is not None:
            with suppress(Exception), without_torch_function():
                self._read_call(*called, names)

    def _read_call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], names: TensorNames) -> None:
        if isinstance(function, nn.Module):
            self._name = type(function).__name__
            function, args = type(function).forward, (function, *args)
        else:
            self._name = _short_name(function, self.facts)
        for argument, tensor in named_tensors(function, args, kwargs):
            meta = TensorMeta(None if tensor.is_nested else tuple(tensor.shape), tensor.dtype, tensor.device)
            edge = get_gradient_edge(tensor) if tensor.requires_grad else None
            named = tensor_name(tensor, argument, names, self.facts)
            if edge is None:
                self._inputs.append((meta, None, 0, named))
            else:
                self._inputs.append((meta, edge.node, edge.output_nr, named))
                self.nodes.append(edge.node)

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return str, (self.raised,)  # nodes cannot be pickled, and the exception that holds this may be

    def leaf_name(self, leaf: Tensor) -> str | None:
        """Return the name of a parameter of a called module, or of an input."""
        name = self.facts.leaf_name(leaf)
        storage = storage_of(leaf) if name is None else None
        kind, given = self.names.get(storage.address, ("", None)) if storage is not None else ("", None)
        return given if kind == "input" else name

    def placed(self, ids: Mapping[Node, int], call: int | None) -> tuple[FailedCall | None, tuple[Untracked, ...]]:
        """Return the failed call and its arguments without a gradient, given the ids of tasks and of its call."""
        if self._name is None:
            return None, ()
        own = len(ids)
        edges = [
            Edge(own, place, ids[node], number)
            for place, (_, node, number, _) in enumerate(self._inputs)
            if node is not None
        ]
        untracked = [Untracked(*named, meta, (own,)) for meta, node, _, named in self._inputs if node is None]
        shapes = tuple(meta.shape for meta, *_ in self._inputs)
        return FailedCall(self._name, shapes, call, tuple(edges)), tuple(untracked)


def named_tensors(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors among a call's arguments with the argument's name; those in containers are numbered."""
    names = names_by_place(argument_names(function), len(args))
    for name, value in (*zip(names, args, strict=True), *kwargs.items()):
        for place, tensor in enumerate(tensors_of(value)):
            yield name if tensor is value else f"{name}[{place}]", tensor


def tensor_name(tensor: Tensor, argument: str, names: TensorNames, facts: Facts | None) -> tuple[UntrackedKind, str]:
    """Return the kind and name of a tensor without a gradient; otherwise the name of the argument that it is."""
    storage = storage_of(tensor)
    if storage is not None and (known := names.get(storage.address)) is not None:
        return known
    parameter = None if facts is None else facts.leaf_name(tensor)
    return ("tensor", argument) if parameter is None else ("frozen parameter", parameter)


def _short_name(function: Callable[..., Any], facts: Facts) -> str:
    """Return `linear` for torch.nn.functional.linear, `matmul` for torch.Tensor.__matmul__."""
    name = Operation(facts, function, 0, 0, None, None).name.rpartition(".")[2]
    return name.strip("_") if name.startswith("__") else name
