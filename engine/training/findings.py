"""Findings of a training loop and the mean time of its steps, as sentences and as pandas tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ...inspector.text.sizes_and_counts import share_text
from ...inspector.validation import expect_choice
from ..recording.pandas_tables import frame_of
from .norms import Norms

FindingKind = Literal[
    "leak",
    "retained graph",
    "silent write",
    "never stepped",
    "without gradient",
    "not moved",
    "zero gradient",
    "never cleared",
    "cleared early",
    "stepped twice",
    "clipped nothing",
    "requires_grad",
    "skipped",
    "learning rate",
    "norm",
    "non-finite",
    "unread",
    "second backward",
    "stale cast",
    "data wait",
    "black box",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a training loop. `str()` returns its sentence.

    Attributes:
        kind: the kind.
        step: the first step with it; steps are counted from 0.
        sentence: the finding in words: the place, the size, and what to do.
        module, tensor: the names of the module and the tensor concerned, if any.
        size: the tensor's bytes.
        at: `file:line` in the user's code.
        last_step: the last step with it, if it occurred in several.
        certain: False if it is only likely.
        alike: for a leak, the number of holders that differ at most by an index; `tensor` is the first of them.
    """

    kind: FindingKind
    step: int
    sentence: str
    module: str | None = None
    tensor: str | None = None
    size: int | None = None
    at: str | None = None
    last_step: int | None = None
    certain: bool = True
    alike: int | None = None

    def __str__(self) -> str:
        return self.sentence

    @property
    def subject(self) -> tuple[str | None, ...]:
        """The subject. Findings with the same subject are merged into one that continued."""
        return self.kind, self.module, self.tensor, self.at


PHASES = "data", "forward", "backward", "optimizer", "rest"
"""The phases of a step. "data" is the time in which the loop waits for a DataLoader; "rest" is the time outside of the
other phases, such as logging, evaluation and schedulers."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The mean time of a step, without the first step, and without the time of tapescope's own measurements.

    Attributes:
        seconds: the seconds of each phase, see `PHASES`.
        steps: the number of steps.
        samples_per_second: the samples that DataLoaders returned, by the first dimension of a batch's first tensor;
            None without a DataLoader.
        device: the device on whose clock the phases were measured.
    """

    seconds: dict[str, float]
    steps: int
    samples_per_second: float | None
    device: str

    @property
    def total(self) -> float:
        """The seconds of a step."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{self.share(phase)} {phase}" for phase in PHASES)
        rate = ""
        if (samples := self.samples_per_second) is not None:
            rate = f"; {samples:{',.0f' if samples >= 100 else '.3g'}} samples/s"
        return f"a step takes {seconds_text(self.total)} on average: {parts}{rate}"

    def share(self, phase: str) -> str:
        """Return a phase's share of a step as text."""
        return share_text(round(1e9 * self.seconds[phase]), max(1, round(1e9 * self.total)))


def seconds_text(seconds: float) -> str:
    """Return a time as `12.3 ms` or `1.23 s`."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


TrainingTable = Literal["norms", "steps", "findings"]

_FIELDS = tuple(Finding.__dataclass_fields__)
_INTEGERS = ("size", "last_step", "alike")


def training_frame(norms: Norms, findings: Sequence[Finding], table: TrainingTable) -> Any:
    """Return the DataFrame of `Training.to_pandas`."""
    expect_choice(table, get_args(TrainingTable), "table")
    if table == "norms":
        return norms.to_pandas()
    if table == "steps":
        return _steps_frame(norms)
    columns = {name: [getattr(each, name) for each in findings] for name in _FIELDS}
    return frame_of(columns, _INTEGERS)


def _steps_frame(norms: Norms) -> Any:
    """Return a frame with a row for each optimizer that stepped in a row of steps, or whose step was skipped."""
    losses, rates, skipped = norms.losses, norms.learning_rates, norms.scalar(2)
    row, column = (skipped >= 0).nonzero(as_tuple=True)
    steps = norms.steps[row]
    names = numbered(norms.optimizers)
    return frame_of(
        {
            "step": steps[:, 0].tolist(),
            "last_step": steps[:, 1].tolist(),
            "optimizer": [names[each] for each in column.tolist()],
            "loss": losses[row, column].tolist(),
            "learning_rate": rates[row, column].tolist(),
            "skipped": (skipped[row, column] > 0).tolist(),
            "gradient_norm": norms.whole[row].tolist(),
        }
    )


def numbered(titles: Sequence[str]) -> list[str]:
    """Return the names with numbers where they repeat: `Adam 1` and `Adam 2`, but `Adam` for a single one."""
    return [
        f"{title} {titles[: place + 1].count(title)}" if titles.count(title) > 1 else title
        for place, title in enumerate(titles)
    ]
