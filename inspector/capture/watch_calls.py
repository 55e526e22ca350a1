"""Watchers of calls of torch functions and `Function.apply`, and of the storages they allocate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from typing import Any
from weakref import ref

from torch import Tensor
from torch.autograd.function import Function
from torch.autograd.graph import Node
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from ..graph.node_metadata import (
    HOOKING,
    mark,
    mark_again,
    mark_foreign,
    mark_result,
    nodes_of,
    note_hook,
    operation_of,
    tensors_of,
)
from ..graph.operation_inputs import KeptInputs, keep_inputs, marks_dirty
from ..graph.operations_and_calls import Facts, Operation
from ..torch_private.call_watchers import AroundApply, around_function_apply, following_module_calls, is_generated
from ..torch_private.compiled import watching_functions
from ..torch_private.sequence_numbers import sequence_nr
from ..torch_private.tensors import FollowedStorage, address_below, base_of, is_leaf, version_of
from ..torch_private.thread_state import without_torch_function
from .capture_record import CaptureRecord, Observer
from .inplace_writes import Versions, note_writes, versions_before


def note_allocations(
    facts: Facts, result: object, args: Sequence[object], kwargs: Mapping[str, object], *, is_new: bool = True
) -> None:
    """Note the storage of a result that occupies new bytes, or bytes that the forward allocated before.

    The second kind is, for example, the detached result of an operation with a node: the last step of an attack. Memory
    that torch did not allocate, such as that of a NumPy array, is not noted.

    Args:
        facts: the capture's facts.
        result: the operation's result.
        args, kwargs: its arguments.
        is_new: whether a result that shares no bytes with the arguments is on new ones. An attribute such as `.grad`
            existed before.
    """
    for made in (result,) if isinstance(result, Tensor) else tensors_of(result):
        address = _address(made)
        if not address or (address in facts.allocations and facts.allocations[address][0].alive):
            continue
        owners = [each for each in (*tensors_of(args), *tensors_of(kwargs)) if _address(each) == address]
        is_allocated = any(_made_here(facts, each) for each in owners) if owners else is_new
        if is_allocated and made.untyped_storage().resizable():
            facts.allocations[address] = FollowedStorage(made), sequence_nr()


def _made_here(facts: Facts, owner: Tensor) -> bool:
    """Return whether an operation of this capture allocated the tensor's bytes, with a node and out of place."""
    base = base_of(owner)
    node = (owner if base is None else base).grad_fn
    operation = None if node is None else operation_of(node)
    return isinstance(operation, Operation) and operation.facts is facts and not operation.writes_in_place


def _address(tensor: Tensor) -> int:
    """Return the address of the tensor's bytes; 0 for a tensor without its own bytes, and for subclasses."""
    return address_below(tensor) or 0 if type(tensor) in (Tensor, Parameter) and not tensor.is_sparse else 0


def watch_calls(stack: ExitStack, record: CaptureRecord, observer: Observer | None, keep: bool) -> None:
    """Watch the calls of modules, functions and custom Functions until the stack closes."""
    record.facts.sees_every_call = True
    stack.enter_context(following_module_calls(record.entered, record.left, record.called_elsewhere))
    stack.enter_context(watching_functions(_OperationWatcher(record, observer, keep)))
    stack.enter_context(around_function_apply(_around_apply(record, observer, keep)))


