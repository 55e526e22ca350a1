"""Computes the norms of a loop's gradients, weights and updates while it runs, and reads them a step later."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...inspector.graph.graph import module_name
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.optimizer_steps import parameters_of, watching_scales
from ...inspector.torch_private.tensors import LateTensor, local_of
from .findings import Finding
from .follow_loop import BackwardGiven
from .loop_observers import LoopPart
from .module_columns import ModuleColumns
from .norm_rules import NormJudge, OptimizerScalars
from .norms import ABSENT, NO_SCALAR, Norms, NormSums, TakenNorms, TensorNorms, column_norms, plain_elements

if TYPE_CHECKING:
    from .training_result import Training

_OFTEN = 100  # steps between two searches for new parameters
_TOGETHER = 8  # steps that are read together
_MOST_COPIED_BYTES = 2**26  # of parameters copied before an update, unless one module has more
_JUMP = 2.0  # factor between two steps' learning rates from which the update is measured


_Piece = tuple[TensorNorms, set[int] | None]
"""Norms of tensors, and the columns that an optimizer uses of them; None: all."""


@dataclass(slots=True)
class _OptimizerStep:
    """An optimizer's step: the optimizer's place among the loop's, and numbers that may not have been computed yet."""

    place: int
    rate: float | None
    losses: list[LateTensor]
    skipped: bool = False


@dataclass(slots=True)
class _Step:
    """A step with numbers that may not have been computed yet."""

    number: int
    gradients: list[_Piece] = field(default_factory=list)
    weights: list[TensorNorms] = field(default_factory=list)
    updates: list[TensorNorms] = field(default_factory=list)
    optimizers: list[_OptimizerStep] = field(default_factory=list)

    def is_ready(self) -> bool:
        norms = (*(each for each, _ in self.gradients), *self.weights, *self.updates)
        return all(each.is_ready() for each in norms) and all(
            each.is_ready() for one in self.optimizers for each in one.losses
        )


