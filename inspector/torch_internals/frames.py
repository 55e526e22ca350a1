"""Stacks of Python: where something was called, turned into lines only when somebody asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from traceback import FrameSummary
from types import TracebackType

import torch
from torch._C._profiler import CapturedTraceback, gather_traceback, symbolize_tracebacks
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from .engine import _Engine

Traceback = CapturedTraceback
_SYMBOLIZED_AT_ONCE = 1000  # stacks: all of a large graph together would take gigabytes


def capture_traceback() -> Traceback:
    """The Python stack of the caller, not yet turned into lines: about two microseconds."""
    return gather_traceback(python=True, script=False, cpp=False)


def traceback_frames(traceback: Traceback) -> list[FrameSummary]:
    """The lines of a captured stack, outermost first."""
    (frames,) = frames_of([traceback])
    return frames[::-1]


def frames_of(tracebacks: Sequence[Traceback]) -> Iterator[list[FrameSummary]]:
    """The lines of captured stacks, innermost first. Many together cost a tenth of one by one.

    torch looks for lines of code that Inductor has generated, and loads Inductor to do so: a second or more. Where
    nobody has loaded it, it has generated nothing, and an empty attribute stands in for it.
    """
    for first in range(0, len(tracebacks), _SYMBOLIZED_AT_ONCE):
        loaded = "torch._inductor" in sys.modules
        if not loaded:
            vars(torch)["_inductor"] = None
        try:
            found = symbolize_tracebacks(list(tracebacks[first : first + _SYMBOLIZED_AT_ONCE]))
        finally:
            if not loaded:
                del vars(torch)["_inductor"]
        summaries: dict[int, FrameSummary] = {}  # equal frames are one object
        for stack in found:
            for frame in stack:
                if id(frame) not in summaries:
                    where = frame["filename"], int(frame["line"]), frame["name"]
                    summaries[id(frame)] = FrameSummary(*where, lookup_line=False)
            yield [summaries[id(frame)] for frame in stack]


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
