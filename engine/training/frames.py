"""What `ts.training` has found and measured, as tables for pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from ...inspector.arguments import expect_choice
from ..exports.frames import frame_of
from ..norms.norms import Norms
from .finding import Finding

TrainingTable = Literal["norms", "steps", "findings"]

_FIELDS = tuple(Finding.__dataclass_fields__)
_INTEGERS = ("size", "last_step", "alike")


def training_frame(norms: Norms, findings: Sequence[Finding], table: TrainingTable) -> Any:
    """What `Training.to_pandas` gives."""
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
