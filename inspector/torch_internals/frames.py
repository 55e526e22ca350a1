"""Frames of Python that an error went through: what the engine had called."""

from __future__ import annotations

from types import TracebackType

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from .engine import _Engine

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
