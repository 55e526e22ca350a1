"""Watching a forward: `with ts.capture() as tape: loss = model(x).sum()`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from torch import nn

from ..arguments import a_kind, expect_callable, expect_truth
from ..graph.facts import Facts, Operation
from ..graph.source import users_place
from ..torch_internals.nodes import TELLS_OF_NEW_NODES
from ..torch_internals.sequence_numbers import sequence_nr
from .capture_record import CaptureRecord, Observer
from .opened import Opened
from .tape import Tape
from .watch_calls import watch_calls
from .watch_nodes import watch_nodes


class capture:
    """Records, while it is open, what the forward does in this thread.

    `ts.graph(loss)` then knows for each task its module path, source line, forward operation and time of creation.
    Works for shared modules, several calls of one module, code outside modules, custom Functions, and with other
    captures inside or around. On leaving, also by an exception, it takes all its hooks away.

    Args:
        model: names the parameters and modules after this module; without it, after each outermost module that is
            called. Give it where the forward calls parts of a model and never the model itself.
        observer: called after each operation that gave a tensor or None, and after each module call that gave something
            else than its last operation did: with it, its result and its arguments.
        keep_inputs: keeps what each operation was called with, so that `session.check(task)` can replay it. That costs
            memory: all those tensors live as long as the graph does, also those that no backward needs and those which
            a checkpoint would have let go, and what is written in place is copied before. The graph goes when the loss
            does, not when a backward has run. Other objects than tensors, numbers and texts are not kept alive.
        every_call: also sees the calls of torch that make no node: which tensors they allocate (masks, noise, leaves),
            which ones they modify in place, and where hooks of tensors are registered. Memory predictions and the notes
            on a backward's errors use that. It costs as much again as a tiny operation. `observer` and `keep_inputs`
            imply it; so does torch before 2.14, which has no hook for new nodes.

    Known limitations: another thread's forward is not seen (open a capture there). Before torch 2.14, neither is a
    custom Function whose `apply` was put into a variable before. A compiled region is one node with the module call
    around it. What other threads call of torch.compile's meanwhile is compiled once more.
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
            raise TypeError(f"ts.capture() takes the model to name things after, not {a_kind(model)}")
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
            raise RuntimeError("this capture is open already; make another one with ts.capture()")
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
        if opened is not None:
            opened.close(kind, error, traceback)

    def operation(self, function: Callable[..., Any]) -> Operation:
        """What this open capture would write down of a call of this function here and now."""
        assert self._recording is not None
        record, _ = self._recording
        now = sequence_nr()
        return Operation(record.facts, function, now, now, record.current, users_place())

    def renew(self) -> None:
        """Begins a new record: module calls are counted, and outermost modules named, as from here on.

        As closing this capture and opening another one would, but that modes which were entered inside of it, and have
        not been left, stay where they are. What has been captured keeps what is known of it. While a module's call is
        under way nothing happens, since what comes in it belongs to that call.
        """
        if self._recording is None:
            raise RuntimeError("this capture is not open, so there is nothing to renew")
        record, tape = self._recording
        if not record.calls:
            tape.restart(record.renew())


def _put_in_place(
    record: CaptureRecord, tape: Tape, observer: Observer | None, keep: bool, every_call: bool, stack: ExitStack
) -> None:
    if TELLS_OF_NEW_NODES:
        watch_nodes(stack, record, modules=not every_call)
    if every_call or not TELLS_OF_NEW_NODES:
        watch_calls(stack, record, observer, keep)
    stack.push(tape.note_error)
