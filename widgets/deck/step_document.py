"""A whole training step as the page's data: a backward, and around it what the step has."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from ...engine.steps.phases import BACKWARD, FORWARD, OPTIMIZER
from ...engine.steps.step import TrainingStep, step_began_ns
from .document import Document, Json
from .page import save_page
from .run_document import Other, run_document

_NOT_PREDICTED = (
    "A step's memory is that of the order which ran: what its backward's tasks take in another one was not measured. "
    "ts.compare(make_loss, step=step) has each policy's peak beside the step's."
)


def save_step(step: TrainingStep, path: str | Path) -> Path:
    """Writes a step as one page that plays it without a kernel or a network; see `save_page`."""
    document = step_document(step)
    return save_page(document.packed(), Path(path), document.content["title"], "")


def step_document(step: TrainingStep, others: list[Other] | None = None) -> Document:
    """The page's data: the forward is all before that backward, and the optimizer all after it.

    Raises:
        ValueError: the step was not followed task by task.
    """
    document = run_document(step.run, others=others)
    content = document.content
    memory = content["schedules"][0]["memory"]
    _begin_with(memory, step.timeline.before)
    memory["step"] = True
    memory["peak"] = ""  # the page says it in the words of its legend
    for other in content["schedules"][1:]:
        other["memory_note"] = _NOT_PREDICTED
    content["phases"] = [
        *(each for each in content["phases"] if each["name"] in (FORWARD, BACKWARD)),
        {"name": OPTIMIZER, "elapsed_ns": step.timeline.elapsed_ns - _ended_ns(step)},
    ]
    return document


def _begin_with(memory: Json, count: int) -> None:
    """The first births are no events of the forward's: what is there as the step begins."""
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


def _ended_ns(step: TrainingStep) -> int:
    """When all tasks had ended, nanoseconds since the step began."""
    timeline = step.run.timeline
    assert timeline is not None, "a step's run has its memory"
    return max(timeline.task_ns) - step_began_ns(step)
