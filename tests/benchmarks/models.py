"""The four models which every tool draws."""

from __future__ import annotations

from dataclasses import dataclass

from tapescope.engine.studies.ready_workload import Parts
from tapescope.engine.studies.workloads import workload


@dataclass(frozen=True, slots=True)
class Drawn:
    """A workload to draw, `small` with these knobs, and how long tapescope may take for it."""

    title: str
    workload: str
    goal_s: float
    knobs: tuple[tuple[str, int], ...] = ()

    def parts(self, tiny: bool = False) -> Parts:
        found = workload(self.workload)
        knobs = {**found.small, **dict(self.knobs)}
        if tiny:
            knobs.update((knob, 2) for knob in ("layers", "steps") if knob in knobs)
        return found.make(**knobs)


DRAWN = {
    "resnet50": Drawn("ResNet-50", "resnet50", 0.25),
    "gpt2": Drawn("GPT-2 small shape", "gpt2", 0.4),
    "lstm_cell_50": Drawn("LSTMCell × 50", "lstm_cell", 0.3, (("steps", 50),)),
    "lstm_cell_1500": Drawn("LSTMCell × 1,500", "lstm_cell", 3.0, (("steps", 1500),)),
}
