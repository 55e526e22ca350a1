"""Watcher of new nodes (torch 2.14 and later), which finds the torch function that made each."""

from __future__ import annotations

import builtins
import dis
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache, lru_cache
from inspect import CO_VARARGS, unwrap
from threading import get_ident
from time import perf_counter_ns
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
import torch._ops
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.nn import functional
from torch.overrides import get_overridable_functions

from ..graph.node_metadata import mark_new
from ..graph.operations_and_calls import CallRecord, Operation
from ..graph.source_lines import OVERRIDES, OWN_CODE, PACKAGE, Place, is_library, passes_on
from ..torch_private.call_watchers import WATCHED_CALL, forward_has_run, has_late_hooks, stacking_module_calls
from ..torch_private.nodes import function_of, input_metadata, watching_new_nodes
from ..torch_private.sequence_numbers import current_number
from .capture_record import CALL, FORWARD, IS_TORCHS, PLACE, CaptureRecord

Called = Callable[..., Any] | str
"""A function of torch, or the name of one that is not available."""

CALLS_ITSELF = "an operator of torch.ops"
"""Placeholder for the operator whose `__call__` is running; its frame tells which one it is."""

_OPERATORS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "@": "matmul",
    "%": "remainder",
    "//": "__floordiv__",
    "**": "__pow__",
    "+=": "add_",
    "-=": "sub_",
    "*=": "mul_",
    "/=": "div_",
    "[]": "__getitem__",
}
"""Maps each binary operator of Python to the method of torch.Tensor that a function mode would report for it."""

_INSTRUCTIONS = {
    "UNARY_NEGATIVE": "neg",
    "BINARY_SUBSCR": "__getitem__",
    "BINARY_SLICE": "__getitem__",
    "STORE_SUBSCR": "__setitem__",
    "STORE_SLICE": "__setitem__",
}
_CALL_INSTRUCTIONS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "PRECALL")
_KIND = re.compile(r"Backward\d*$")
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_MOST_PLACES = 20_000
_known: dict[tuple[int, int], tuple[CodeType, Called | None]] = {}  # by id, since hashing a code object is slow


def called_at(code: CodeType, instruction: int, names: Mapping[str, object]) -> Called | None:
    """Return the function of torch that the instruction at this offset calls; None if the code does not show it.

    Args:
        code, instruction: the code object and offset of the running call.
        names: the globals of the code.
    """
    key = id(code), instruction
    found = _known.get(key)
    if found is None or found[0] is not code:
        if len(_known) >= _MOST_PLACES:
            _known.clear()
        found = _known[key] = code, _look_up(code, instruction, names)
    return found[1]


def _look_up(code: CodeType, instruction: int, names: Mapping[str, object]) -> Called | None:
    steps = [step for step in dis.get_instructions(code) if step.offset <= instruction]
    if not steps:
        return None
    step = steps[-1]
    if step.opname in _CALL_INSTRUCTIONS:
        return _callee(steps, step, names)
    if step.opname == "LOAD_ATTR":
        attribute = getattr(torch.Tensor, step.argval, None)
        return getattr(attribute, "__get__", None)  # a property: `x.T`
    name = _OPERATORS.get(step.argrepr) if step.opname == "BINARY_OP" else _INSTRUCTIONS.get(step.opname)
    return None if name is None else getattr(torch.Tensor, name)


def _callee(steps: list[dis.Instruction], call: dis.Instruction, names: Mapping[str, object]) -> Called | None:
    """Return the called function: the longest chain of names loaded from where the call begins in the source."""
    loads = [step for step in steps if step.opname.startswith("LOAD_") and _begins_with(call, step)]
    if not loads:
        return None
    chain: list[str] = []
    end = max(_end(step) for step in loads)
    last = next(step for step in reversed(loads) if _end(step) == end)
    for step in [*(step for step in loads if _end(step) < end), last]:
        chain.append(str(step.argval))
    root = loads[0]
    if root.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
        found: object = names.get(chain[0], getattr(builtins, chain[0], None))
        for name in chain[1:]:
            if not isinstance(found, ModuleType | type):  # a tensor: looking further could compute something
                return _by_name(chain[-1])
            found = getattr(found, name, None)
        return _of_torch(found, chain)
    return _by_name(chain[-1]) if len(chain) > 1 else None


def _of_torch(found: object, chain: list[str]) -> Called | None:
    """Return a function of torch, or the torch function that a library has replaced under the same name."""
    if not callable(found):
        return None
    module = getattr(found, "__module__", None) or getattr(getattr(found, "__objclass__", None), "__module__", "")
    if str(module).partition(".")[0] == "torch":
        return found
    name = chain[-1]
    if type(found).__name__ in ("builtin_function_or_method", "method_descriptor"):
        return found if found is getattr(torch, name, None) or found is getattr(functional, name, None) else None
    return _by_name(name) if hasattr(torch, name) else None


