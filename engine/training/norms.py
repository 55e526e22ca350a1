"""Norms of a loop's gradients, weights and updates by module, kept over all steps in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.tensors import Elements, LateTensor, computable, elements_of
from ..recording.pandas_tables import pandas_itself

_MOST_PLACES = 64
_NARROW = (torch.float16, torch.bfloat16)
_USUAL = (Tensor, Parameter)
_WITHOUT_DOUBLES = ("mps",)


class ColumnNorms(NamedTuple):
    """Norms of some columns.

    Attributes:
        columns: int64 on the CPU.
        norms: one for each.
    """

    columns: Tensor
    norms: LateTensor


class TakenNorms(NamedTuple):
    """Norms of the gradients that a backward left.

    Attributes:
        parameters: whose, by id.
        norms: by column.
    """

    parameters: frozenset[int]
    norms: list[ColumnNorms]


class NormSums:
    """Takes norms by column. It keeps where which tensor's norm belongs, since that is the same in each step.

    Attributes:
        unread: by column why a tensor of it could not be read.
    """

    def __init__(self) -> None:
        self.unread: dict[int, str] = {}
        self._places: dict[tuple[tuple[int, ...], torch.device], tuple[Tensor, Tensor]] = {}

    def take(self, tensors: Sequence[Tensor], columns: Sequence[int], scale: Tensor | None = None) -> list[ColumnNorms]:
        """The norm of all tensors of a column together; of a tensor in parts on several ranks that of this rank's part.

        Args:
            tensors: gradients or parameters, of any device, dtype and layout.
            columns: to which each belongs.
            scale: what the tensors were multiplied with.
        """
        groups: dict[tuple[int, torch.dtype], tuple[list[Tensor], list[int]]] = {}  # by device and dtype
        for tensor, column in zip(tensors, columns, strict=True):
            parts: Sequence[Tensor] = (tensor,)
            is_strided = tensor.layout is torch.strided and not tensor.is_meta
            if type(tensor) not in _USUAL or tensor.dtype is not torch.float32 or not is_strided:
                parts, unread = plain_elements(tensor)
                if unread:
                    self.unread[column] = unread
            for plain in parts:
                key = (plain.get_device(), plain.dtype)
                group = groups.get(key)
                if group is None:
                    group = groups[key] = ([], [])
                group[0].append(plain)
                group[1].append(column)
        by_device: dict[int, tuple[list[Tensor], list[int]]] = {}
        for (device, dtype), (found, places) in groups.items():
            norms, columns_there = by_device.setdefault(device, ([], []))
            norms.append(_norms_of(found, dtype))
            columns_there += places
        return [
            self._summed(torch.cat(norms) if len(norms) > 1 else norms[0], places, scale)
            for norms, places in by_device.values()
        ]

    def _summed(self, norms: Tensor, columns: list[int], scale: Tensor | None) -> ColumnNorms:
        key = (tuple(columns), norms.device)
        known = self._places.get(key)
        if known is None:
            if len(self._places) > _MOST_PLACES:
                self._places.clear()
            numbers, index = torch.unique(torch.tensor(columns, dtype=torch.int64, device="cpu"), return_inverse=True)
            known = self._places[key] = numbers, index.to(norms.device)
        numbers, index = known
        squares = norms.square_()
        sums = torch.zeros(numbers.numel(), dtype=norms.dtype, device=norms.device).index_add_(0, index, squares)
        sums.sqrt_()
        if scale is not None:
            sums /= scale.to(sums.device, sums.dtype, non_blocking=True)
        return ColumnNorms(numbers, LateTensor(sums.float()))


def _norms_of(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """One number each, so wide that its square is none that the tensors' own dtype would not hold."""
    wide = torch.float32 if dtype in _NARROW else None
    norms = torch._foreach_norm(tensors, 2, wide)
    together = torch.stack(norms)
    return together if together.device.type in _WITHOUT_DOUBLES else together.double()


