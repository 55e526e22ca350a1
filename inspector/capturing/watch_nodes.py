"""New nodes, of which torch tells from 2.14 on: each gets its mark as it is made, wherever that is.

The Python stack says which line called which function of torch, and inside which module's call. So no function mode is
needed, which sees each call and takes half as long as a tiny one.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import cache
from inspect import CO_VARARGS, unwrap
from threading import get_ident
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

import torch
import torch._ops
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from ..graph.facts import CallRecord, Operation
from ..graph.marks import mark_new
from ..graph.source import OVERRIDES, OWN_CODE, PACKAGE, Place, is_library, passes_on
from ..torch_internals.module_calls import WATCHED_CALL, forward_has_run, has_late_hooks, stacking_module_calls
from ..torch_internals.nodes import function_of, input_metadata, watching_new_nodes
from ..torch_internals.sequence_numbers import current_number
from .called_functions import CALLS_ITSELF, Called, by_kind, called_at, overridable_codes
from .capture_record import CALL, FORWARD, IS_TORCHS, PLACE, CaptureRecord

_USERS, _LIBRARY, _FUNCTIONS, _CALLS = range(4)
"""Whose code is in a file: users', torch's, torch's with functions that a mode sees whole, or our call of a module."""

_Seen = tuple[FrameType | None, FrameType | None, Called, Place | None]
"""The frame that calls a function of torch's; this function's own frame, and it, if it is written in Python; and the
user's place."""

_getframe = sys._getframe

_MOST_FILES = 10_000  # each cell of a notebook is one more
_roles: dict[str, int] = {}
_MODELS = str(PACKAGE / "engine" / "workloads")  # they stand for code of users
_WHOLE = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)
"""Functions that make nodes of one kind again and again."""


def watch_nodes(stack: ExitStack, record: CaptureRecord, *, modules: bool) -> None:
    """Mark each new node of this thread until the stack closes.

    Args:
        stack: closes what is opened here.
        record: the capture's.
        modules: whether to watch the calls of modules, too.
    """
    if modules:
        stack.enter_context(stacking_module_calls(record.calls))
    else:
        record.new_nodes = []
    stack.enter_context(watching_new_nodes(_NodeWatcher(record, watches_modules=modules).made))


