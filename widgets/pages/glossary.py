"""The words of the memory reports, one line each."""

from __future__ import annotations

from ...engine.memory.timeline import Category

CATEGORIES = {
    Category.SAVED: "a node keeps it for its backward",
    Category.BUFFER: "a gradient on its way: it waits for the task that takes it",
    Category.GRADIENT: "the .grad of a leaf, which stays when the backward has ended",
    Category.FORWARD: "of the forward: no node keeps it, your code does, as it does the loss",
    Category.HELD: "a gradient that is neither a .grad nor on its way: a hook or retain_grad() holds it",
    Category.WORKSPACE: "made and freed inside one task",
    Category.UNKNOWN: "none of these, as far as can be told: what a library keeps for itself, say",
    Category.LISTED: 'one of several gradients that wait in a list for their task to sum them (accumulate="list")',
    Category.CONSUMED: 'what waited for a task that has run, and is never let go (release="never")',
    Category.PARAMETER: "a parameter or a buffer of the model, where a whole step is shown",
    Category.STATE: "what an optimizer keeps from step to step, where a whole step is shown",
}
COLUMNS = {
    "peak": "the highest level of the backward: all bytes asked for since just before the forward, and not yet freed",
    "predicted": "simulated in this order from the measured run of another policy, or by the plan of a mirrored "
    "forward; exact: equal to the byte",
    "dry run": "predicted before any backward ran, from the forward alone",
    "peak in": "the task in which the peak was reached",
    "longest queue": "the most tasks that were ready to run at one moment",
    "time": "the median of backwards whose memory was not recorded",
}