class _OperationWatcher(TorchFunctionMode):
    """A function mode that marks the nodes made by each call of torch."""

    def __init__(self, record: CaptureRecord, observer: Observer | None, keep: bool) -> None:
        super().__init__()
        self._record = record
        self._observer = observer
        self._keep = keep

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if is_dynamo_compiling():
            return function(*args, **(kwargs or {}))
        record = self._record
        outer = record.new_nodes
        kept = keep_inputs(function, args, kwargs or {}) if self._keep else None
        versions = versions_before(function, args, kwargs)
        start, began_ns = sequence_nr(), perf_counter_ns()
        new: list[Node] | None = None if outer is None else []
        record.new_nodes = new
        try:
            result = function(*args, **kwargs) if kwargs else function(*args)
        finally:
            record.new_nodes = outer
        end = sequence_nr()
        if versions is not None:
            note_writes(versions, function, result)
        if end == start and not new:
            self._made_no_node(function, result, args, kwargs or {}, start)
            return result
        with without_torch_function():
            inputs = kept and kept.close()
            last = end if new is None else start  # every node has a mark, so none is searched for by number
            operation = Operation(record.facts, function, start, last, *record.site(), inputs, began_ns)
            if not isinstance(result, Tensor):  # (values, indices)
                leaves = [each for each in tensors_of(result) if is_leaf(each)]
                note_allocations(record.facts, leaves, args, kwargs or {})
            record.note_stream(operation, result)
            written = None
            if versions is not None and operation.writes_in_place and args and isinstance(args[0], Tensor):
                written = args[0]
                record.note_stream(operation, written)
            if new is not None:
                mark_again(new, operation)
            else:
                mark_result(result, operation)
                if written is not None:
                    mark(nodes_of([written, base_of(written)]), operation)
                newest = record.last_result
                mark_foreign(args, start, newest and newest())
            record.last_result = ref(result) if isinstance(result, Tensor) else None
        if self._observer is not None:
            self._observer(operation, result, args)
        return result

    def _made_no_node(
        self, function: Callable[..., Any], result: object, args: tuple[Any, ...], kwargs: dict[str, Any], now: int
    ) -> None:
        name = getattr(function, "__name__", None)
        facts = self._record.facts
        is_attribute = name == "__get__"  # such as .grad, which existed before, and .data
        if not is_attribute or isinstance(result, Tensor):
            with without_torch_function():
                note_allocations(facts, result, args, kwargs, is_new=not is_attribute)
        hooks = name in HOOKING and bool(args) and isinstance(args[0], Tensor)
        observed = self._observer is not None and (result is None or next(tensors_of(result), None) is not None)
        if hooks or observed:
            operation = Operation(facts, function, now, now, *self._record.site())
            if hooks:
                with without_torch_function():
                    note_hook(args[0], args[1] if len(args) > 1 else kwargs.get("hook"), operation)
            if self._observer is not None and observed:
                self._observer(operation, result, args)


WATCHED_CALL = _OperationWatcher.__torch_function__.__code__
"""The code that calls torch's functions; in a traceback, its frame has the function and its arguments."""


def _around_apply(record: CaptureRecord, observer: Observer | None, keep: bool) -> AroundApply:
    """Mark the nodes of custom Functions, which the function mode does not see; it does see those of torch.library."""

    def before(
        function: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[object], None] | None:
        if get_ident() != record.facts.thread or is_generated(function):
            return None
        versions: Versions = ()
        if marks_dirty(function):
            with without_torch_function():
                versions = [(tensor, version_of(tensor)) for tensor in tensors_of((args, kwargs))]
        kept = keep_inputs(function, args, kwargs) if keep else None
        return partial(after, function, versions, sequence_nr(), perf_counter_ns(), kept)

    def after(
        function: type[Function],
        versions: Versions,
        start: int,
        began_ns: int,
        kept: KeptInputs | None,
        result: object,
    ) -> None:
        end = sequence_nr()
        note_writes(versions, function, None)
        if end != start:
            with without_torch_function():
                inputs = kept and kept.close()
                by_node = record.new_nodes is not None
                last = start if by_node else end
                operation = Operation(record.facts, function, start, last, *record.site(), inputs, began_ns)
                if by_node:
                    mark_again(nodes_of(result), operation)
                else:
                    mark_result(result, operation)
                record.note_stream(operation, result)
                record.last_result = ref(result) if isinstance(result, Tensor) else None
            if observer is not None:
                observer(operation, result, ())

    return before
