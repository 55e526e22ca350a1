"""Ctrl-C at a chosen line of tapescope's: what a signal may do between any two of them.

Python looks for signals after calls and jumps, and as a function begins. So none is heard between the last line of a
`with` and the call of `__exit__`, which is a line of its own for who traces, nor at a line that does nothing, such as
`try:`, which CPython 3.11 leaves out of the range that the `with` around it covers: there none is raised. Nor is one
where tapescope has set a handler that lets signals wait.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dis import opmap
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import tapescope

_ROOT = str(Path(tapescope.__file__).parent)
_OURS = tuple(f"{_ROOT}/{folder}/" for folder in ("engine", "inspector", "widgets"))


def lines_run(call: Callable[[], object]) -> int:
    """Return the number of lines of tapescope that this thread runs in a call."""
    return _traced(call)[0]


def interrupted(call: Callable[[], object], *at: int, kept: list[KeyboardInterrupt] | None = None) -> str | None:
    """Calls it, and raises KeyboardInterrupt as the `at`-th line of tapescope's is to run, or at the first one after it
    that may be interrupted. Returns which that was; None where the call ended before.

    Args:
        kept: gets the error, with its traceback.
    """
    return _traced(call, *at, kept=kept)[1]


def _traced(
    call: Callable[[], object], *at: int, kept: list[KeyboardInterrupt] | None = None
) -> tuple[int, str | None]:
    count, place, is_due = 0, None, False
    handler = signal.getsignal(signal.SIGINT)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count, place, is_due
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        if event == "line" and not _hears_no_signal(frame):
            count += 1
            is_due |= count in at
            if is_due and signal.getsignal(signal.SIGINT) is handler and not _returns_a_device(frame):
                is_due = False
                place = f"{frame.f_code.co_filename.removeprefix(_ROOT)}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt as error:
        if kept is not None:
            kept.append(error)
    finally:
        sys.settrace(before)
    return count, place


_LEAVES = bytes([opmap["PUSH_EXC_INFO"], opmap["WITH_EXCEPT_START"]])
_ENDS = bytes([opmap["LOAD_CONST"]]) * 3


def _hears_no_signal(frame: FrameType) -> bool:
    """Return whether the next instructions call the `__exit__` of a `with`, or the next one does nothing."""
    code = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 8 : 2]
    if code[0] == opmap["SWAP"]:  # the `with` ends by a return, whose value is kept below
        code = code[1:]
    return code[0] == opmap["NOP"] or code[:2] == _LEAVES or code[:3] == _ENDS


def _returns_a_device(frame: FrameType | None) -> bool:
    """Return whether torch runs this to read a fake tensor's device.

    To create a leaf's AccumulateGrad, it does so in C++ that must not throw (`torch::autograd::InputMetadata`): an
    error in `__torch_dispatch__`, even of torch's own FakeTensorMode, ends the process (torch 2.13).
    """
    while frame is not None:
        if frame.f_code.co_name == "__torch_dispatch__" and any(
            each is torch.ops.prim.device.default for each in frame.f_locals.values()
        ):
            return True
        frame = frame.f_back
    return False
