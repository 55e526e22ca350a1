"""A training step that has run, played again in a notebook: `step.deck()`."""

from __future__ import annotations

from ...engine.steps.step import TrainingStep
from .played import Played
from .run_document import other_policies
from .step_document import step_document
from .still import Moment


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
