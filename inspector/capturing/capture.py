"""Watching a forward: `with th.capture() as tape: loss = model(x).sum()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from types import TracebackType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from ..arguments import a_kind, expect_callable, expect_truth
from ..graph.facts import CallRecord, Facts, Operation
from ..graph.kept_inputs import KeptInputs, keep_inputs
from ..graph.marks import HOOKING, mark, mark_foreign, mark_result, nodes_of, note_hook, tensors_of, unmarked_nodes
from ..graph.source import users_place
from ..torch_internals.applied_functions import AroundApply, around_function_apply, is_generated
from ..torch_internals.compiled import watching_functions
from ..torch_internals.modes import without_torch_function
from ..torch_internals.module_calls import watching_modules
from ..torch_internals.sequence_numbers import sequence_nr
from ..torch_internals.tensors import base_of, is_leaf
from .note_allocations import note_allocations
from .opened import Opened
from .tape import Tape
from .writes import Versions, note_writes, versions_before, versions_before_apply

Paths = dict[nn.Module, str]
Observer = Callable[[Operation | CallRecord, object, Sequence[object]], None]


class capture:
    """Records, while it is open, what the forward does in this thread.

    `th.graph(loss)` then knows for each task its module path, source line, forward operation and time of creation.
    Works for shared modules, several calls of one module, code outside modules, custom Functions, and with other
    captures inside or around. On leaving, also by an exception, it takes all its hooks away.

    Args:
        module: names the parameters and modules after this module; without it, after each outermost module that is
            called. Give it where the forward calls parts of a model and never the model itself.
        observer: called after each operation that gave a tensor or None, and after each module call that gave something
            else than its last operation did: with it, its result and its arguments.
        keep_inputs: keeps what each operation was called with, so that `session.check(task)` can replay it. That costs
            memory: all those tensors live as long as the graph does, also those that no backward needs and those which
            a checkpoint would have let go, and what is written in place is copied before. The graph goes when the loss
            does, not when a backward has run. Other objects than tensors, numbers and texts are not kept alive.

    Known limitations: another thread's forward is not seen (open a capture there), nor a custom Function whose `apply`
    was put into a variable before. A compiled region is one node with the module call around it. What other threads
    call of torch.compile's meanwhile is compiled once more.
    """

    def __init__(
        self, module: nn.Module | None = None, observer: Observer | None = None, *, keep_inputs: bool = False
    ) -> None:
        if not isinstance(module, nn.Module | None):
            raise TypeError(f"th.capture() takes the module to name things after, not {a_kind(module)}")
        self._module = module
        self._observer = observer
        if observer is not None:
            expect_callable(observer, 3, "observer", "a function of an operation, its result and its arguments")
        expect_truth(keep_inputs, "keep_inputs")
        self._keep_inputs = keep_inputs
        self._opened: Opened | None = None
        self._recording: tuple[_CallWatcher, Tape] | None = None  # while it is open

    def __enter__(self) -> Tape:
        if self._recording is not None:
            raise RuntimeError("this capture is open already; make another one with th.capture()")
        facts = Facts()
        tape = Tape(facts)
        calls = _CallWatcher(facts, self._module, self._observer)
        self._opened = Opened(self, partial(_put_in_place, calls, tape, self._observer, self._keep_inputs))
        self._recording = calls, tape
        return tape

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recording = None
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close(kind, error, traceback)

    def operation(self, function: Callable[..., Any]) -> Operation:
        """What this open capture would write down of a call of this function here and now."""
        assert self._recording is not None
        calls, _ = self._recording
        now = sequence_nr()
        return Operation(calls.facts, function, now, now, calls.current, users_place())

    def renew(self) -> None:
        """Begins a new record: module calls are counted, and outermost modules named, as from here on.

        As closing this capture and opening another one would, but that modes which were entered inside of it, and have
        not been left, stay where they are. What has been captured keeps what is known of it. While a module's call is
        under way nothing happens, since what comes in it belongs to that call.
        """
        if self._recording is None:
            raise RuntimeError("this capture is not open, so there is nothing to renew")
        calls, tape = self._recording
        if not calls.running:
            tape.restart(calls.renew())


def _put_in_place(calls: _CallWatcher, tape: Tape, observer: Observer | None, keep: bool, stack: ExitStack) -> None:
    stack.enter_context(watching_modules(calls.entered, calls.left))
    stack.enter_context(watching_functions(_OperationWatcher(calls, observer, keep)))
    stack.enter_context(around_function_apply(_around_apply(calls, observer, keep)))
    stack.push(tape.note_error)


class _CallWatcher:
    """Global module hooks which keep the stack of module calls that are running.

    Dynamo traces hooks and function modes into the regions it compiles; asked first whether it is compiling, they are
    nothing to it, and the region stays one node.
    """

    def __init__(self, facts: Facts, module: nn.Module | None, observer: Observer | None) -> None:
        self.facts = facts
        self._module = module
        self._observer = observer
        self._thread = facts.thread
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        self._accelerator = None if accelerator is None else accelerator.type
        # Last, the sequence number before the call.
        self._running: list[tuple[nn.Module, CallRecord, tuple[int, Paths], int]] = []
        self._roots: list[tuple[int, Paths]] = []
        self._counts: dict[nn.Module, int] = {}
        self.current: CallRecord | None = None
        self.last_result: ref[Tensor] | None = None  # of the newest operation: its nodes are marked
        self._add_named_root()

    def _add_named_root(self) -> None:
        if self._module is not None:
            self._roots.append(self.facts.add_root(self._module, unnamed=True))

    @property
    def running(self) -> bool:
        """Whether a module's call is under way."""
        return bool(self._running)

    def renew(self) -> Facts:
        """Forgets all modules, and starts new facts."""
        self.facts = Facts()
        self._roots.clear()
        self._counts.clear()
        self._add_named_root()
        return self.facts

    def note_result(self, result: object) -> None:
        """The newest operation gave this. It lives no longer for being noted."""
        self.last_result = ref(result) if isinstance(result, Tensor) else None

    def note_stream(self, operation: Operation, result: object) -> None:
        """Its nodes have the stream that is current as it ends: on that one their backward runs (node.h)."""
        if self._accelerator is None:
            return
        for tensor in (result,) if isinstance(result, Tensor) else tensors_of(result):
            if tensor.device.type == self._accelerator:
                operation.stream = torch.accelerator.current_stream(tensor.device)
                return

    def entered(self, module: nn.Module, args: object) -> None:
        if is_dynamo_compiling() or get_ident() != self._thread:
            return
        running, above, counts = self._running, self.current, self._counts
        root = running[-1][2] if running else self._root_of(module)
        number, paths = root
        path = paths.get(module)
        if path is None:  # not registered below the outermost module
            path = ".".join(filter(None, (above.path if above else "", type(module).__name__)))
        index = counts[module] = counts.get(module, -1) + 1
        self.current = call = CallRecord(self.facts, number, path, type(module), above, index)
        running.append((module, call, root, sequence_nr()))

    def left(self, module: nn.Module, args: object, result: object) -> None:
        if is_dynamo_compiling() or get_ident() != self._thread:
            return
        running, last = self._running, self.last_result
        while running:  # a call that an exception left may still be on top
            called, call, _, start = running.pop()
            self.current = call.parent
            if called is module:
                marked = last is not None and last() is result
                if not marked and sequence_nr() != start:
                    self._mark_unseen(result, call, start)
                if self._observer is not None and not marked:
                    self._observer(call, result, ())
                return

    def _mark_unseen(self, result: object, call: CallRecord, start: int) -> None:
        """What came out of a module without an operation of Python's, from a scripted or compiled one."""
        with without_torch_function():
            nodes = unmarked_nodes(result)
            if nodes:
                operation = Operation(self.facts, call.module_class, start, sequence_nr(), call, None)
                self.note_stream(operation, result)
                mark(nodes, operation)

    def _root_of(self, module: nn.Module) -> tuple[int, Paths]:
        for known in self._roots:
            if module in known[1]:
                return known
        self._roots.append(self.facts.add_root(module))
        return self._roots[-1]


