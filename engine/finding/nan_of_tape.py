"""`ts.find_nan` of a tape of HIPS autograd's. Needs numpy."""

from __future__ import annotations

import math

import numpy as np

from ...inspector.tapes.hips_tape import HipsTape
from ..sessions.stepper import Stepper
from ..stops.stopped import Stop


def value_of(tape: HipsTape) -> float:
    """The function's value; of an array the first that is bad, else the first: a sum may be infinite where none is."""
    values = np.ravel(tape.value)
    if not values.size:
        return 0.0
    finite = np.isfinite(values)
    value = float(np.real(values[np.argmin(finite)]))
    return value if finite.all() or not math.isfinite(value) else math.nan  # of a complex one the other part is bad


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
