"""Norms of a loop's gradients, weights and updates by module, recorded over all steps in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.tensors import Elements, LateTensor, computable, elements_of
from ..recording.pandas_tables import pandas_itself

_NARROW = (torch.float16, torch.bfloat16)
_USUAL = frozenset((Tensor, Parameter))


class TensorNorms:
    """The norm of each tensor on one device.

    On the CPU the norms are Python numbers at once, because reading one takes a sixth of copying it to a table. On an
    accelerator they are read later. `column_norms` sums those of several steps together.

    Args:
        norms: the norms, one list for each dtype.
        scale: the factor by which the tensors were multiplied.

    Attributes:
        keys: the keys of the tensors: their indices in the list that was passed, or the ids of their parameters.
        columns: the column of each tensor.
    """

    __slots__ = ("_late", "_norms", "_scale", "columns", "keys")

    def __init__(
        self, norms: Sequence[Sequence[Tensor]], columns: Sequence[int], keys: Sequence[int], scale: Tensor | None
    ) -> None:
        self.keys = keys
        self.columns = columns
        # A copy, because the scaler changes it in place.
        self._scale = None if scale is None else LateTensor(scale.detach().clone())
        self._late: LateTensor | None = None
        self._norms: list[float] = []
        if norms[0][0].device.type == "cpu":
            self._norms = [each.item() for alike in norms for each in alike]
        else:
            self._late = LateTensor(torch.cat([torch.stack(tuple(alike)) for alike in norms]))

    @property
    def is_pending(self) -> bool:
        """True if reading the norms may wait for an accelerator."""
        return self._late is not None

    def is_ready(self) -> bool:
        late = (self._late, self._scale)
        return all(each is None or each.is_ready() for each in late)

    @property
    def norms(self) -> list[float]:
        """One norm per tensor, still multiplied by the scale. 0 can be an underflow."""
        if self._late is not None:
            self._norms, self._late = self._late.read().tolist(), None
        return self._norms

    @property
    def scale(self) -> float:
        """The factor by which the tensors were multiplied."""
        return 1.0 if self._scale is None else float(self._scale.read())


def squares_by_tensor(found: Iterable[TensorNorms]) -> dict[int, float]:
    """Return the squared norm of each tensor. A tensor stored in several parts gets the sum."""
    by_tensor: dict[int, float] = {}
    for each in found:
        for key, norm in zip(each.keys, each.norms, strict=True):
            by_tensor[key] = by_tensor.get(key, 0.0) + norm * norm
    return by_tensor


class TakenNorms(NamedTuple):
    """The norms of the gradients after a backward.

    Attributes:
        parameters: the ids of their parameters.
        norms: the norms, with the ids of the parameters as keys.
    """

    parameters: frozenset[int]
    norms: list[TensorNorms]


def column_norms(steps: Sequence[TensorNorms]) -> tuple[Tensor, Tensor]:
    """Return the norm of all tensors of a column together, for several steps whose tensors have the same columns.

    Returns:
        The numbers of the columns, ascending, and the norms, float32 of shape (steps, columns), both on the CPU.
    """
    numbers, index = torch.unique(torch.tensor(steps[0].columns, dtype=torch.int64, device="cpu"), return_inverse=True)
    places = (torch.arange(len(steps), device="cpu")[:, None] * numbers.numel() + index).flatten()
    squares = torch.tensor([each.norms for each in steps], dtype=torch.float64, device="cpu").square_()
    sums = torch.zeros(len(steps) * numbers.numel(), dtype=torch.float64, device="cpu")
    sums = sums.index_add_(0, places, squares.flatten()).sqrt_().reshape(len(steps), -1)
    scales = [each.scale for each in steps]
    if any(each != 1 for each in scales):
        sums /= torch.tensor(scales, dtype=torch.float64, device="cpu")[:, None]
    return numbers, sums.float()


class NormSums:
    """Computes the norms of tensors.

    Attributes:
        unread: for each column with a tensor that could not be read, the reason.
    """

    def __init__(self) -> None:
        self.unread: dict[int, str] = {}

    def take(
        self,
        tensors: Sequence[Tensor],
        columns: Sequence[int],
        scale: Tensor | None = None,
        keys: Sequence[int] | None = None,
    ) -> list[TensorNorms]:
        """Compute the norm of each tensor, grouped by device. A sharded tensor counts with this rank's shard only.

        Args:
            tensors: gradients or parameters, of any device, dtype and layout.
            columns: the column of each tensor.
            scale: the factor by which the tensors were multiplied.
            keys: the key of each tensor; None: its index.
        """
        keys = range(len(tensors)) if keys is None else keys
        if _are_alike(tensors):
            return [TensorNorms([_norms_of(tensors, torch.float32)], columns, keys, scale)]
        groups: dict[tuple[int, torch.dtype], tuple[list[Tensor], list[int], list[int]]] = {}  # by device and dtype
        for key, tensor, column in zip(keys, tensors, columns, strict=True):
            parts, unread = Elements((tensor,)) if _are_alike((tensor,)) else plain_elements(tensor)
            if unread:
                self.unread[column] = unread
            for plain in parts:
                group = groups.setdefault((plain.get_device(), plain.dtype), ([], [], []))
                group[0].append(plain)
                group[1].append(column)
                group[2].append(key)
        by_device: dict[int, tuple[list[Sequence[Tensor]], list[int], list[int]]] = {}
        for (device, dtype), (found, places, numbers) in groups.items():
            norms, columns_there, keys_there = by_device.setdefault(device, ([], [], []))
            norms.append(_norms_of(found, dtype))
            columns_there += places
            keys_there += numbers
        return [TensorNorms(norms, places, numbers, scale) for norms, places, numbers in by_device.values()]


_KIND = attrgetter("dtype", "layout", "device")


def _are_alike(tensors: Sequence[Tensor]) -> bool:
    """Return whether all are plain float32 tensors on one device, which takes a fraction of sorting them one by one."""
    if not _USUAL.issuperset(map(type, tensors)):
        return False
    kinds = set(map(_KIND, tensors))
    return len(kinds) == 1 and all(
        (dtype, layout) == (torch.float32, torch.strided) and device.type != "meta" for dtype, layout, device in kinds
    )


def _norms_of(tensors: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Return one norm per tensor, in a dtype wide enough to hold it."""
    return torch._foreach_norm([*tensors], 2, torch.float32 if dtype in _NARROW else None)


