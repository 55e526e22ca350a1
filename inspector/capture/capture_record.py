"""The record of a capture while it is open: the module calls that are running, and the newest operation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from traceback import walk_tb
from types import CodeType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.compiler import is_dynamo_compiling

from ..graph.frame_variables import running_modules
from ..graph.node_metadata import mark, tensors_of, unmarked_nodes
from ..graph.operations_and_calls import CallRecord, Facts, Operation
from ..graph.source_lines import Place, is_library, users_place
from ..torch_private.call_watchers import CallStack, forward_has_run, has_late_hooks
from ..torch_private.sequence_numbers import sequence_nr
from ..torch_private.thread_state import without_torch_function

Paths = dict[nn.Module, str]
CALL, _ROOT, PLACE, FORWARD, IS_TORCHS = range(1, 6)
"""Positions in the list that describes a running call of a module. At 0 is the module itself, then:

the call's record; its outermost module, with that module's number; the user's place from which it was called, None
until it is known; the code of the module's forward; and whether torch itself defines that forward. If the record is
told of calls (`entered`), the last element is the sequence number at which the call began.
"""

Observer = Callable[[Operation | CallRecord, object, Sequence[object]], None]


class CaptureRecord:
    """Stack of the module calls that are running in the capture's thread.

    Two modules write into it: `watch_nodes.py`, where torch calls a hook for each new node, and `watch_calls.py`.

    Dynamo traces hooks and function modes into the regions it compiles. Ours first check whether Dynamo is compiling
    and then do nothing, so the region stays one node.

    Attributes:
        facts: the object to which the records of nodes refer.
        calls: the module calls that are running. Each is a list of the module and, once `current` has been read inside
            the call, the elements at `CALL`, `PLACE` and so on.
        last_result: the newest operation's result, whose nodes are marked.
        new_nodes: the nodes made during the current call of torch, if a hook reports them and a function mode sees the
            call.
        accelerator: the device type of the accelerator; None without one.
        raised_in: the module in which the newest exception was raised, and the call that it ended.
    """

    def __init__(self, facts: Facts, module: nn.Module | None, observer: Observer | None) -> None:
        self.facts = facts
        self._module = module
        self._observer = observer
        self._began = sequence_nr()
        self._called_elsewhere = ""  # the class of the first module that another thread called
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        self.accelerator = None if accelerator is None else accelerator.type
        self.calls: CallStack = []
        self._roots: list[tuple[int, Paths]] = []
        self._counts: dict[nn.Module, int] = {}
        self._forwards: dict[type[nn.Module], tuple[CodeType | None, bool]] = {}
        self.last_result: ref[Tensor] | None = None
        self.new_nodes: list[Node] | None = None
        self.raised_in: tuple[ref[nn.Module], CallRecord] | None = None
        self._add_named_root()

    def _add_named_root(self) -> None:
        if self._module is not None:
            self._roots.append(self.facts.add_root(self._module, unnamed=True))

    @property
    def current(self) -> CallRecord | None:
        """Return the innermost running module call."""
        calls = self.calls
        if not calls:
            return None
        entry = calls[-1]
        if len(entry) == 1:
            self.begin()
        call: CallRecord = entry[CALL]
        return call

    def site(self) -> tuple[CallRecord | None, Place | None]:
        """Return the module call and the user's place of the running call of torch."""
        call = self.current
        if call is None:
            return None, users_place()
        entry = self.calls[-1]
        if has_late_hooks(entry[0]) and forward_has_run(sys._getframe()):
            call = call.parent
        return call, users_place(entry[FORWARD], entry[PLACE]) if entry[IS_TORCHS] else users_place()

    @property
    def only_elsewhere(self) -> str:
        """The class of the first module that another thread called, if this thread has recorded nothing; else ""."""
        return self._called_elsewhere if not self._counts and sequence_nr() == self._began else ""

    def begin(self) -> None:
        """Complete the entries of calls in which nothing has been seen yet."""
        calls = self.calls
        first = len(calls) - 1
        while first and len(calls[first - 1]) == 1:
            first -= 1
        for place in range(first, len(calls)):
            entry = calls[place]
            entry += self._described(entry[0], calls[place - 1] if place else None)

    def _described(self, module: nn.Module, above: list[Any] | None) -> tuple[Any, ...]:
        """Return the elements that describe a call of the module, after the module itself."""
        counts, kind = self._counts, type(module)
        index = counts[module] = counts.get(module, -1) + 1
        known = self._forwards.get(kind)
        if known is None:
            code = getattr(getattr(kind, "forward", None), "__code__", None)  # a scripted module has none
            known = self._forwards[kind] = code, code is not None and is_library(code.co_filename)
        forward, is_torchs = known
        if "forward" in module.__dict__:
            forward, is_torchs = None, False
        if above is None:
            root = next((known for known in self._roots if module in known[1]), None)
            if root is None:
                root = self.facts.add_root(module)
                self._roots.append(root)
            call, place = None, None
        else:
            call, root = above[CALL], above[_ROOT]
            place = above[PLACE] if above[IS_TORCHS] else None  # torch's own forward calls its submodules
        number, paths = root
        path = paths.get(module)
        if path is None:  # not registered below the outermost module
            path = ".".join(filter(None, (call.path if call else "", kind.__name__)))
        return CallRecord(self.facts, number, path, kind, call, index), root, place, forward, is_torchs

    def renew(self) -> Facts:
        """Forget all modules and start a new record of facts."""
        before, self.facts = self.facts, Facts()
        self.facts.sees_every_call = before.sees_every_call
        self._roots.clear()
        self._counts.clear()
        self._add_named_root()
        return self.facts

    def note_stream(self, operation: Operation, result: object) -> None:
        """Note the stream current at an operation's end, on which its nodes' backward runs (node.h)."""
        if self.accelerator is None:
            return
        for tensor in (result,) if isinstance(result, Tensor) else tensors_of(result):
            if tensor.device.type == self.accelerator:
                operation.stream = torch.accelerator.current_stream(tensor.device)
                return

    def called_elsewhere(self, module: nn.Module, args: object) -> None:
        """Note that another thread calls a module."""
        if not self._called_elsewhere and not is_dynamo_compiling() and torch.is_grad_enabled():
            self._called_elsewhere = type(module).__name__

    def entered(self, module: nn.Module, args: object) -> None:
        """Begin a module's call."""
        if is_dynamo_compiling():
            return
        calls = self.calls
        call, root, place, forward, is_torchs = self._described(module, calls[-1] if calls else None)
        if is_torchs and place is None:
            place = users_place()
        calls.append([module, call, root, place, forward, is_torchs, sequence_nr()])

    def left(self, module: nn.Module, args: object, result: object) -> None:
        """End a module's call, and nested calls ended by an exception."""
        if is_dynamo_compiling():
            return
        last = self.last_result
        while self.calls:
            entry = self.calls.pop()
            if entry[0] is module:
                call, start = entry[CALL], entry[-1]
                if result is None and innermost_module(sys.exception()) is module:
                    self.raised_in = ref(module), call  # not the exception: its frames hold activations
                marked = last is not None and last() is result
                if not marked and sequence_nr() != start:
                    self._mark_unseen(result, call, start)
                if self._observer is not None and not marked:
                    self._observer(call, result, ())
                return

    def _mark_unseen(self, result: object, call: CallRecord, start: int) -> None:
        """Mark the nodes of a result that no recorded operation made, as in a scripted or compiled module."""
        with without_torch_function():
            nodes = unmarked_nodes(result)
            if nodes:
                operation = Operation(self.facts, call.module_class, start, sequence_nr(), call, None)
                self.note_stream(operation, result)
                mark(nodes, operation)


def innermost_module(error: BaseException | None) -> nn.Module | None:
    """Return the innermost module whose call is in an exception's traceback, or None."""
    if error is None:
        return None
    return next(reversed(running_modules(frame for frame, _ in walk_tb(error.__traceback__))), None)
