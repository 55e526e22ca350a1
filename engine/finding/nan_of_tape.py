"""`th.find_nan` of a tape of HIPS autograd's. Needs numpy."""

from __future__ import annotations

import numpy as np

from ...inspector.tapes.hips_tape import HipsTape
from ..sessions.stepper import Stepper
from ..stops.stopped import Stop


def value_of(tape: HipsTape) -> float:
    """The function's value; NaN where it is an array with a bad one in it."""
    value = np.real(tape.value)
    return float(value) if np.size(value) == 1 else float(value.sum())


def first_stop(tape: HipsTape) -> Stop | None:
    """What first gave a bad gradient, in autograd's own order. The tape's gradient is left as it was."""
    before = tape.gradient
    try:
        with Stepper(tape, policy="dfs") as session, np.errstate(all="ignore"):
            session.watch("nan", "inf")
            session.run()
            stopped = session.stopped
            return stopped if stopped is not None and stopped.why == "watchpoint" else None
    finally:
        tape.gradient = before
