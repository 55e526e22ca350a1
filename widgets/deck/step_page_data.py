"""A recorded training step as a page's data, and as a page."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from ...engine.training.step import TrainingStep, step_began_ns
from ...engine.training.step_memory import BACKWARD, FORWARD, OPTIMIZER
from .page_data import Document
from .run_page_data import Other, run_document
from .save_deck import save_page

_NOT_PREDICTED = (
    "A step's memory was measured only in the order that ran. ts.compare(make_loss, step=step) shows the step's peak "
    "under each policy."
)


def save_step(step: TrainingStep, path: str | Path) -> Path:
    """Write a step as one page that plays it without a kernel or a network connection; see `save_page`."""
    document = step_document(step)
    return save_page(document.packed(), Path(path), document.content["title"], "")


def step_document(step: TrainingStep, others: list[Other] | None = None) -> Document:
    """Return a step as page data. All before its backward counts as the forward, all after it as the optimizer.

    Raises:
        ValueError: if the step was not traced task by task.
    """
    document = run_document(step.run, others=others)
    content = document.content
    memory = content["schedules"][0]["memory"]
    # The first allocations are not events of the forward, but storages that existed before the step.
    count = step.timeline.before
    memory["before"] = count
    memory["events"] = memory["events"][count:]
    memory["starts"] = [start - count for start in memory["starts"]]
    for name in ("forward_ns", "event_places"):
        if name in memory:
            memory[name] = memory[name][count:]
    changes = iter(memory["changes"])
    shifted: list[int] = []
    while change := list(islice(changes, 4)):
        shifted += [max(change[0] - count, 0), *change[1:]]
    memory["changes"] = shifted
    memory["step"] = True
    memory["peak"] = ""  # the page describes the peak in the terms of its legend
    timeline = step.run.timeline
    assert timeline is not None, "the run of a step was measured"
    for other in content["schedules"][1:]:
        other["memory_note"] = _NOT_PREDICTED
    content["phases"] = [
        *(each for each in content["phases"] if each["name"] in (FORWARD, BACKWARD)),
        {"name": OPTIMIZER, "elapsed_ns": step.timeline.elapsed_ns - (max(timeline.task_ns) - step_began_ns(step))},
    ]
    return document
