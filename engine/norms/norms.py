"""What is known of a loop's steps in numbers: losses, learning rates, and each module's gradient, weight and update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..exports.frames import pandas_itself
from ..words.phrases import counted
from .step_table import ABSENT, StepTable

NO_SCALAR = torch.finfo(torch.float32).min
"""Where a step has no loss, or no learning rate."""

_MOST_NUMBERS = 4_000_000
"""Of gradients, 16 MB; of weights and updates together as many again."""


class Norms:
    """The norms of each module over the steps, in bounded memory: the older, the coarser.

    A step's gradient is the one with which the optimizer was to step: of all backwards of the step together, before it
    was clipped, and without what a gradient scaler multiplied it with. Weights are those before the update; these two
    are looked at every `every`th step. NaN and Inf are in it as they were; -1 stands where there was none.

    Known limitations: of a parameter that is in parts on several ranks each sees its own part. Gradients that the loop
    itself alters between backward and step are told as the backward left them.

    Attributes:
        modules: their paths, in the order in which the backward completes their gradients.
    """

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._order: list[int] = []
        self.optimizers: list[str] = []
        self._gradients = StepTable(_MOST_NUMBERS)
        self._sampled = StepTable(_MOST_NUMBERS)  # weights, then updates
        self._scalars = StepTable(_MOST_NUMBERS, NO_SCALAR)

    def add(self, steps: Sequence[int], gradients: Tensor, scalars: Tensor) -> None:
        """More steps. Of `scalars` there are three for each optimizer: loss, largest learning rate, whether its step
        was left out."""
        self._gradients.add(steps, gradients)
        self._scalars.add(steps, scalars)

    def add_sample(self, step: int, weights: Tensor, updates: Tensor) -> None:
        """What was looked at in this step: both for all columns."""
        self._sampled.add([step], torch.stack((weights, updates), 1).reshape(1, -1))

    def name(self, columns: list[str], order: list[int], optimizers: list[str]) -> None:
        """What the columns of the tables are, and how they are shown."""
        self._columns, self._order, self.optimizers = list(columns), list(order), list(optimizers)

    @property
    def modules(self) -> list[str]:
        return [self._columns[each] for each in self._order]

    @property
    def steps(self) -> Tensor:
        """int64 of (rows, 2): the first and the last step of each row."""
        return torch.stack((self._gradients.firsts, self._gradients.lasts), 1)

    @property
    def gradients(self) -> Tensor:
        """float32 of (rows, modules): the norm of the module's gradient, where a row is of several the largest."""
        return self._ordered(self._gradients.values, self._order)

    @property
    def whole(self) -> Tensor:
        """float32 of (rows,): the norm of all gradients together; NaN where there was none."""
        norms = norm_of(self._gradients.values)
        return torch.where(norms == ABSENT, torch.nan, norms)

    @property
    def columns(self) -> list[str]:
        """The modules in the order in which they were met."""
        return self._columns

    @property
    def lasts(self) -> Tensor:
        """int64 of (rows,): the last step of each row."""
        return self._gradients.lasts

    def place_of(self, step: int) -> int:
        """The first row that begins with this step or a later one."""
        return int(torch.searchsorted(self._gradients.firsts, step))

    @property
    def scalars_by_step(self) -> Tensor:
        """float32 of (rows, 3 * optimizers): of each what `scalar` has by number."""
        return self._scalars.values

    def samples_since(self, step: int) -> tuple[list[int], Tensor, Tensor]:
        """The last steps of the samples that begin with this step or a later one, and weights and updates by column."""
        place = int(torch.searchsorted(self._sampled.firsts, step))
        values = self._sampled.values[place:]
        return self._sampled.lasts[place:].tolist(), values[:, ::2], values[:, 1::2]

    @property
    def by_column(self) -> Tensor:
        """The same in the order in which modules were met."""
        return self._gradients.values

    @property
    def ratios_by_column(self) -> Tensor:
        """`ratios` likewise."""
        return ratio_of(self._sampled.values[:, ::2], self._sampled.values[:, 1::2])

    @property
    def sampled_steps(self) -> Tensor:
        """int64 of (samples, 2): the first and the last step of each row of weights and updates."""
        return torch.stack((self._sampled.firsts, self._sampled.lasts), 1)

    @property
    def weights(self) -> Tensor:
        """float32 of (samples, modules): the norm of its parameters before the update."""
        return self._ordered(self._sampled.values, [2 * each for each in self._order])

    @property
    def updates(self) -> Tensor:
        """float32 of (samples, modules): the norm of what the optimizer added to them."""
        return self._ordered(self._sampled.values, [2 * each + 1 for each in self._order])

    @property
    def ratios(self) -> Tensor:
        """Update over weight; -1 where there was no update, or the weight was 0."""
        return ratio_of(self.weights, self.updates)

    @property
    def losses(self) -> Tensor:
        """float32 of (rows, optimizers): of which each optimizer's step was the gradient; NaN where it had none."""
        return self._known(self.scalar(0))

    @property
    def learning_rates(self) -> Tensor:
        """float32 of (rows, optimizers): the largest of its groups; NaN where it did not step."""
        return self._known(self.scalar(1))

    @property
    def skipped(self) -> Tensor:
        """bool of (rows,): whether a gradient scaler left a step out."""
        return (self.scalar(2) > 0).any(1)

    @staticmethod
    def _known(values: Tensor) -> Tensor:
        return torch.where(values == NO_SCALAR, torch.nan, values)

    def scalar(self, which: int) -> Tensor:
        """float32 of (rows, optimizers): 0 losses, 1 learning rates, 2 whether left out; `NO_SCALAR` where none."""
        values = self._scalars.values
        return values[:, which::3]

    @staticmethod
    def _ordered(values: Tensor, columns: list[int]) -> Tensor:
        if not columns or max(columns) >= values.shape[1]:
            wider = torch.full(
                (values.shape[0], max(columns, default=-1) + 1), ABSENT, dtype=torch.float32, device="cpu"
            )
            wider[:, : values.shape[1]] = values
            values = wider
        return values[:, columns]

    def __len__(self) -> int:
        return self._gradients.count

    def __repr__(self) -> str:
        return f"<norms of {counted(len(self.modules), 'module')} in {counted(len(self), 'row')} of steps>"

    def to_pandas(self) -> Any:
        """A row for each module and each row of steps: step, last_step, module, gradient_norm, and where they were
        looked at weight_norm, update_norm, update_ratio.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        pandas = pandas_itself()
        steps, gradients = self.steps, self.gradients
        row, column = (gradients != ABSENT).nonzero(as_tuple=True)
        modules = pandas.Categorical.from_codes(column.tolist(), self.modules)
        table: dict[str, Any] = {
            "step": steps[row, 0].tolist(),
            "last_step": steps[row, 1].tolist(),
            "module": modules,
            "gradient_norm": gradients[row, column].tolist(),
        }
        samples = {int(first): place for place, (first, _) in enumerate(self.sampled_steps.tolist())}
        places = torch.tensor([samples.get(int(first), -1) for first in steps[:, 0]], dtype=torch.int64, device="cpu")[
            row
        ]
        kinds = {"weight_norm": self.weights, "update_norm": self.updates, "update_ratio": self.ratios}
        for name, values in kinds.items():
            if values.shape[0]:
                found = values[places.clamp(min=0), column]
                known = (places >= 0) & (found != ABSENT)
                table[name] = torch.where(known, found, torch.nan).tolist()
            else:
                table[name] = [float("nan")] * row.numel()
        return pandas.DataFrame(table)


def norm_of(norms: Tensor) -> Tensor:
    """float32 of (rows,): by row the norm of what has these norms, together; -1 where there is none."""
    there = norms != ABSENT
    whole = torch.where(there, norms.double(), 0).square().sum(1).sqrt()
    return torch.where(there.any(1), whole, ABSENT).float()


def ratio_of(weights: Tensor, updates: Tensor) -> Tensor:
    """Updates over weights, of norms; -1 where one of them is none, or the weight is 0."""
    there = (weights != ABSENT) & (updates != ABSENT) & (weights != 0)
    return torch.where(there, updates / weights, ABSENT)
