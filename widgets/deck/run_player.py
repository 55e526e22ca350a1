"""Recorded backwards and training steps, played in a notebook: `run.deck()`, `step.deck()`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.recompute.plan import RecomputePlan
from ...engine.recording.run import Run
from ...engine.training.step import TrainingStep, step_began_ns
from ...engine.training.step_memory import BACKWARD, FORWARD, OPTIMIZER
from ...errors import ending_where_called
from ...inspector.validation import raise_no_attribute
from .page_data import Document
from .player_widget import Played
from .run_page_data import Other, other_policies, run_document
from .save_deck import save_page
from .still_picture import Moment

_ELSEWHERE = {
    **dict.fromkeys(
        ["step", "run", "run_to", "step_over", "step_out", "back", "goto", "switch", "replace", "watch", "break_at"],
        "the page replays a finished run, and nothing is executed; ts.debug(loss) steps through a new backward",
    ),
    **dict.fromkeys(
        ["save_html", "save_perfetto", "save", "order", "peak", "timeline", "trace", "policy", "to_pandas"],
        "the run has {name}",
    ),
}


class Recording(Played):
    """A finished run, replayed by its page in a notebook. Nothing is executed.

    It is an ipywidgets widget like `Deck`. Its traits `selection` (the id of the selected task, or None) and
    `breakpoints` (ids) can be observed, linked and set.

    Args:
        run: the run.
        title: a title; by default the model's class.
        recompute: the plan that the forward ran under.
    """

    def __init__(self, run: Run, title: str = "", recompute: RecomputePlan | None = None) -> None:
        self._run = run
        others = list(other_policies(run))
        document = run_document(run, title, others, recompute)
        self._timelines = {name: timeline for name, _, timeline in others if timeline is not None}
        self._planned: list[int] = document.content["schedules"][0]["order"]
        self._packed = document.packed()
        super().__init__(run.graph, document.content["title"], _is_live=False)

    if not TYPE_CHECKING:  # for mypy, an unknown name would be of type Any

        @ending_where_called
        def __getattr__(self, name: str) -> Any:
            return raise_no_attribute(self, name, "a run that is played again", _ELSEWHERE)

    def __repr__(self) -> str:
        return f"<Recording of {self._run!r}>"

    def packed(self) -> bytes:
        return self._packed

    def moment(self) -> Moment:
        """The end of the run, or the position at which it was left."""
        run = self._run
        timelines = {} if run.timeline is None else {run.policy: run.timeline, **self._timelines}
        return Moment(run.policy, len(run.order), len(self._planned), timelines, self._planned)


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


class StepRecording(Played):
    """A training step, replayed by its page in a notebook. Nothing is executed.

    Args:
        step: a step that was traced task by task.
    """

    def __init__(self, step: TrainingStep) -> None:
        self._step = step
        document = step_document(step, list(other_policies(step.run)))
        self._planned = len(document.content["schedules"][0]["order"])
        self._packed = document.packed()
        super().__init__(step.run.graph, document.content["title"], _is_live=False)

    def __repr__(self) -> str:
        return f"<StepRecording of {self._step!r}>"

    def packed(self) -> bytes:
        return self._packed

    def moment(self) -> Moment:
        """The end of the step."""
        run = self._step.run
        timelines = {} if run.timeline is None else {run.policy: run.timeline}
        return Moment(run.policy, len(run.order), self._planned, timelines, begins=self._step.timeline.before)