def _by_name(name: str) -> Called | None:
    return next(
        (found for owner in (torch.Tensor, torch, functional) if callable(found := getattr(owner, name, None))), None
    )


def _begins_with(call: dis.Instruction, step: dis.Instruction) -> bool:
    one, other = call.positions, step.positions
    if one is None or other is None or one.lineno is None or step.offset >= call.offset:
        return False
    return (one.lineno, one.col_offset) == (other.lineno, other.col_offset) and _end(step) < _end(call)


def _end(step: dis.Instruction) -> tuple[int, int]:
    assert step.positions is not None
    return step.positions.end_lineno or 0, step.positions.end_col_offset or 0


@lru_cache(maxsize=4096)
def by_kind(kind: str) -> Called:
    """Return the function after which a node's type is named: `torch.Tensor.sin` for SinBackward0."""
    name = _CAPITAL.sub("_", _KIND.sub("", kind)).lower()
    return _by_name(name) or name


@cache
def overridable_codes() -> Mapping[int, Called]:
    """Map ids of code objects to the torch functions, written in Python, that a function mode sees as one call."""
    seen: dict[int, Any] = {id(each): each for found in get_overridable_functions().values() for each in found}
    codes: dict[int, list[Callable[..., Any]]] = {}
    for function in [*seen.values(), torch.autograd.grad, torch.autograd.backward]:
        code = getattr(unwrap(function), "__code__", None)
        if code is not None:
            codes.setdefault(id(code), []).append(function)
    alone: dict[int, Called] = {code: found[0] for code, found in codes.items() if len(found) == 1}  # else a wrapper
    return alone | {id(kind.__call__.__code__): CALLS_ITSELF for kind in (OpOverload, OpOverloadPacket)}


_USERS, _LIBRARY, _FUNCTIONS, _CALLS = range(4)
"""Roles of files: users' code, a library, a library whose functions a function mode sees, our call of a module."""

_Seen = tuple[FrameType | None, FrameType | None, Called, Place | None]
"""The frame that calls a torch function, that function's frame and the function if it is written in Python, and the
user's place."""

_getframe = sys._getframe

_MOST_FILES = 10_000  # each cell of a notebook is one more
_roles: dict[str, int] = {}
_MODELS = str(PACKAGE / "engine" / "studies" / "workload")  # counts as users' code
_ONE_OPERATION = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)
"""Functions that make many nodes of one kind and count as one operation."""


def watch_nodes(stack: ExitStack, record: CaptureRecord, *, modules: bool) -> None:
    """Mark each new node of this thread until the stack closes.

    Args:
        stack: closes what is opened here.
        record: the capture's record.
        modules: whether to also watch the calls of modules.
    """
    if modules:
        stack.enter_context(stacking_module_calls(record.calls))
    else:
        record.new_nodes = []
    stack.enter_context(watching_new_nodes(_NodeWatcher(record, watches_modules=modules).made))


class _NodeWatcher:
    """Marks new nodes with operations.

    torch's hook reports nodes, not calls. Consecutive nodes belong to one operation if the same instruction in the same
    module call made them, unless the function was called anew: a Python function has gone back to an earlier
    instruction, or a node type has come a second time. So a call that makes several nodes of one type, such as
    `torch.lstm`, counts as several operations.
    """

    def __init__(self, record: CaptureRecord, *, watches_modules: bool) -> None:
        self._record = record
        self._thread = record.facts.thread
        self._watches_modules = watches_modules
        self._codes = overridable_codes()
        self._newest: Operation | None = None
        self._code: CodeType | None = None  # the code that called the newest operation
        self._instruction = self._progress = 0
        self._kinds: tuple[type[Node], ...] = ()

    def made(self, node: Node) -> None:
        """Mark a node. Only the function that torch calls may call this. It is most of a capture's cost."""
        created_ns = perf_counter_ns()
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
            # A node's backward runs on the stream that is current when the node is made (node.h).
            found = (each for _, _, each, _ in input_metadata(node) if each.type == record.accelerator)
            if (device := next(found, None)) is not None:
                operation.stream = torch.accelerator.current_stream(device)
        mark_new(node, operation, created_ns)
        if record.new_nodes is not None:
            record.new_nodes.append(node)

    def _look_in_forward(self, frame: FrameType, code: CodeType, entry: list[Any]) -> _Seen | None:
        """Return the call if the innermost module's forward made it, directly or by a torch function in Python."""
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
        """Return the newest operation if the node belongs to it; else a new one."""
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
                or function in _ONE_OPERATION
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
        """Find the call in a stack, from its innermost frame outwards."""
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
    """Return the function that made the node; if it is unknown, the function after which the node is named."""
    if running is not None:
        operator: Called = running.f_locals["self"]
        return operator
    if isinstance(node, BackwardCFunction):
        return function_of(node).__qualname__  # not the class itself: its closures may lead to the node
    function = None if site is None else called_at(site.f_code, site.f_lasti, site.f_globals)
    return by_kind(kind.__name__) if function is None else function


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