def plain_elements(tensor: Tensor) -> Elements:
    """Return tensors with the floating-point or complex elements, and the reason if they cannot be read."""
    tensor = tensor.detach()
    if _are_alike((tensor,)) and tensor.numel():
        return Elements((tensor,))
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
    parts, unread = elements_of(tensor)
    found = (each for each in map(computable, parts) if each.is_floating_point() or each.is_complex())
    return Elements(tuple(each for each in found if each.numel()), unread)


ABSENT = -1.0
"""The value for a step without a number. A norm is never negative, and NaN and Inf are ordinary values."""

_FIRST_ROWS = 16
_FEWEST_ROWS = 64


class StepTable:
    """A table with one row of numbers per step, in bounded memory.

    When the table is full, the older half of its rows is pooled by two, four, eight, ... steps until a quarter of the
    table is free. The newer half keeps single steps, and at least an eighth of the rows covers all earlier
    steps evenly. A pooled row holds the largest of each number, or NaN if one was NaN.

    Args:
        most: the most numbers that it may hold.
        absent: the value for a missing number.
        dtype: the dtype of the numbers.

    Attributes:
        count: the number of rows.
    """

    def __init__(self, most: int, absent: float = ABSENT, dtype: torch.dtype = torch.float32) -> None:
        self._most = most
        self._dtype = dtype
        self._absent = absent
        self.count = 0
        self._values = torch.empty(0, 0, dtype=dtype, device="cpu")
        self._firsts = torch.empty(0, dtype=torch.int64, device="cpu")
        self._lasts = torch.empty(0, dtype=torch.int64, device="cpu")

    @property
    def values(self) -> Tensor:
        """The numbers, of shape (rows, numbers)."""
        return self._values[: self.count]

    @property
    def firsts(self) -> Tensor:
        """The first step of each row."""
        return self._firsts[: self.count]

    @property
    def lasts(self) -> Tensor:
        """The last step of each row."""
        return self._lasts[: self.count]

    def add(self, steps: Sequence[int], rows: Tensor) -> None:
        """Add rows of later steps. If they have more numbers than earlier rows, the earlier rows get `absent` there."""
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
            if numbers < self._values.shape[1]:
                self._values[place, numbers:] = self._absent
            self._firsts[place] = self._lasts[place] = torch.tensor(steps[taken], dtype=torch.int64, device="cpu")
            self.count += more
            start += more

    def _resize(self, rows: int, numbers: int) -> None:
        values = torch.full((rows, numbers), self._absent, dtype=self._dtype, device="cpu")
        values[: self.count, : self._values.shape[1]] = self.values
        firsts, lasts = (torch.zeros(rows, dtype=torch.int64, device="cpu") for _ in range(2))
        firsts[: self.count], lasts[: self.count] = self.firsts, self.lasts
        self._values, self._firsts, self._lasts = values, firsts, lasts

    def _pool(self, limit: int) -> None:
        """Pool the older half until it takes at most a quarter of the table's rows."""
        older = self.count // 2
        steps = int(self._lasts[older - 1] - self._firsts[0]) + 1
        size = 2
        while -(-steps // size) > max(1, limit // 4):
            size *= 2
        groups = (self._firsts[:older] - self._firsts[0]) // size
        _, places, counts = torch.unique_consecutive(groups, return_inverse=True, return_counts=True)
        ends = counts.cumsum(0)
        pooled = ends.numel()
        values = torch.full((pooled, self._values.shape[1]), self._absent, dtype=self._dtype, device="cpu")
        values.scatter_reduce_(0, places[:, None].expand(-1, values.shape[1]), self._values[:older], "amax")
        firsts, lasts = self._firsts[ends - counts], self._lasts[ends - 1]
        kept = self.count - older
        for table, new in ((self._values, values), (self._firsts, firsts), (self._lasts, lasts)):
            table[pooled : pooled + kept] = table[older : self.count].clone()
            table[:pooled] = new
        self.count = pooled + kept


NO_SCALAR = torch.finfo(torch.float32).min
"""The value for a step without a loss or a learning rate."""

_MOST_NUMBERS = 4_000_000
"""The most norms of gradients, 16 MB. Weights and updates together have the same limit."""


class Norms:
    """The norms of each module over the steps, in bounded memory; older steps are stored more coarsely.

    The gradient of a step is the sum over all its backwards, before clipping and divided by the gradient scaler's
    factor. Weights are measured before the update. Weights and updates are sampled every `every`th step. NaN and Inf
    are recorded unchanged; -1 means that there was no gradient.

    Known limitations: each rank sees only its own shard of a sharded parameter. Changes that the loop makes to
    gradients between backward and step are not included.

    Attributes:
        modules: the modules' paths, in the order in which the backward completes their gradients.
    """

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._order: list[int] = []
        self.optimizers: list[str] = []
        self._gradients = StepTable(_MOST_NUMBERS)
        self._sampled = StepTable(_MOST_NUMBERS)  # weights, then updates
        self._scalars = StepTable(_MOST_NUMBERS, NO_SCALAR)

    def add(self, steps: Sequence[int], gradients: Tensor, scalars: Tensor) -> None:
        """Add steps. `scalars` has three numbers per optimizer: loss, largest learning rate, and whether its step was
        skipped."""
        self._gradients.add(steps, gradients)
        self._scalars.add(steps, scalars)

    def add_sample(self, step: int, weights: Tensor, updates: Tensor) -> None:
        """Add the sampled norms of a step, for all columns."""
        self._sampled.add([step], torch.stack((weights, updates), 1).reshape(1, -1))

    def name(self, columns: list[str], order: list[int], optimizers: list[str]) -> None:
        """Set the columns' modules, their display order and the optimizers."""
        self._columns, self._order, self.optimizers = list(columns), list(order), list(optimizers)

    @property
    def modules(self) -> list[str]:
        return [self._columns[each] for each in self._order]

    @property
    def steps(self) -> Tensor:
        """The first and the last step of each row, int64 of shape (rows, 2)."""
        return torch.stack((self._gradients.firsts, self._gradients.lasts), 1)

    @property
    def gradients(self) -> Tensor:
        """The norm of each module's gradient, float32 of shape (rows, modules); the largest of a pooled row."""
        return self._ordered(self._gradients.values, self._order)

    @property
    def whole(self) -> Tensor:
        """The norm of all gradients together, float32 of shape (rows,); NaN if there was none."""
        norms = norm_of(self._gradients.values)
        return torch.where(norms == ABSENT, torch.nan, norms)

    @property
    def columns(self) -> list[str]:
        """The modules in the order of their columns."""
        return self._columns

    @property
    def lasts(self) -> Tensor:
        """The last step of each row, int64 of shape (rows,)."""
        return self._gradients.lasts

    def place_of(self, step: int) -> int:
        """Return the first row that starts with this step or a later one."""
        return int(torch.searchsorted(self._gradients.firsts, step))

    @property
    def scalars_by_step(self) -> Tensor:
        """The scalars of each optimizer, see `scalar`, float32 of shape (rows, 3 * optimizers)."""
        return self._scalars.values

    def samples_since(self, step: int) -> tuple[list[int], Tensor, Tensor]:
        """Return the samples from this step on: their last steps, and weights and updates by column."""
        place = int(torch.searchsorted(self._sampled.firsts, step))
        values = self._sampled.values[place:]
        return self._sampled.lasts[place:].tolist(), values[:, ::2], values[:, 1::2]

    @property
    def by_column(self) -> Tensor:
        """The gradients' norms in the order of the columns."""
        return self._gradients.values

    @property
    def ratios_by_column(self) -> Tensor:
        """The ratios in the order of the columns."""
        return ratio_of(self._sampled.values[:, ::2], self._sampled.values[:, 1::2])

    @property
    def sampled_steps(self) -> Tensor:
        """The first and the last step of each sample, int64 of shape (samples, 2)."""
        return torch.stack((self._sampled.firsts, self._sampled.lasts), 1)

    @property
    def weights(self) -> Tensor:
        """The norm of each module's parameters before the update, float32 of shape (samples, modules)."""
        return self._ordered(self._sampled.values, [2 * each for each in self._order])

    @property
    def updates(self) -> Tensor:
        """The norm of the optimizer's change of the parameters, float32 of shape (samples, modules)."""
        return self._ordered(self._sampled.values, [2 * each + 1 for each in self._order])

    @property
    def ratios(self) -> Tensor:
        """The norm of the update divided by that of the weight; -1 if there was no update or the weight was 0."""
        return ratio_of(self.weights, self.updates)

    @property
    def losses(self) -> Tensor:
        """The loss behind each optimizer's step, float32 of shape (rows, optimizers); NaN if there was none."""
        return self._known(self.scalar(0))

    @property
    def learning_rates(self) -> Tensor:
        """The largest learning rate of each optimizer, float32 of shape (rows, optimizers); NaN without a step."""
        return self._known(self.scalar(1))

    @property
    def skipped(self) -> Tensor:
        """For each row, whether a gradient scaler skipped a step, bool of shape (rows,)."""
        return (self.scalar(2) > 0).any(1)

    @staticmethod
    def _known(values: Tensor) -> Tensor:
        return torch.where(values == NO_SCALAR, torch.nan, values)

    def scalar(self, which: int) -> Tensor:
        """Return losses (0), learning rates (1) or skipped steps (2), float32 of shape (rows, optimizers).

        A missing value is `NO_SCALAR`.
        """
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
        """Return a DataFrame with one row per module and row of steps.

        The columns are step, last_step, module and gradient_norm, and weight_norm, update_norm and update_ratio for
        sampled steps.

        Raises:
            ModuleNotFoundError: if pandas is not installed.
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
    """Return the total norm of each row, float32 of shape (rows,); -1 for a row without norms."""
    there = norms != ABSENT
    whole = torch.where(there, norms.double(), 0).square().sum(1).sqrt()
    return torch.where(there.any(1), whole, ABSENT).float()


def ratio_of(weights: Tensor, updates: Tensor) -> Tensor:
    """Return the updates' norms divided by the weights' norms; -1 if either is missing or the weight is 0."""
    there = (weights != ABSENT) & (updates != ABSENT) & (weights != 0)
    return torch.where(there, updates / weights, ABSENT)