class _NodeWatcher:
    """Marks new nodes with operations.

    torch tells of nodes, not of calls. Nodes that follow each other are one operation's where the same instruction in
    the same call of a module made them, unless the called function has begun anew: it is written in Python and has gone
    back, or the same kind of node has come again. So a call that makes several nodes of a kind, as `torch.lstm` does,
    counts as several operations.
    """

    def __init__(self, record: CaptureRecord, *, watches_modules: bool) -> None:
        self._record = record
        self._thread = record.facts.thread
        self._watches_modules = watches_modules
        self._codes = overridable_codes()
        self._newest: Operation | None = None
        self._code: CodeType | None = None  # where the newest operation was called
        self._instruction = self._progress = 0
        self._kinds: tuple[type[Node], ...] = ()

    def made(self, node: Node) -> None:
        """Mark a node. To be called by the function that torch calls. Its cost is most of a capture's."""
        record, operation = self._record, self._newest
        # A backward on an accelerator runs in another thread, while this one waits for it.
        frame = _getframe(2) if get_ident() == self._thread else sys._current_frames().get(self._thread)
        call, entry = None, None
        if record.calls:
            entry = record.calls[-1]
            if len(entry) == 1:
                record.begin()
            call = entry[CALL]
        kind = type(node)
        if (
            frame is not None
            and frame.f_code is self._code
            and frame.f_lasti == self._instruction
            and kind not in self._kinds
            and operation is not None
            and operation.call is call
            and operation.facts is record.facts
        ):
            self._kinds += (kind,)
            operation.created_ns = perf_counter_ns()
        else:
            seen = None if entry is None or frame is None else self._look_in_forward(frame, frame.f_code, entry)
            if seen is None:
                seen = self._look(frame)
                if call is not None and self._watches_modules and has_late_hooks(record.calls[-1][0]):
                    call = call.parent if forward_has_run(frame) else call
            operation = self._operation_of(node, kind, call, seen)
        if record.accelerator is not None:
            _note_stream(operation, node, record.accelerator)
        mark_new(node, operation)
        if record.new_nodes is not None:
            record.new_nodes.append(node)

    def _look_in_forward(self, frame: FrameType, code: CodeType, entry: list[Any]) -> _Seen | None:
        """See whether the forward of the innermost module made it, itself or by a function of torch's in Python."""
        forward, place = entry[FORWARD], entry[PLACE] if entry[IS_TORCHS] else None
        if place is None:
            return None
        if code is forward:
            return frame, None, "", place
        above = frame.f_back
        if above is not None and above.f_code is forward and (function := self._codes.get(id(code))) is not None:
            return above, frame, function, place
        return None

    def _operation_of(self, node: Node, kind: type[Node], call: CallRecord | None, seen: _Seen) -> Operation:
        """The newest operation if the node is one of its own; else a new one."""
        site, running, function, place = seen
        code, instruction = (None, 0) if site is None else (site.f_code, site.f_lasti)
        progress = 0 if running is None else running.f_lasti
        operation, facts = self._newest, self._record.facts
        if (
            operation is not None
            and instruction == self._instruction
            and code is self._code
            and code is not None
            and operation.call is call
            and operation.facts is facts
            and (
                progress > self._progress
                or (progress == self._progress and kind not in self._kinds)
                or function in _WHOLE
            )
        ):
            self._kinds += (kind,)
            operation.created_ns = perf_counter_ns()
        else:
            if running is None or function is CALLS_ITSELF:
                function = _called(node, kind, site, running)
            number = current_number(node)
            self._newest = operation = Operation(facts, function, number, number, call, place)
            self._code, self._instruction, self._kinds = code, instruction, (kind,)
        self._progress = progress
        return operation

    def _look(self, frame: FrameType | None) -> _Seen:
        """Look through a stack from its innermost frame on."""
        site: FrameType | None = None
        running: FrameType | None = None
        function: Called = ""
        wrapper: Place | None = None
        calls, passed = self._record.calls, 0
        while frame is not None:
            code = frame.f_code
            try:
                role = _roles[code.co_filename]
            except KeyError:
                role = _note_file(code.co_filename)
            if role == _LIBRARY:
                if site is None and code.co_name != "wrapped":  # around the operators of torch.Tensor
                    site = frame
            elif role == _CALLS:
                if code is WATCHED_CALL and passed < len(calls):
                    passed += 1
                    if (known := calls[-passed][PLACE]) is not None:
                        return site, running, function, known if passed == 1 else self._keep(known, passed - 1)
            elif role == _FUNCTIONS:
                if not passed and (found := self._codes.get(id(code))) is not None:
                    site, running, function = None, frame, found
                elif site is None and code.co_name != "wrapped":
                    site = frame
            else:
                place = code, frame.f_lasti
                if not (code.co_flags & CO_VARARGS or code.co_name in OVERRIDES) or not passes_on(place):
                    return site or frame, running, function, self._keep(place, passed) if passed else place
                wrapper = wrapper or place
                if not passed and code.co_name in OVERRIDES:
                    site = running = None  # it was called for the function further out
            frame = frame.f_back
        return site, running, function, wrapper

    def _keep(self, place: Place, count: int) -> Place:
        """Keep the place from which so many of the innermost calls of modules come."""
        for entry in self._record.calls[-count:]:
            entry[PLACE] = place
        return place


def _called(node: Node, kind: type[Node], site: FrameType | None, running: FrameType | None) -> Called:
    """Return the function that made the node; if nothing tells it, the one after which the node is named."""
    if running is not None:
        operator: Called = running.f_locals["self"]
        return operator
    if isinstance(node, BackwardCFunction):
        return function_of(node).__qualname__  # not the class itself: its closures may lead to the node
    function = None if site is None else called_at(site.f_code, site.f_lasti, site.f_globals)
    return by_kind(kind.__name__) if function is None else function


def _note_stream(operation: Operation, node: Node, accelerator: str) -> None:
    """The node has the stream that is current as it is made: on that one its backward runs (node.h)."""
    device = next((device for _, _, device, _ in input_metadata(node) if device.type == accelerator), None)
    if device is not None:
        operation.stream = torch.accelerator.current_stream(device)


def _note_file(filename: str) -> int:
    if len(_roles) >= _MOST_FILES:
        _roles.clear()
    if filename == WATCHED_CALL.co_filename:
        role = _CALLS
    elif filename in _files_of_functions():
        role = _FUNCTIONS
    elif is_library(filename) or (filename.startswith(OWN_CODE) and not filename.startswith(_MODELS)):
        role = _LIBRARY
    else:
        role = _USERS
    _roles[filename] = role
    return role


@cache
def _files_of_functions() -> frozenset[str]:
    return frozenset(
        code.co_filename
        for function in overridable_codes().values()
        if not isinstance(function, str) and (code := getattr(unwrap(function), "__code__", None))
    ) | {torch._ops.__file__}
