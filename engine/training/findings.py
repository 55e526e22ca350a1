"""Findings of a training loop, as sentences and as pandas tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

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
    "black box",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found in a training loop. As text it is the sentence.

    Attributes:
        kind: what it is.
        step: where it was found first; steps are counted from 0.
        sentence: all of it in words: the place, the size, and what to do.
        module, tensor: the names of what it is about, where it is one.
        size: its bytes.
        at: `file:line` in the user's code.
        last_step: where it was found last, if it went on.
        certain: whether it is so, and not only likely.
        alike: of a leak how many holders there are that differ by an index at most; `tensor` is the first of them.
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
    """A row for each optimizer that stepped in a row of steps, or whose step was left out."""
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
    """`Adam`, or `Adam 1` and `Adam 2` where there are two."""
    return [
        f"{title} {titles[: place + 1].count(title)}" if titles.count(title) > 1 else title
        for place, title in enumerate(titles)
    ]
