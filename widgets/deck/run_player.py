"""Recorded backwards and training steps, played in a notebook: `run.deck()`, `step.deck()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...engine.recompute.plan import RecomputePlan
from ...engine.recording.run import Run
from ...engine.training.step import TrainingStep
from ...errors import ending_where_called
from ...inspector.validation import raise_no_attribute
from .player_widget import Played
from .run_page_data import other_policies, run_document
from .step_page_data import step_document
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
