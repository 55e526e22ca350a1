"""Recorded backwards and training steps, played in a notebook: `run.deck()`, `step.deck()`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.recompute.plan import RecomputePlan
from ...engine.recording.run import Run
from ...engine.training.step import TrainingStep, step_began_ns
from ...engine.training.step_timeline import BACKWARD, FORWARD, OPTIMIZER
from ...errors import ending_where_called
from ...inspector.validation import raise_no_attribute
from .page_data import Document, Json
from .player_widget import Played
from .run_page_data import Other, other_policies, run_document
from .save_deck import save_page
from .still_picture import Moment

_ELSEWHERE = {
    **dict.fromkeys(
        ["step", "run", "run_to", "step_over", "step_out", "back", "goto", "switch", "replace", "watch", "break_at"],
        "nothing is executed here, its page plays; ts.debug(loss) steps a backward that is yet to run",
    ),
    **dict.fromkeys(
        ["save_html", "save_perfetto", "save", "order", "peak", "timeline", "trace", "policy", "to_pandas"],
        "the run that it plays has {name}",
    ),
}


class Recording(Played):
    """A run, played again in a notebook. The page does all of it: nothing is executed.

    It is an ipywidgets widget as `Deck` is; its traits `selection` (the id of the task that is looked at, or None) and
    `breakpoints` (ids) can be observed, linked and set.

    Args:
        recompute: the plan that its forward ran under.
    """

    def __init__(self, run: Run, title: str = "", recompute: RecomputePlan | None = None) -> None:
        self._run = run
        others = list(other_policies(run))
        document = run_document(run, title, others, recompute)
        self._timelines = {name: timeline for name, _, timeline in others if timeline is not None}
        self._planned: list[int] = document.content["schedules"][0]["order"]
        self._packed = document.packed()
        super().__init__(run.graph, document.content["title"], _is_live=False)

    if not TYPE_CHECKING:  # a name that is not there would be of any type

        @ending_where_called
        def __getattr__(self, name: str) -> Any:
            return raise_no_attribute(self, name, "a run that is played again", _ELSEWHERE)

    def __repr__(self) -> str:
        return f"<Recording of {self._run!r}>"

    def packed(self) -> bytes:
        return self._packed

    def moment(self) -> Moment:
        """As it ended, or was left."""
        run = self._run
        timelines = {} if run.timeline is None else {run.policy: run.timeline, **self._timelines}
        return Moment(run.policy, len(run.order), len(self._planned), timelines, self._planned)


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


class StepRecording(Played):
    """A training step, played again in a notebook; nothing is executed. What `Recording` is for a backward.

    Args:
        step: one that was followed task by task.
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
        """As it ended."""
        run = self._step.run
        timelines = {} if run.timeline is None else {run.policy: run.timeline}
        return Moment(run.policy, len(run.order), self._planned, timelines, begins=self._step.timeline.before)