def plain_elements(tensor: Tensor) -> Elements:
    """Return a tensor's elements as tensors whose norm can be taken, and why they cannot be read."""
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
    parts, unread = elements_of(tensor)
    found = (each for each in map(computable, parts) if each.is_floating_point() or each.is_complex())
    return Elements(tuple(each for each in found if each.numel()), unread)


ABSENT = -1.0
"""Where a step has no number. Norms are none of that; NaN and Inf are numbers like others."""

_FIRST_ROWS = 256
_FEWEST_ROWS = 64


class StepTable:
    """A row of numbers a step. When it is full the older half of its rows is pooled by two, four, eight, ... steps,
    until a quarter of the table has room again: the newer half stays single steps, and at least an eighth of the rows
    tells evenly of all that was before. Pooled rows hold the largest of each number; where one was NaN, NaN.

    Args:
        most: how many numbers it may hold.
        absent: stands where a step has none.

    Attributes:
        count: how many rows there are.
    """

    def __init__(self, most: int, absent: float = ABSENT) -> None:
        self._most = most
        self._absent = absent
        self.count = 0
        self._values = torch.empty(0, 0, dtype=torch.float32, device="cpu")
        self._firsts = torch.empty(0, dtype=torch.int64, device="cpu")
        self._lasts = torch.empty(0, dtype=torch.int64, device="cpu")

    @property
    def values(self) -> Tensor:
        """float32 of (rows, numbers)."""
        return self._values[: self.count]

    @property
    def firsts(self) -> Tensor:
        """The first step of each row."""
        return self._firsts[: self.count]

    @property
    def lasts(self) -> Tensor:
        """The last one."""
        return self._lasts[: self.count]

    def add(self, steps: Sequence[int], rows: Tensor) -> None:
        """More rows, of later steps. They may have more numbers than those before: of these they had none."""
        numbers = rows.shape[1]
        if numbers > self._values.shape[1]:
            self._resize(self._values.shape[0], numbers)
        limit = max(_FEWEST_ROWS, self._most // max(1, numbers))
        start = 0
        while start < len(steps):
            if self.count == self._values.shape[0]:
                if self.count >= limit:
                    self._pool(limit)
                else:
                    self._resize(min(limit, max(_FIRST_ROWS, 2 * self.count)), self._values.shape[1])
            more = min(len(steps) - start, self._values.shape[0] - self.count)
            place, taken = slice(self.count, self.count + more), slice(start, start + more)
            self._values[place, :numbers] = rows[taken]
            self._values[place, numbers:] = self._absent
            self._firsts[place] = self._lasts[place] = torch.tensor(steps[taken], dtype=torch.int64, device="cpu")
            self.count += more
            start += more

    def _resize(self, rows: int, numbers: int) -> None:
        values = torch.full((rows, numbers), self._absent, dtype=torch.float32, device="cpu")
        values[: self.count, : self._values.shape[1]] = self.values
        firsts, lasts = (torch.zeros(rows, dtype=torch.int64, device="cpu") for _ in range(2))
        firsts[: self.count], lasts[: self.count] = self.firsts, self.lasts
        self._values, self._firsts, self._lasts = values, firsts, lasts

    def _pool(self, limit: int) -> None:
        """The older half becomes at most a quarter of the table's rows."""
        older = self.count // 2
        steps = int(self._lasts[older - 1] - self._firsts[0]) + 1
        size = 2
        while -(-steps // size) > max(1, limit // 4):
            size *= 2
        groups = (self._firsts[:older] - self._firsts[0]) // size
        _, places, counts = torch.unique_consecutive(groups, return_inverse=True, return_counts=True)
        ends = counts.cumsum(0)
        pooled = ends.numel()
        values = torch.full((pooled, self._values.shape[1]), self._absent, dtype=torch.float32, device="cpu")
        values.scatter_reduce_(0, places[:, None].expand(-1, values.shape[1]), self._values[:older], "amax")
        firsts, lasts = self._firsts[ends - counts], self._lasts[ends - 1]
        kept = self.count - older
        for table, new in ((self._values, values), (self._firsts, firsts), (self._lasts, lasts)):
            table[pooled : pooled + kept] = table[older : self.count].clone()
            table[:pooled] = new
        self.count = pooled + kept


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