class NormWatch(LoopPart):
    """Computes the norms. Gradients are read when a backward ends, so before clipping. Gradients that no backward has
    computed are read when their optimizer steps.
    """

    def __init__(self) -> None:
        self._sums = NormSums()
        self._columns = ModuleColumns()
        self._optimizers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # their places
        self._titles: list[str] = []
        self._step = _Step(0)
        self._coming: deque[_Step] = deque()
        self._latest: list[TensorNorms] = []
        self._measured: frozenset[int] = frozenset()  # columns whose norms are in `_latest`
        self._losses: list[LateTensor] = []
        self._scale: Tensor | None = None  # of the next backward
        self._rates: dict[int, float] = {}
        self._before: tuple[list[Tensor], list[Tensor], list[int], list[int]] | None = None
        self._is_ordered = False
        self._next_column: dict[int, int] = {}  # by optimizer, the first column still to measure
        self._reported_unread = False
        self._stack = ExitStack()

    def begins(self, training: Training) -> None:
        self._training = training
        self._norms: Norms = training.norms
        self._judge = NormJudge(self._norms, self._columns, training)
        self._stack.enter_context(watching_scales(self._scaled))

    def step_begins(self, number: int) -> None:
        self._step = _Step(number)

    def _scaled(self, outputs: object, scaled: object, scale: Tensor) -> None:
        self._scale = scale

    def backward_begins(self, given: BackwardGiven) -> None:
        self._before = None  # left by a step that raised
        self._training.taken_norms = None
        tensors = [each for each in given[0] if isinstance(each, Tensor)]
        for each in tensors:
            if each.numel() == 1 and each.layout is torch.strided and not each.is_complex():
                value = each.detach().reshape(())
                value = value.clone() if value.dtype is torch.float32 else value.to(torch.float32)  # clone() is faster
                self._losses.append(LateTensor(value if self._scale is None else value / self._scale))
        if not self._is_ordered or self._step.number % _OFTEN == 0:
            self._columns.meet(self._training.watched, self._optimizers)
        if self._step.number < 2 and self._columns.names:
            self._columns.learn_order(tensors)
            self._is_ordered = True

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        scale, self._scale = self._scale, None
        if error is not None:
            self._losses.clear()
            return
        there = [
            (each, gradient, column)
            for known, column in self._columns.known
            if (each := known()) is not None and (gradient := each.grad) is not None
        ]
        numbers, columns = [id(each) for each, _, _ in there], [column for _, _, column in there]
        self._latest = self._sums.take([gradient for _, gradient, _ in there], columns, scale, numbers)
        self._say_unread()
        self._measured = frozenset(columns)
        self._training.taken_norms = TakenNorms(frozenset(numbers), self._latest)

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        rate = _rate(optimizer)
        place = self._place(optimizer)
        last = self._rates.get(place)
        if rate is not None:
            self._rates[place] = rate
        jumped = last is not None and rate is not None and rate > _JUMP * last
        parameters = parameters_of(optimizer)
        self._take_gradients(optimizer, parameters)
        self._step.optimizers.append(_OptimizerStep(place, rate, self._taken_losses()))
        if self._step.number % self._training.every == 0 or jumped:
            self._next_column.setdefault(place, 0)
        if place in self._next_column:
            self._before = self._copied(place, parameters)

    def _copied(
        self, place: int, parameters: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], list[int], list[int]] | None:
        """Copy the next modules, not too much at once; later steps copy the rest."""
        floating = [each for each in parameters if each.is_floating_point() or each.is_complex()]
        columns = self._columns.of(floating)
        nbytes: Counter[int] = Counter()
        for each, column in zip(floating, columns, strict=True):
            nbytes[column] += local_of(each).nbytes
        first = self._next_column.pop(place)
        left = sorted(column for column in nbytes if column >= first)
        chosen: set[int] = set()
        copied = 0
        for column in left:
            copied += nbytes[column]
            if chosen and copied > _MOST_COPIED_BYTES:
                self._next_column[place] = column
                break
            chosen.add(column)
        found = [(each, column) for each, column in zip(floating, columns, strict=True) if column in chosen]
        if not found:
            return None
        copies: list[Tensor] = []
        columns_of_parts: list[int] = []
        numbers: list[int] = []
        for each, column in found:  # a subclass may have neither clone() nor what subtracts lists
            parts, unread = plain_elements(each)
            if unread:
                self._sums.unread[column] = unread
            copies += [part.clone() for part in parts]
            columns_of_parts += [column] * len(parts)
            numbers += [id(each)] * len(parts)
        return [each for each, _ in found], copies, columns_of_parts, numbers

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self._training.taken_updates = []
        if self._before is None:
            return
        (parameters, before, columns, numbers), self._before = self._before, None
        self._step.weights += self._sums.take(before, columns)
        after = [part for each in parameters for part in plain_elements(each).parts]
        if before and [each.shape for each in before] == [each.shape for each in after]:  # a sparse one may store more
            torch._foreach_sub_(before, after)  # in place: no third copy is made
            self._training.taken_updates = self._sums.take(before, columns, keys=numbers)
            self._step.updates += self._training.taken_updates

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        self._take_gradients(optimizer, parameters_of(optimizer))
        skipped = _OptimizerStep(self._place(optimizer), _rate(optimizer), self._taken_losses(), skipped=True)
        self._step.optimizers.append(skipped)

    def step_ends(self, number: int) -> None:
        self._coming.append(self._step)
        if len(self._coming) > (1 if self._training.is_written else _TOGETHER):
            self._read(1)  # not the newest step: its kernels may still run, and reading would wait for them

    def ends(self) -> None:
        self._stack.close()
        self._read(0, wait=True)
        self._judge.end(self._step.number)
        self._norms.name(self._columns.names, self._columns.in_backward_order, self._titles)
        self._before = self._training.taken_norms = None
        self._training.taken_updates = []
        self._latest.clear()

    def _take_gradients(self, optimizer: Optimizer, parameters: list[Tensor]) -> None:
        """Take the norms of the gradients that this optimizer will use."""
        if not self._columns.knows(parameters):
            self._columns.meet(self._training.watched, [optimizer])
        there = [(each, gradient) for each in parameters if (gradient := each.grad) is not None]
        columns = self._columns.of([each for each, _ in there])
        if self._measured.issuperset(columns):
            used = set(columns)
            wanted = used if len(used) < len(self._measured) else None
            self._step.gradients += [(each, wanted) for each in self._latest]
        else:
            scale = getattr(optimizer, "grad_scale", None)
            self._step.gradients += [
                (each, None) for each in self._sums.take([gradient for _, gradient in there], columns, scale)
            ]
            self._say_unread()

    def _say_unread(self) -> None:
        """Report once the gradients that cannot be read and have no norms."""
        unread = self._sums.unread
        if not unread or self._reported_unread:
            return
        self._reported_unread = True
        first = self._columns.names[min(unread)]
        others = f", nor can those of {counted(len(unread) - 1, 'other module')}" if len(unread) > 1 else ""
        sentence = (
            f"The gradient of {module_name(first)} cannot be read "
            f"({'; '.join(dict.fromkeys(unread.values()))}){others}: it has no norm here, and NaN in it is not found."
        )
        self._training.add(Finding("unread", self._step.number, sentence, module=first))

    def _taken_losses(self) -> list[LateTensor]:
        """Return the losses of the backwards since the last optimizer step."""
        taken, self._losses = self._losses, []
        return taken

    def _place(self, optimizer: Optimizer) -> int:
        """Return the optimizer's place among the loop's. An optimizer takes the place of a freed one of its class."""
        place = self._optimizers.get(optimizer)
        if place is None:
            title, taken = type(optimizer).__name__, set(self._optimizers.values())
            free = (at for at, known in enumerate(self._titles) if known == title and at not in taken)
            place = next(free, len(self._titles))
            if place == len(self._titles):
                self._titles.append(title)
            self._optimizers[optimizer] = place
        return place

    def _read(self, but: int, wait: bool = False) -> None:
        """Store the steps whose numbers have been computed, except the last `but` steps."""
        come: list[_Step] = []
        while len(self._coming) > but and (wait or self._coming[0].is_ready()):
            come.append(self._coming.popleft())
        if not come:
            return
        rows = self._rows([each.gradients for each in come])
        told = [[_scalars(one) for one in each.optimizers] for each in come]
        flat = [[NO_SCALAR] * (3 * len(self._titles)) for _ in come]
        for row, known in zip(flat, told, strict=True):
            for place, *numbers in known:
                row[3 * place : 3 * place + 3] = numbers
        self._norms.name(self._columns.names, self._columns.in_backward_order, self._titles)
        self._norms.add(
            [each.number for each in come],
            rows,
            torch.tensor(flat, dtype=torch.float32, device="cpu").reshape(len(come), -1),
        )
        for each in come:
            if each.weights:
                sample = self._rows([[(one, None) for one in of] for of in (each.weights, each.updates)])
                self._norms.add_sample(each.number, *sample)
        self._judge.look([each.number for each in come], rows, told)

    def _rows(self, steps: Sequence[list[_Piece]]) -> Tensor:
        """Return the norm of each column in each step; nearly always all steps have the same tensors."""
        pieces = [step[0][0] for step in steps if len(step) == 1 and step[0][1] is None]
        if len(pieces) == len(steps) and all(each.columns == pieces[0].columns for each in pieces):
            numbers, norms = column_norms(pieces)
            if len(numbers) == len(self._columns.names):
                return norms
        return torch.stack([self._row(step) for step in steps])

    def _row(self, pieces: list[_Piece]) -> Tensor:
        row = torch.full((len(self._columns.names),), ABSENT, dtype=torch.float32, device="cpu")
        for each, wanted in pieces:
            columns, norms = column_norms([each])
            if wanted is None:
                row[columns] = norms[0]
            else:
                kept = torch.tensor([each in wanted for each in columns.tolist()], dtype=torch.bool, device="cpu")
                row[columns[kept]] = norms[0][kept]
        return row


def _rate(optimizer: Optimizer) -> float | None:
    """Return the largest learning rate of its groups, ignoring those stored as tensors on an accelerator."""
    rates = map(rate_of, optimizer.param_groups)
    return max((each for each in rates if each is not None), default=None)


def rate_of(group: dict[str, Any]) -> float | None:
    """Return a group's learning rate, unless it would have to be fetched from a device."""
    rate = group.get("lr")
    if isinstance(rate, Tensor):
        return float(rate) if rate.device.type == "cpu" else None
    return float(rate) if isinstance(rate, int | float) else None


def _scalars(step: _OptimizerStep) -> OptimizerScalars:
    losses = [float(each.read()) for each in step.losses]
    loss = sum(losses) if losses else NO_SCALAR
    return OptimizerScalars(step.place, loss, NO_SCALAR if step.rate is None else step.rate, float(step.skipped))
