"""Watching a forward: `with th.capture() as tape: loss = model(x).sum()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import get_ident
from types import TracebackType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.autograd.graph import Node
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from .tape import CallRecord, Operation, SavedRecord, Tape, mark, mark_result, nodes_of, seen_by, unmarked_nodes
from .torch_internals import (
    ApplyWatcher,
    capture_traceback,
    saved_tensor_hooks_in_use,
    sequence_nr,
    watch_function_apply,
)

Paths = dict[nn.Module, str]


class capture:
    """Records, while it is open, what the forward does in this thread.

    `th.graph(loss)` then knows for each task its module path, source line, forward operation, time of creation and the
    tensors it saved. Works for shared modules, several calls of one module, code outside modules, custom Functions, and
    with other captures inside or around. On leaving, also by an exception, it takes all its hooks away.

    Args:
        module: names the parameters and modules after this module; without it, after each outermost module that is
            called. Give it where the forward calls parts of a model and never the model itself.

    Known limitations: another thread's forward is not seen (open a capture there). A compiled region is one node with
    the module call around it. Tensors saved under the user's own `saved_tensors_hooks` (checkpoint is such a user) are
    not listed: reading them would run those hooks.
    """

    def __init__(self, module: nn.Module | None = None) -> None:
        self._module = module
        self._exits = ExitStack()

    def __enter__(self) -> Tape:
        tape = Tape()
        with ExitStack() as stack:
            calls = _CallWatcher(tape, self._module)
            for handle in calls.register():
                stack.callback(handle.remove)
            tape.saves_seen = not saved_tensor_hooks_in_use()
            if tape.saves_seen:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_saver(tape), SavedRecord.unpack))
            stack.enter_context(_OperationWatcher(tape, calls))
            stack.enter_context(watch_function_apply(_apply_watcher(tape, calls)))
            stack.push(_note_error(tape))
            self._exits = stack.pop_all()
        return tape

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.__exit__(kind, error, traceback)


class _CallWatcher:
    """Global module hooks which keep the stack of module calls that are running.

    Dynamo traces hooks and function modes into the regions it compiles; asked first whether it is compiling, they are
    nothing to it, and the region stays one node.
    """

    def __init__(self, tape: Tape, module: nn.Module | None) -> None:
        self._tape = tape
        self._thread = tape.thread
        # Last, the sequence number before the call.
        self._running: list[tuple[nn.Module, CallRecord, tuple[int, Paths], int]] = []
        self._roots: list[tuple[int, Paths]] = []
        self._counts: dict[nn.Module, int] = {}
        self.current: CallRecord | None = None
        self.last_result: object = None  # of the newest operation: its nodes are marked
        if module is not None:
            self._roots.append(tape.add_root(module, unnamed=True))

    def register(self) -> Iterator[RemovableHandle]:
        yield nn.modules.module.register_module_forward_pre_hook(self._entered)
        yield nn.modules.module.register_module_forward_hook(self._left, always_call=True)

    def _entered(self, module: nn.Module, args: object) -> None:
        if is_dynamo_compiling() or get_ident() != self._thread:
            return
        root = self._running[-1][2] if self._running else self._root_of(module)
        path = root[1].get(module)
        if path is None:  # not registered below the outermost module
            path = ".".join(filter(None, (self.current.path if self.current else "", type(module).__name__)))
        index = self._counts[module] = self._counts.get(module, -1) + 1
        self.current = call = CallRecord(self._tape, root[0], path, type(module), self.current, index)
        self._running.append((module, call, root, sequence_nr()))

    def _left(self, module: nn.Module, args: object, result: object) -> None:
        if is_dynamo_compiling() or get_ident() != self._thread:
            return
        while self._running:  # a call that an exception left may still be on top
            called, call, _, start = self._running.pop()
            self.current = call.parent
            if called is module:
                if result is not self.last_result and sequence_nr() != start:
                    self._mark_unseen(result, call, start)
                return

    def _mark_unseen(self, result: object, call: CallRecord, start: int) -> None:
        """What came out of a module without an operation of Python's, from a scripted or compiled one."""
        nodes = unmarked_nodes(result)
        if nodes:
            mark(nodes, Operation(self._tape, call.module_class, start, sequence_nr(), call, None))

    def _root_of(self, module: nn.Module) -> tuple[int, Paths]:
        for known in self._roots:
            if module in known[1]:
                return known
        self._roots.append(self._tape.add_root(module))
        return self._roots[-1]


class _OperationWatcher(TorchFunctionMode):
    """Sees each call of torch from Python, and marks the nodes it made."""

    def __init__(self, tape: Tape, calls: _CallWatcher) -> None:
        super().__init__()
        self._tape = tape
        self._calls = calls

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if is_dynamo_compiling():
            return function(*args, **(kwargs or {}))
        start = sequence_nr()
        result = function(*args, **kwargs) if kwargs else function(*args)
        end = sequence_nr()
        if end != start:
            operation = Operation(self._tape, function, start, end, self._calls.current, capture_traceback())
            mark_result(result, operation)
            self._calls.last_result = result
            if _writes_in_place(function) and args and isinstance(args[0], Tensor):
                mark(nodes_of([args[0], args[0]._base]), operation)
        return result


def _writes_in_place(function: Callable[..., Any]) -> bool:
    name = getattr(function, "__name__", "")
    return name.endswith("_") and (name == "__setitem__" or not name.endswith("__") or name.startswith("__i"))


def _apply_watcher(tape: Tape, calls: _CallWatcher) -> ApplyWatcher:
    """Marks the nodes of custom Functions, which the function mode doesn't see."""

    def watch(function: type[Function], start: int, result: object) -> None:
        end = sequence_nr()
        if get_ident() == tape.thread and end != start:
            mark_result(result, Operation(tape, function, start, end, calls.current, capture_traceback()))
            calls.last_result = result

    return watch


def _saver(tape: Tape) -> Callable[[Tensor], SavedRecord]:
    note = tape.saved.append

    def pack(tensor: Tensor) -> SavedRecord:
        record = SavedRecord(tensor, sequence_nr() - 1)  # the node took its number just before it saves
        note(ref(record))
        return record

    return pack


def _note_error(tape: Tape) -> Callable[..., None]:
    """An exit callback which keeps the nodes that the frames of an exception still hold, so that they can be drawn."""

    def note(kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        tape.error = error
        nodes: dict[Node, None] = {}
        while traceback is not None:
            for value in list(traceback.tb_frame.f_locals.values()):
                nodes.update(dict.fromkeys(nodes_of(value)))
            traceback = traceback.tb_next
        tape.frontier = tuple(node for node in nodes if seen_by(tape, node))

    return note
