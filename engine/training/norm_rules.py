"""Rules on norms, losses and learning rates: NaN, exploding and vanishing gradients, and jumps of a learning rate.

A step is compared with the usual values before it. Healthy loops have outliers, warm up, restart schedules and
converge. A finding therefore requires values far beyond these that last, and for a learning rate, a loss that rises.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from ...inspector.graph.graph import module_name
from ...inspector.text.sizes_and_counts import counted
from .findings import Finding
from .module_columns import ModuleColumns
from .norms import ABSENT, NO_SCALAR, Norms, norm_of
from .training_result import Training

_USUAL = 50  # recent steps that define the usual values
_FEWEST = 20  # steps without which there are no usual values
_EVERY = 10  # steps between two checks of modules' norms
_EXPLODES = 100.0  # times the usual norm, in two steps in a row
_ABOVE_ALL = 10.0  # times the largest earlier norm; a converged loop returns to at most such norms
_LASTS = 20  # steps for which a module's share must stay low
_VANISHES = 1e-4  # times its usual share of the whole norm
_JUMPS = 3.0  # times the largest earlier rate
_AFTER = 5  # steps after a jump in which the loss may rise
_SPIKES = 1e3  # times the usual norm, in one step
_RECOVERS = 20  # steps within which the loss usually recovers from a spike


class OptimizerScalars(NamedTuple):
    """An optimizer's step: the optimizer's place among the loop's, the loss and the largest learning rate (`NO_SCALAR`
    if unknown), and whether a gradient scaler skipped it.
    """

    place: int
    loss: float
    rate: float
    skipped: float


@dataclass(slots=True)
class _Jump:
    """An increase of a learning rate, with the values before it."""

    place: int
    step: int
    before: float
    rate: float
    losses: list[float]
    after: int = 0


@dataclass(slots=True)
class _Spike:
    """A single step with a huge norm, with the losses before it by optimizer, and those of the last steps."""

    step: int
    norm: float
    usual: float
    before: dict[int, list[float]]
    after: dict[int, deque[float]] = field(default_factory=dict)
    steps: int = 0


class NormJudge:
    """Checks each step when its numbers arrive."""

    def __init__(self, norms: Norms, columns: ModuleColumns, training: Training) -> None:
        self._norms = norms
        self._columns = columns
        self._add = training.add
        self._advice = (
            "" if training.black_box else "; ts.training(black_box=...) or tapescope run --black-box keeps such a step"
        )
        self._totals: deque[tuple[int, float]] = deque(maxlen=_USUAL + _EVERY)
        self._largest = 0.0  # the largest norm at the last check, without its `_EVERY` newest
        self._losses: dict[int, deque[float]] = {}
        self._rates: dict[int, tuple[float, int]] = {}  # largest rate and number of steps, by optimizer
        self._jumps: list[_Jump] = []
        self._spike: _Spike | None = None
        self._vanished: set[int] = set()
        self._seen = 0
        self._bad: Finding | None = None

    def look(self, steps: Sequence[int], rows: Tensor, scalars: Sequence[Sequence[OptimizerScalars]]) -> None:
        """Check more steps: their numbers, the norm of each column, and the scalars of each optimizer."""
        finite = rows.isfinite().all(1).tolist()
        totals = rows.clamp(min=0).double().square().sum(1).sqrt().tolist()
        for place, step in enumerate(steps):
            self._look_at(step, rows[place], scalars[place], totals[place] if finite[place] else None)
        self._seen += len(steps)
        if self._seen >= _EVERY:
            self._seen = 0
            self._look_for_explosion()
            self._look_for_vanishing(steps[-1])

    def _look_at(self, step: int, row: Tensor, scalars: Sequence[OptimizerScalars], total: float | None) -> None:
        skipped = any(each.skipped for each in scalars)
        # A scaled loss may be infinite although the loss is finite, but it is NaN only if the loss is.
        lost = any(math.isnan(each.loss) or (math.isinf(each.loss) and not skipped) for each in scalars)
        if total is not None:
            self._bad = None
            self._totals.append((step, total))
        elif lost or not skipped:  # otherwise the scaler handles it by a lower scale
            self._say_non_finite(step, row, lost)
        for jump in tuple(self._jumps):
            self._follow(jump, scalars)
        self._look_for_spike(step, total, scalars)
        for place, loss, rate, _ in scalars:
            self._look_for_jump(step, place, rate)
            if loss != NO_SCALAR:
                self._losses.setdefault(place, deque(maxlen=2 * _AFTER)).append(loss)

    def _say_non_finite(self, step: int, row: Tensor, lost: bool) -> None:
        if self._bad is not None:
            self._add(Finding("non-finite", step, self._bad.sentence, module=self._bad.module, last_step=step))
            return
        order = [each for each in self._columns.in_backward_order if each < row.numel()]
        bad = [each for each in order if not math.isfinite(float(row[each]))]
        first = self._columns.names[bad[0]]
        kind = "NaN" if any(math.isnan(float(row[each])) for each in bad) else "infinite"
        there = [each for each in order if float(row[each]) != ABSENT]
        if len(bad) == len(there):
            spread = f"so are the gradients of all {counted(len(there), 'module')}" if len(bad) > 1 else "the only one"
            begins = "the loss is not finite either: it begins in the forward" if lost else "the loss was finite"
        else:
            more = len(bad) - 1
            spread = f"so are those of {counted(more, 'module')} after it" if more else "no other gradient is"
            begins = f"those of {counted(len(there) - len(bad), 'module')} are finite"
        watch = "nan" if kind == "NaN" else "inf"
        self._bad = Finding(
            "non-finite",
            step,
            f"The gradient of {module_name(first)} is {kind} in step {step}, the first in the backward; {spread}, and "
            f"{begins}. ts.find_nan(make_loss) or tapescope debug --watch {watch} names the operation{self._advice}.",
            module=first,
        )
        self._add(self._bad)

    def _look_for_explosion(self) -> None:
        before = [total for _, total in list(self._totals)[:-_EVERY]]
        recent = list(self._totals)[-_EVERY:]
        self._largest = max([self._largest, *before])
        if len(before) < _FEWEST:
            return
        usual = median(before)
        limit = max(_EXPLODES * usual, _ABOVE_ALL * self._largest)
        for (step, total), (_, following) in pairwise(recent):
            if usual > 0 and total > limit and following > limit:
                module, times = self._grown_most(step)
                sentence = (
                    f"The norm of all gradients exploded: {_number(total)}, {_times(total / usual)} its usual "
                    f"{_number(usual)}, and it stayed there in the next step; most of all in {module}, "
                    f"{_times(times)} its usual. Clip it (torch.nn.utils.clip_grad_norm_), or check the learning rate "
                    "and the batches just before."
                )
                self._add(Finding("norm", step, sentence, module=module))
                return

    def _grown_most(self, step: int) -> tuple[str, float]:
        values, firsts = self._norms.by_column, self._norms.steps[:, 0]
        place = int((firsts == step).nonzero()[0])
        usual = values[max(0, place - _USUAL) : place].median(0).values
        quotient = torch.where((usual > 0) & (values[place] > 0), values[place] / usual, 0.0)
        column = int(quotient.argmax())
        return self._columns.names[column], float(quotient[column])

    def _look_for_vanishing(self, step: int) -> None:
        values = self._norms.by_column[-(_USUAL + _LASTS) :]
        if values.shape[0] < _FEWEST + _LASTS:
            return
        last_row = values[-1]
        if not bool(((last_row >= 0) & (last_row < _VANISHES * norm_of(last_row[None]))).any()):
            self._vanished = set()  # a usual share is at most 1, so nearly always this one row decides
            return
        whole = values.clamp(min=0).square().sum(1, keepdim=True).sqrt()
        share = torch.where((values >= 0) & (whole > 0), values / whole, torch.nan)
        usual = share[:-_LASTS].nanmedian(0).values
        known = (~share[:-_LASTS].isnan()).sum(0) >= _FEWEST
        gone = known & (usual > 0) & (share[-_LASTS:] < _VANISHES * usual).all(0)
        new = [int(each) for each in gone.nonzero().flatten() if int(each) not in self._vanished]
        self._vanished = {int(each) for each in gone.nonzero().flatten()}
        if not new:
            return
        order = self._columns.in_backward_order
        first = min(new, key=order.index)
        name = self._columns.names[first]
        last = float(values[-1, first])
        more = f", and so did {counted(len(new) - 1, 'module')} more" if len(new) > 1 else ""
        sentence = (
            f"The gradient of {module_name(name)} vanished{more}: its norm is {_number(last)}, of all gradients' norm "
            f"less than a ten-thousandth of its usual share, for {_LASTS} steps in a row. If a ReLU or a mask "
            "outputs only zeros there, the module no longer learns; ts.find_unused(make_loss, model) names the task."
        )
        self._add(Finding("norm", step - _LASTS + 1, sentence, module=name, last_step=step))

    def _look_for_jump(self, step: int, place: int, rate: float) -> None:
        if rate == NO_SCALAR:
            return
        largest, steps = self._rates.get(place, (0.0, 0))
        if steps >= 2 * _AFTER and largest > 0 and rate >= _JUMPS * largest:
            before = [*self._losses.get(place, ())]
            self._jumps.append(_Jump(place, step, largest, rate, before))
        self._rates[place] = max(largest, rate), steps + 1

    def _follow(self, jump: _Jump, scalars: Sequence[OptimizerScalars]) -> None:
        """Report a jump if the loss rises within the steps after it."""
        if not any(each.place == jump.place for each in scalars):
            return
        jump.after += 1
        if jump.after < _AFTER:
            return
        self._jumps.remove(jump)
        after = [*self._losses.get(jump.place, ())][-_AFTER:]
        if not after or not jump.losses or not _has_risen(jump.losses, after):
            return
        worst = max(after) if all(map(math.isfinite, after)) else math.nan
        sentence = (
            f"The learning rate went up {_times(jump.rate / jump.before)}, from {_number(jump.before)} to "
            f"{_number(jump.rate)}, and the loss rose from {_number(median(jump.losses))} to {_number(worst)}"
            f"{self._updates_after(jump)}. If a schedule did that, add a warm-up; otherwise "
            "check the code that sets the rate."
        )
        of = f"{self._norms.optimizers[jump.place]}.param_groups[0]['lr']"
        self._add(Finding("learning rate", jump.step, sentence, tensor=of))

    def _look_for_spike(self, step: int, total: float | None, scalars: Sequence[OptimizerScalars]) -> None:
        """Look for a single step with a huge norm after which the loss does not recover."""
        spike = self._spike
        if spike is None:
            if total is None or len(self._totals) < 2 or total <= _ABOVE_ALL * self._totals[-2][1]:
                return
            earlier = [each for _, each in list(self._totals)[:-1]]
            usual = median(earlier) if len(earlier) >= _FEWEST else 0.0
            largest = max([self._largest, *earlier])
            if usual > 0 and total > max(_SPIKES * usual, _ABOVE_ALL * largest):
                before = {place: list(losses) for place, losses in self._losses.items()}
                self._spike = _Spike(step, total, usual, before)
            return
        spike.steps += 1
        for place, loss, _, skipped in scalars:
            if loss != NO_SCALAR and not skipped:
                spike.after.setdefault(place, deque(maxlen=_AFTER)).append(loss)
        if spike.steps >= _RECOVERS:
            self._say_if_lost(spike, step)

    def end(self, step: int) -> None:
        """Report a huge norm shortly before the end of the loop, if the loss has not recovered."""
        if self._spike is not None and self._spike.steps >= 2 * _AFTER:
            self._say_if_lost(self._spike, step)

    def _say_if_lost(self, spike: _Spike, step: int) -> None:
        self._spike = None
        for place, losses in spike.after.items():
            known = spike.before.get(place, [])
            if len(losses) == _AFTER and known and _has_risen(known, losses):
                worst = median(losses) if all(map(math.isfinite, losses)) else math.nan
                sentence = (
                    f"The norm of all gradients was {_number(spike.norm)} in step {spike.step}, "
                    f"{_times(spike.norm / spike.usual)} its usual {_number(spike.usual)}, and {spike.steps} steps "
                    f"later the loss has not recovered: it is {_number(worst)} instead of {_number(median(known))}. "
                    "Clip such a step (torch.nn.utils.clip_grad_norm_), and look at its batch"
                    f"{self._advice.replace('such a step', 'it')}."
                )
                self._add(Finding("norm", spike.step, sentence, last_step=step))
                return

    def _updates_after(self, jump: _Jump) -> str:
        """Return the effect of the jump on updates, if they were sampled before and during it."""
        found = self._norms.ratios_by_column
        firsts = self._norms.sampled_steps[:, 0]
        at = (firsts == jump.step).nonzero().flatten()
        if not at.numel() or int(at[0]) == 0:
            return ""
        place = int(at[0])
        earlier = found[max(0, place - _EVERY) : place]  # a row of a large model covers only some modules
        now, before = found[place], torch.where(earlier > 0, earlier, math.nan).nanmedian(0).values
        there = (now > 0) & (before > 0)
        if not bool(there.any()):
            return ""
        times = now[there] / before[there]
        many = int((times >= 2).sum())
        modules = counted(many, "module") if many < times.numel() else f"all {counted(many, 'module')}"
        return f"; updates were {_times(float(times.median()))} their usual in {modules}" if many else ""


def _has_risen(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether the losses changed by more than their usual variation."""
    if not all(math.isfinite(each) for each in before):
        return False
    if not all(math.isfinite(each) for each in after):
        return True
    spread = max(before) - min(before)
    return median(after) > max(median(before) + 0.3 * abs(median(before)), max(before) + spread)


def _number(value: float) -> str:
    return f"{value:.3g}"


def _times(value: float) -> str:
    return f"{value:,.0f} times" if value >= 9.5 else f"{value:.1f} times"
