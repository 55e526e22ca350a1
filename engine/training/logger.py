"""Writes a loop's numbers to a logger of the user: TensorBoard's SummaryWriter, Lightning's loggers, a run of wandb."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ...inspector.validation import a_kind, expect_number
from .findings import Finding, numbered
from .norms import ABSENT, NO_SCALAR, Norms, norm_of, ratio_of

_WANTED = (
    "a logger: one with add_scalar(tag, value, step), such as torch.utils.tensorboard.SummaryWriter, with "
    "log_metrics(values, step=), such as Lightning's loggers, or with log(values, commit=), such as wandb.init() gives"
)
_PREFIX = "tapescope"
_STEP = f"{_PREFIX}/step"
_MOST_MODULES = 100  # the most module groups that are written; each is a chart

Numbers = dict[int, dict[str, float]]
"""The values by step and tag."""


class Logger:
    """A logger of the user.

    TensorBoard accepts numbers of an earlier step. wandb drops them, so they are logged with the current step, together
    with `tapescope/step`, the x axis of their charts. The loop's own call of `log` commits both.

    Args:
        writer: an object with `add_scalar(tag, value, step)` or `log_metrics(values, step=)`, and optionally
            `add_text(tag, text, step)`; or with `log(values, commit=)`, and optionally `define_metric`. The first of
            these methods is used.

    Raises:
        TypeError: it has none of them.
    """

    def __init__(self, writer: Any) -> None:
        methods = {name: getattr(writer, name, None) for name in ("add_scalar", "log_metrics", "log")}
        found = next((name for name, method in methods.items() if callable(method)), None)
        if isinstance(writer, type | torch.Tensor) or found is None:
            raise TypeError(f"writer is {a_kind(writer)}; expected {_WANTED}")
        self._add_scalar: Callable[..., object] | None = methods["add_scalar"] if found == "add_scalar" else None
        self._log_metrics: Callable[..., object] | None = methods["log_metrics"] if found == "log_metrics" else None
        self._add_text: Callable[..., object] | None = getattr(writer, "add_text", None)
        self._is_wandb = found == "log"
        self._log: Any = methods["log"]
        self._define_metric: Callable[..., object] | None = getattr(writer, "define_metric", None)

    def begin(self) -> None:
        """Tell wandb the x axis of the numbers."""
        if self._is_wandb and callable(self._define_metric):
            self._define_metric(_STEP)
            self._define_metric(f"{_PREFIX}/*", step_metric=_STEP)

    def commit(self) -> None:
        """Write the values that waited for the loop's own `log`."""
        if self._is_wandb:
            self._log({}, commit=True)

    def write(self, numbers: Numbers, findings: Iterable[Finding], commit: bool = False) -> None:
        """Write these values. In wandb, `commit` also ends the row of the last step, which the loop's own `log` would
        end.
        """
        rows: dict[int, dict[str, Any]] = {step: dict(values) for step, values in numbers.items()}
        for step, values in rows.items():
            if self._log_metrics is not None:
                self._log_metrics(values, step=step)
            elif self._add_scalar is not None:
                for tag, value in values.items():
                    self._add_scalar(tag, value, step)
        for each in findings:
            tag = f"{_PREFIX}/findings/{each.kind.replace(' ', '_')}"
            if self._is_wandb:
                rows.setdefault(each.step, {})[tag] = str(each)
            elif callable(self._add_text):
                self._add_text(tag, str(each), each.step)
        if self._is_wandb:
            last = max(rows, default=0)
            for step in sorted(rows):
                self._log({_STEP: step, **rows[step]}, commit=commit or step != last)


def expect_depth(value: object) -> int:
    """Raise if the argument is not a valid number of path components."""
    wanted = "a number of components of a module's path, 0 or more"
    expect_number(value, int, "depth", wanted)
    assert isinstance(value, int)
    if value < 0:
        raise ValueError(f"depth is {value}; expected {wanted}")
    return value


def numbers_of(norms: Norms, depth: int, since: int = 0) -> Numbers:
    """Return the numbers of the steps from `since` on. Pooled steps have the largest numbers, under their last step.

    The tags are `tapescope/gradient_norm` for the whole loop; `tapescope/loss` and `tapescope/learning_rate`, followed
    by the optimizer's name if there are several; and for each group of modules `tapescope/gradient_norm/GROUP`, and
    `tapescope/update_ratio/GROUP` in sampled steps.

    Args:
        depth: modules whose paths have this many first components in common form a group; 0: no groups. If this gives
            more than 100 groups, the largest smaller depth that does not is used.
    """
    groups = _groups(norms.columns, depth)
    found: Numbers = {}
    place = norms.place_of(since)
    gradients, scalars = norms.by_column[place:], norms.scalars_by_step[place:].tolist()
    for row, step in enumerate(norms.lasts[place:].tolist()):
        found[step] = _scalars(scalars[row], numbered(norms.optimizers))
    steps = list(found)
    _put(found, steps, "gradient_norm", norm_of(gradients).tolist())
    for name, columns in groups.items():
        _put(found, steps, f"gradient_norm/{name}", norm_of(_columns(gradients, columns)).tolist())
    steps, weights, updates = norms.samples_since(since)
    for name, columns in groups.items():
        ratios = ratio_of(*(norm_of(_columns(each, columns)) for each in (weights, updates)))
        _put(found, steps, f"update_ratio/{name}", ratios.tolist())
    return found


def _put(found: Numbers, steps: Sequence[int], tag: str, values: Sequence[float]) -> None:
    """Add the values under a tag, NaN and Inf included, except where there was no gradient."""
    for step, value in zip(steps, values, strict=True):
        if value != ABSENT:
            found.setdefault(step, {})[f"{_PREFIX}/{tag}"] = value


def _columns(values: torch.Tensor, columns: Sequence[int]) -> torch.Tensor:
    """Return these columns, without those of modules that were added later."""
    return values[:, [each for each in columns if each < values.shape[1]]]


def _scalars(row: Sequence[float], optimizers: Sequence[str]) -> dict[str, float]:
    """Return three numbers per optimizer: loss, learning rate, and whether its step was skipped."""
    found = {}
    for place, name in enumerate(optimizers):
        behind = f"/{name.replace(' ', '_')}" if len(optimizers) > 1 else ""
        for tag, value in zip(("loss", "learning_rate"), row[3 * place : 3 * place + 2], strict=False):
            if value != NO_SCALAR:
                found[f"{_PREFIX}/{tag}{behind}"] = value
    return found


def _groups(names: Sequence[str], depth: int) -> Mapping[str, list[int]]:
    """Group the columns by the first components of their paths."""
    for parts in range(min(depth, max((name.count(".") + 1 for name in names), default=0)), 0, -1):
        found: dict[str, list[int]] = {}
        for column, name in enumerate(names):
            found.setdefault(".".join(name.split(".")[:parts]).replace(" ", "_"), []).append(column)
        if len(found) <= _MOST_MODULES:
            return found
    return {}
