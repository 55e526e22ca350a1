"""`ts.capture`: record the modules, source lines and saved tensors of a forward."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.autograd.graph import Node

from ..graph.frame_variables import variables_of
from ..graph.node_metadata import made_during, nodes_of
from ..graph.operations_and_calls import Facts, Operation
from ..graph.source_lines import innermost_user_line, users_place
from ..renderers import drawn
from ..torch_private.nodes import TELLS_OF_NEW_NODES
from ..torch_private.sequence_numbers import sequence_nr
from ..validation import a_kind, expect_callable, expect_truth
from .capture_record import CaptureRecord, Observer
from .interrupt_safe_stack import Opened
from .watch_calls import watch_calls
from .watch_nodes import watch_nodes

if TYPE_CHECKING:
    from ..graph.graph import Graph


class Tape:
    """One captured forward. `ts.graph(loss)` finds the records through the nodes, so the tape need not be kept.

    Attributes:
        started_ns: `time.perf_counter_ns()` when the capture began.
        error: the exception that ended it, if any. In that case `graph()` returns the graph built before it.
    """

    def __init__(self, facts: Facts) -> None:
        self.started_ns = time.perf_counter_ns()
        self.error: BaseException | None = None
        self._facts = facts
        self._frontier: tuple[Node, ...] = ()

    def __repr__(self) -> str:
        return f"<Tape, ended by {type(self.error).__name__}>" if self.error else "<Tape>"

    def graph(self) -> Graph:
        """Return the graph that a forward had built before it raised.

        Raises:
            ValueError: The forward did not raise (pass its loss to `ts.graph` instead), or had built nothing.
        """
        from .build_graph import graph_of_nodes

        if self.error is None:
            raise ValueError("the captured forward did not raise: pass its result to ts.graph(loss)")
        if not self._frontier:
            raise ValueError(f"the forward raised {type(self.error).__name__} before it had built any graph")
        where = innermost_user_line(traceback.extract_tb(self.error.__traceback__))
        message = str(self.error).partition("\n")[0]
        raised = f"{type(self.error).__name__}{f' at {where.short}' if where else ''}{': ' if message else ''}{message}"
        return replace(graph_of_nodes(self._frontier), raised=raised)

    def keep_failed_forward(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """Keep the nodes of the tensors in an exception's frames, for `graph`. Called when the capture's block ends."""
        self.error = error
        nodes: dict[Node, None] = {}
        while frames is not None:
            for value in variables_of(frames.tb_frame).values():
                with suppress(Exception):  # a user's container may raise anything when it is read
                    nodes.update(dict.fromkeys(nodes_of(value)))
            frames = frames.tb_next
        self._frontier = tuple(node for node in nodes if made_during(self._facts, node))


class capture:
    """Context manager that records the forward of this thread.

    `ts.graph(loss)` then knows the module path, source line, forward operation and time of creation of each task. It
    supports shared modules, several calls of one module, code outside modules, custom Functions, and nested captures.
    All hooks are removed when the block ends, also after an exception.

    Args:
        model: the module that names the parameters and modules. Without it, they are named after each outermost module
            that is called. Pass it if the forward calls parts of a model and never the model itself.
        observer: a function that is called with an operation, its result and its arguments. It is called after each
            operation that returned a tensor or None, and after each module call whose result is not that of its last
            operation.
        keep_inputs: keep the arguments of each operation, so that `session.check(task)` can replay it. This costs
            memory: those tensors live as long as the graph, including tensors that no backward needs and tensors that
            a checkpoint would have freed. Arguments that are modified in place are copied first. The graph is freed
            with the loss, not when a backward has run. Only tensors, numbers and strings are kept alive.
        every_call: also record the calls of torch that make no node: the tensors they allocate (masks, noise, leaves),
            the tensors they modify in place, and where tensor hooks are registered. Memory predictions and the notes on
            a backward's errors use these. The overhead per call is about the time of a tiny operation. `observer`,
            `keep_inputs` and torch before 2.14, which has no hook for new nodes, imply it.

    Known limitations: the forward of another thread is not recorded (open a capture there). Before torch 2.14, a custom
    Function whose `apply` was stored in a variable before the capture is not recorded either. A compiled region is one
    node, attributed to the module call around it. If another thread calls a compiled function during the capture, that
    function is compiled once more.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        observer: Observer | None = None,
        *,
        keep_inputs: bool = False,
        every_call: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module | None):
            raise TypeError(f"model is {a_kind(model)}; expected the module that names parameters and modules, or None")
        self._model = model
        self._observer = observer
        if observer is not None:
            expect_callable(observer, 3, "observer", "a function of an operation, its result and its arguments")
        expect_truth(keep_inputs, "keep_inputs")
        self._keep_inputs = keep_inputs
        expect_truth(every_call, "every_call")
        self._every_call = every_call
        self._opened: Opened | None = None
        self._recording: tuple[CaptureRecord, Tape] | None = None  # while it is open

    def __enter__(self) -> Tape:
        if self._recording is not None:
            raise RuntimeError("this capture is already open; create another one with ts.capture()")
        facts = Facts()
        tape = Tape(facts)
        record = CaptureRecord(facts, self._model, self._observer)
        every_call = self._every_call or self._keep_inputs or self._observer is not None
        put_in_place = partial(_put_in_place, record, tape, self._observer, self._keep_inputs, every_call)
        self._opened = Opened(self, put_in_place)
        self._recording = record, tape
        return tape

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recording = None
        opened, self._opened = self._opened, None
        if isinstance(error, Exception):
            drawn("an error in notes", error)
        if opened is not None:
            opened.close(kind, error, traceback)

    def operation(self, function: Callable[..., Any]) -> Operation:
        """Return the record that this open capture would make of a call of this function at this point."""
        assert self._recording is not None
        record, _ = self._recording
        now = sequence_nr()
        return Operation(record.facts, function, now, now, record.current, users_place())

    def renew(self) -> None:
        """Begin a new record, which counts module calls and names outermost modules from the start.

        This is like closing the capture and opening another one, except that modes that were entered inside of it stay
        active. Operations recorded earlier keep their records. Inside a module's call this does nothing, because the
        operations that follow belong to that call.
        """
        if self._recording is None:
            raise RuntimeError("this capture is not open, so there is nothing to renew")
        record, tape = self._recording
        if not record.calls:
            tape._facts = record.renew()
            tape.started_ns = time.perf_counter_ns()


def _put_in_place(
    record: CaptureRecord, tape: Tape, observer: Observer | None, keep: bool, every_call: bool, stack: ExitStack
) -> None:
    if TELLS_OF_NEW_NODES:
        watch_nodes(stack, record, modules=not every_call)
    if every_call or not TELLS_OF_NEW_NODES:
        watch_calls(stack, record, observer, keep)
    stack.push(tape.keep_failed_forward)