class _OperationWatcher(TorchFunctionMode):
    """Sees each call of torch from Python, and marks the nodes it made."""

    def __init__(self, calls: _CallWatcher, observer: Observer | None, keep: bool) -> None:
        super().__init__()
        self._calls = calls
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
        kept = keep_inputs(function, args, kwargs or {}) if self._keep else None
        versions = versions_before(function, args, kwargs)
        start, began_ns = sequence_nr(), perf_counter_ns()
        result = function(*args, **kwargs) if kwargs else function(*args)
        end = sequence_nr()
        if versions is not None:
            note_writes(versions, function, result)
        if end == start:
            self._made_no_node(function, result, args, kwargs or {}, start)
            return result
        calls = self._calls
        with without_torch_function():
            inputs = kept and kept.close()
            operation = Operation(calls.facts, function, start, end, calls.current, users_place(), inputs, began_ns)
            mark_result(result, operation)
            if not isinstance(result, Tensor):  # indices beside values
                leaves = [each for each in tensors_of(result) if is_leaf(each)]
                note_allocations(calls.facts, leaves, args, kwargs or {})
            calls.note_stream(operation, result)
            newest = calls.last_result
            calls.last_result = ref(result) if isinstance(result, Tensor) else None
            if operation.writes_in_place and args and isinstance(args[0], Tensor):
                calls.note_stream(operation, args[0])
                mark(nodes_of([args[0], base_of(args[0])]), operation)
            mark_foreign(args, start, newest and newest())
        if self._observer is not None:
            self._observer(operation, result, args)
        return result

    def _made_no_node(
        self, function: Callable[..., Any], result: object, args: tuple[Any, ...], kwargs: dict[str, Any], now: int
    ) -> None:
        name = getattr(function, "__name__", None)
        is_attribute = name == "__get__"  # such as .grad, which was there before, and .data
        if not is_attribute or isinstance(result, Tensor):
            with without_torch_function():
                note_allocations(self._calls.facts, result, args, kwargs, is_new=not is_attribute)
        hooks = name in HOOKING and bool(args) and isinstance(args[0], Tensor)
        observed = self._observer is not None and (result is None or next(tensors_of(result), None) is not None)
        if hooks or observed:
            operation = Operation(self._calls.facts, function, now, now, self._calls.current, users_place())
            if hooks:
                with without_torch_function():
                    note_hook(args[0], args[1] if len(args) > 1 else kwargs.get("hook"), operation)
            if self._observer is not None and observed:
                self._observer(operation, result, args)


def _around_apply(calls: _CallWatcher, observer: Observer | None, keep: bool) -> AroundApply:
    """Marks the nodes of custom Functions, which the function mode doesn't see. What torch.library makes, it sees."""

    def before(function: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[object], None]:
        if get_ident() != calls.facts.thread or is_generated(function):
            return _ignore
        versions = versions_before_apply(function, args, kwargs)
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
                operation = Operation(calls.facts, function, start, end, calls.current, users_place(), inputs, began_ns)
                mark_result(result, operation)
                calls.note_stream(operation, result)
                calls.note_result(result)
            if observer is not None:
                observer(operation, result, ())

    return before


def _ignore(result: object) -> None:
    pass
