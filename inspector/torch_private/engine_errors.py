"""Errors raised by the engine's tasks: callbacks for them, and the Python frames they passed through."""

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

_TRACE = "traceback_"  # metadata key of the forward's traceback in anomaly mode (python_anomaly_mode.cpp)
_MARK = "reported to tapescope"


class _Trace:
    """Replacement for a node's forward traceback, which the engine reads only if the node's task raised."""

    def __init__(self, place: int, tell: Tell, lines: Sequence[str] | None) -> None:
        self.lines = lines
        self._place = place
        self._tell = tell

    def __iter__(self) -> Iterator[str]:
        self._tell(self._place)
        return iter([_MARK] if self.lines is None else self.lines)


@contextmanager
def watching_task_errors(nodes: Sequence[Node], tell: Tell) -> Iterator[None]:
    """Call `tell` with the index of each of these nodes whose task raises, if `task_errors_reported` is open, too.

    The engine calls no hook on an error, and in a backward with several threads the tasks that have begun still finish.
    But in anomaly mode it reads the traceback of the node's forward (graph_task.h, `set_exception`).
    """
    try:
        for place, node in enumerate(nodes):
            notes = notes_on(node)
            notes[_TRACE] = _Trace(place, tell, notes.get(_TRACE))
        # The filter is never removed; it matches no other warning.
        warnings.filterwarnings("ignore", f"(?s)Error detected in .*{_MARK}")
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
def task_errors_reported() -> Iterator[None]:
    """Enable anomaly mode for the whole process, without the check for NaN unless it was on before."""
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
    """Return the traceback entry of the hook or custom Function, called by the engine, that raised; else None."""
    traceback = error.__traceback__
    while traceback is not None:
        below = traceback.tb_next
        if traceback.tb_frame.f_code is _ENGINE_CALL:
            ours = below is not None and below.tb_frame.f_code is _Engine.run_backward.__code__
            return below.tb_next if below is not None and ours else below
        traceback = below
    return None


def running_function(error: BaseException) -> Node | None:
    """Return the node of the custom Function whose backward raised; None if the engine called something else."""
    called = called_by_engine(error)
    if called is None or called.tb_frame.f_code is not _FUNCTION_CALL:
        return None
    node: Node = called.tb_frame.f_locals["self"]
    return node
