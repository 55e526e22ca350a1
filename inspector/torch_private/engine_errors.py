"""Errors that the engine's tasks raise: callbacks, and the Python frames that they went through."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from .engine import _Engine
from .nodes import notes_on

Tell = Callable[[int], None]

_TRACE = "traceback_"  # where anomaly mode looks for the forward's traceback (python_anomaly_mode.cpp)
_MARK = "tapescope is told of it"


class _Trace:
    """Stands for a node's traceback of its forward: it is read when the node's task has raised, and only then."""

    def __init__(self, place: int, tell: Tell, lines: Sequence[str] | None) -> None:
        self.lines = lines
        self._place = place
        self._tell = tell

    def __iter__(self) -> Iterator[str]:
        self._tell(self._place)
        return iter([_MARK] if self.lines is None else self.lines)


@contextmanager
def told_of_errors(nodes: Sequence[Node], tell: Tell) -> Iterator[None]:
    """While it is open, `tell` gets the place of each of these nodes whose task raises, where `errors_are_told`.

    No hook is called then, and a backward with several threads goes on until all tasks that have begun are over. But
    in anomaly mode the engine looks for the traceback of the node's forward (graph_task.h, `set_exception`).
    """
    try:
        for place, node in enumerate(nodes):
            notes = notes_on(node)
            notes[_TRACE] = _Trace(place, tell, notes.get(_TRACE))
        warnings.filterwarnings("ignore", f"(?s)Error detected in .*{_MARK}")  # stays, and meets no other
        yield
    finally:
        for node in nodes:
            notes = notes_on(node)
            if isinstance(trace := notes.get(_TRACE), _Trace):
                if trace.lines is None:
                    del notes[_TRACE]
                else:
                    notes[_TRACE] = trace.lines


@contextmanager
def errors_are_told() -> Iterator[None]:
    """Switches anomaly mode on, for the whole process; that looks for NaN only if it did before."""
    was, checks = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    if was:
        yield
        return
    torch.set_anomaly_enabled(True, False)
    try:
        yield
    finally:
        torch.set_anomaly_enabled(was, checks)


_ENGINE_CALL = torch.autograd.graph._engine_run_backward.__code__
_FUNCTION_CALL = BackwardCFunction.apply.__code__


def called_by_engine(error: BaseException) -> TracebackType | None:
    """Where the engine called the Python code that raised: a hook, or a custom Function. None if no such code did."""
    traceback = error.__traceback__
    while traceback is not None:
        below = traceback.tb_next
        if traceback.tb_frame.f_code is _ENGINE_CALL:
            ours = below is not None and below.tb_frame.f_code is _Engine.run_backward.__code__
            return below.tb_next if below is not None and ours else below
        traceback = below
    return None


def running_function(error: BaseException) -> Node | None:
    """The node of the custom Function whose backward raised, where this is what the engine called."""
    called = called_by_engine(error)
    if called is None or called.tb_frame.f_code is not _FUNCTION_CALL:
        return None
    node: Node = called.tb_frame.f_locals["self"]
    return node
