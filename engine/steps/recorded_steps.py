"""Steps of a loop that `ts.record_steps` recorded beside it, by the loop's own count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...inspector.arguments import a_kind
from .step import TrainingStep

RecordedSteps = Sequence[TrainingStep] | Mapping[int, TrainingStep] | None

_WANTED = "ts.record_steps() that was opened with the loop, or a dict from steps of the loop to recorded ones"


def recorded_steps(steps: RecordedSteps) -> dict[int, TrainingStep]:
    """Those that were followed task by task: of no other is there a backward to be shown.

    Raises:
        TypeError: these are no recorded steps.
    """
    if steps is None:
        return {}
    if not isinstance(steps, Mapping | Sequence):
        raise TypeError(f"steps is {a_kind(steps)}; expected {_WANTED}")
    pairs = list(steps.items()) if isinstance(steps, Mapping) else list(enumerate(steps))
    for number, step in pairs:
        if type(number) is not int or not isinstance(step, TrainingStep):
            raise TypeError(f"steps has {a_kind(step)} at {number!r}; expected {_WANTED}")
    own = {number if isinstance(steps, Mapping) else step.number: step for number, step in pairs}
    return {number: step for number, step in own.items() if _is_followed(step)}


def _is_followed(step: TrainingStep) -> bool:
    try:
        return bool(step.run.graph.tasks)
    except ValueError:
        return False
