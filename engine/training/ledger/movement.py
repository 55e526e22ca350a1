"""Finds parameters that an optimizer's steps do not change although they have a gradient and a learning rate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from ....inspector.graph.phrases import joined
from ....inspector.graph.source_lines import Place, users_place
from ....inspector.text.sizes_and_counts import dtype_name
from ....inspector.torch_private.optimizer_steps import parameters_of
from ....inspector.torch_private.tensors import LateTensor, computes_itself
from ..findings import Finding
from ..follow_loop import BackwardGiven
from ..loop_observers import LoopPart
from ..norm_watch import rate_of
from ..norms import TensorNorms, squares_by_tensor
from ..pending_graphs import at
from ..training_result import Training

_ALL = 1  # the step in which all parameters are compared; later, only those whose update has the norm 0
_SURE = 3  # consecutive comparisons without a change after which a parameter is reported
_SURE_OF_CLEARED = 5  # the same if its gradient was zero at the step; `Clearing` reports a call that cleared it earlier
# The least share of all steps so far that the comparisons span: a schedule that ends at 0 stops updates at the end.
_SHARE = 0.05
_ELEMENTS, _FEWEST = 64, 16  # elements of a sample; the fewest of a parameter, since smaller ones may be clamped
_MOST_WAIT = 100  # the most steps until a parameter that is unchanged, but not reported, is compared again
_MOST_COPIED_BYTES = 2**26
_NOISE = 10.0  # times eps and the largest gradient: smaller ones may be rounding noise, as of a bias before a norm
_LEAST = 1e-3  # times the largest gradient: a smaller one has vanished, which `NormJudge` reports
_FALLEN = 1e-3  # times the largest norm of all gradients: below it, the loop has converged
_TINY = 1e-6  # times the largest learning rate so far: a rate up to this is reported as the cause


class _Compared(NamedTuple):
    """A parameter that was compared before and after a step.

    Attributes:
        facts: four numbers, which may not have been computed yet: whether it changed, whether its gradient at the step
            was not zero, and the root mean squares of gradient and values.
    """

    parameter: ReferenceType[Tensor]
    rate: float
    facts: LateTensor


@dataclass(slots=True)
class _Comparison:
    step: int
    optimizer: ReferenceType[Optimizer]
    place: Place | None
    compared: list[_Compared]
    norms: list[TensorNorms]  # of all gradients when the backward ended

    def is_ready(self) -> bool:
        return all(each.facts.is_ready() for each in self.compared) and all(each.is_ready() for each in self.norms)


@dataclass(slots=True)
class _Suspect:
    """A parameter that did not change in a step.

    Attributes:
        first: the first of the consecutive steps in which it did not change.
        count: the number of comparisons that found it unchanged.
        rate: the learning rate in the last of these steps.
        is_cleared: whether its gradient was zero at all of these steps although it was not when the backward ended.
        gradient, value: the root mean squares of its gradient and its elements.
        optimizer, place: the class of its optimizer, and the line that called its step.
        next_look: the step in which it is compared again.
    """

    parameter: ReferenceType[Tensor]
    first: int
    rate: float
    count: int = 0
    is_cleared: bool = False
    gradient: float = 0.0
    value: float = 0.0
    optimizer: str = ""
    place: Place | None = None
    next_look: int = 0


@dataclass(slots=True)
class _Copies:
    parameters: list[tuple[Tensor, float]] = field(default_factory=list)
    before: list[Tensor] = field(default_factory=list)


@dataclass(slots=True)
class _Sample:
    """A few elements of a parameter before a step.

    Attributes:
        first: the first of the consecutive steps after which they were restored.
        count: the number of these steps.
        changed: whether the step changed them.
        is_back: whether they have the earlier values again before the next step.
    """

    parameter: ReferenceType[Tensor]
    before: Tensor
    first: int
    count: int = 0
    changed: LateTensor | None = None
    is_back: LateTensor | None = None


class Movement(LoopPart):
    """Compares parameters before and after a step.

    `NormWatch` computes the norms of updates in some steps. A parameter whose update has the norm 0 there is copied and
    compared bit by bit in the following steps. In step 1 all parameters are compared, up to 64 MiB. A few elements of
    each are also compared with those before the next step, because code after the step may restore them. A learning
    rate of 0, or one that still rises, is intended.
    """

    def __init__(self) -> None:
        self._number = 0
        self._suspects: dict[int, _Suspect] = {}
        self._reported: set[int] = set()
        self._pending: deque[_Comparison] = deque()
        self._updates: deque[tuple[int, dict[int, tuple[ReferenceType[Tensor], float]], TensorNorms]] = deque()
        self._copies: _Copies | None = None
        self._norms: list[TensorNorms] = []
        self._samples: dict[int, _Sample] = {}
        self._largest_rates: WeakKeyDictionary[Optimizer, float] = WeakKeyDictionary()

    def begins(self, training: Training) -> None:
        self._training = training

    def step_begins(self, number: int) -> None:
        self._number = number

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        taken = self._training.taken_norms
        self._norms = [] if taken is None else taken.norms

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        self._read()
        rates = [rate for group in optimizer.param_groups if (rate := rate_of(group)) is not None]
        self._largest_rates[optimizer] = max([self._largest_rates.get(optimizer, 0.0), *rates])
        self._copies = None
        if self._samples or self._number == _ALL:
            self._compare_samples(optimizer)
        covers_all = self._number == _ALL and self._number % self._training.every != 0
        if not self._suspects and not covers_all:
            return
        copies, copied = _Copies(), 0
        for each, rate in _steppable(optimizer):
            suspect = self._suspects.get(id(each))
            is_wanted = covers_all or (suspect is not None and suspect.next_look <= self._number)
            if is_wanted and id(each) not in self._reported and copied + each.nbytes <= _MOST_COPIED_BYTES:
                copied += each.nbytes
                copies.parameters.append((each, rate))
                copies.before.append(each.detach().clone())
        if copies.parameters:
            self._copies = copies

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        copies, self._copies = self._copies, None
        held = set(map(id, parameters_of(optimizer))) if self._samples else set()
        for key, each in self._samples.items():
            if key in held and each.changed is None and (parameter := each.parameter()) is not None:
                each.changed = LateTensor((_elements(parameter) != each.before).any())
        if self._training.taken_updates:
            stepped = {id(each): (ref(each), rate) for each, rate in _steppable(optimizer)}
            self._updates += [(self._number, stepped, each) for each in self._training.taken_updates]
        if copies is None:
            return
        compared = [
            _Compared(ref(each), rate, LateTensor(_facts(each, before)))
            for (each, rate), before in zip(copies.parameters, copies.before, strict=True)
        ]
        self._pending.append(_Comparison(self._number, ref(optimizer), users_place(), compared, self._norms))

    def _compare_samples(self, optimizer: Optimizer) -> None:
        """Compare samples with the elements now, and take the first samples. Called before the optimizer's step."""
        for each, _ in _steppable(optimizer):
            known = self._samples.get(id(each))
            if known is None and self._number == _ALL and each.numel() >= _FEWEST:
                self._samples[id(each)] = _Sample(ref(each), _elements(each).clone(), self._number)
            elif known is not None and known.changed is not None and known.is_back is None:
                known.is_back = LateTensor((_elements(each) == known.before).all())

    def _read_samples(self) -> None:
        """Drop the samples of parameters that were not restored after a step; report those restored three times."""
        found: list[_Sample] = []
        for key, each in list(self._samples.items()):
            if each.changed is None or each.is_back is None:
                continue
            if not (each.changed.is_ready() and each.is_back.is_ready()):
                continue
            if not bool(each.changed.read()) or not bool(each.is_back.read()):
                del self._samples[key]
                continue
            each.changed = each.is_back = None
            each.count += 1
            if each.count == _SURE:
                found.append(self._samples.pop(key))
        parameters = [parameter for each in found if (parameter := each.parameter()) is not None]
        names = [name for each in parameters if (name := self._training.watched.name_of(each)) is not None]
        if names:
            several = len(names) > 1
            self._training.add(
                Finding(
                    "not moved",
                    found[0].first,
                    f"{joined(names)} {'do' if several else 'does'} not change from step to step: optimizer.step() "
                    f"updates {'them' if several else 'it'}, and code after the step restores the previous values, bit "
                    "for bit, by rounding or copying. What to do: "
                    "train unrounded parameters, and round a copy of them in the forward with a straight-through "
                    "estimator, w + (w.round() - w).detach().",
                    tensor=names[0],
                    last_step=self._number,
                )
            )

    def step_ends(self, number: int) -> None:
        self._read()

    def ends(self) -> None:
        self._read()
        self._copies = None
        self._norms = []
        self._samples.clear()
        self._suspects.clear()
        self._pending.clear()
        self._updates.clear()

    def _read(self) -> None:
        """Evaluate the comparisons whose results have been computed."""
        if self._samples:
            self._read_samples()
        while self._updates and self._updates[0][2].is_ready():
            step, stepped, update = self._updates.popleft()
            for key, norm in zip(update.keys, update.norms, strict=True):
                if not norm and key in stepped and key not in self._suspects and key not in self._reported:
                    parameter, rate = stepped[key]
                    self._suspects[key] = _Suspect(parameter, step, rate, 1)
        while self._pending and self._pending[0].is_ready():
            comparison = self._pending.popleft()
            optimizer = comparison.optimizer()
            if optimizer is not None:
                self._judge(comparison, optimizer)

    def _judge(self, comparison: _Comparison, optimizer: Optimizer) -> None:
        """Update the suspects after a comparison, and report those that are certain."""
        squares = squares_by_tensor(comparison.norms)
        found: list[_Suspect] = []
        for reference, rate, facts in comparison.compared:
            parameter = reference()
            if parameter is None:
                continue
            key = id(parameter)
            changed, has_gradient, gradient, value = facts.read().tolist()
            is_cleared = not has_gradient and bool(squares.get(key))
            suspect = self._suspects.get(key)
            if changed or not (has_gradient or is_cleared) or (suspect is not None and rate > suspect.rate):
                self._suspects.pop(key, None)
                continue
            if suspect is None or suspect.parameter() is not parameter:
                suspect = self._suspects[key] = _Suspect(reference, comparison.step, rate)
            suspect.is_cleared = is_cleared and (suspect.is_cleared or suspect.count < 2)
            suspect.count += 1
            suspect.rate, suspect.gradient, suspect.value = rate, gradient, value
            suspect.optimizer, suspect.place = type(optimizer).__name__, comparison.place
            spans, sure = comparison.step - suspect.first + 1, _SURE_OF_CLEARED if suspect.is_cleared else _SURE
            if suspect.count < sure:
                continue
            if spans >= _SHARE * comparison.step and self._matters(suspect, parameter, squares):
                found.append(suspect)
            else:
                suspect.next_look = comparison.step + max(1, min(_MOST_WAIT, int(_SHARE * comparison.step)))
        for group in _grouped(found):
            self._report(group, comparison, self._largest_rates.get(optimizer, 0.0))

    def _matters(self, suspect: _Suspect, parameter: Tensor, squares: dict[int, float]) -> bool:
        """Return whether the gradient exceeds rounding noise, and the loop has not converged."""
        if suspect.is_cleared:
            return all(each.kind != "cleared early" for each in self._training.findings)
        means = [
            square / each.numel()
            for _, each in self._training.watched.parameters()
            if (square := squares.get(id(each), 0.0)) and math.isfinite(square) and each.numel()
        ]
        least = max(_NOISE * torch.finfo(parameter.dtype).eps, _LEAST)
        if means and squares.get(id(parameter), 0.0) / parameter.numel() < least**2 * max(means):
            return False
        norms = self._training.norms.whole
        norms = norms[norms.isfinite()]
        return not norms.numel() or float(norms[-1]) >= _FALLEN * float(norms.max())

    def _report(self, suspects: list[_Suspect], comparison: _Comparison, largest: float) -> None:
        self._reported |= {id(each.parameter()) for each in suspects}
        for each in suspects:
            self._suspects.pop(id(each.parameter()), None)
        first = suspects[0]
        parameter = first.parameter()
        assert parameter is not None
        names = [name for each in suspects if (name := self._training.watched.name_of(each.parameter()))]  # type: ignore[arg-type]
        which = joined(names) if names else "a parameter"
        plural = len(suspects) > 1
        do, them = ("do", "them") if plural else ("does", "it")
        begins = (
            f"{which} {do} not change: {first.optimizer}.step(){at(first.place)} has left {them} unchanged, bit for "
            f"bit, since step {first.first}, although the backward computes a gradient"
        )
        text = f"{begins}. {_cause(first, parameter, largest)}"
        self._training.add(
            Finding("not moved", first.first, text, tensor=names[0] if names else None, last_step=comparison.step)
        )


def _steppable(optimizer: Optimizer) -> Iterator[tuple[Tensor, float]]:
    """Yield the parameters that the optimizer's step should change, with their learning rates."""
    for group in optimizer.param_groups:
        rate = rate_of(group)
        if rate:
            for each in group["params"]:
                if (
                    each.grad is not None
                    and each.is_floating_point()
                    and each.layout is torch.strided
                    and each.numel()
                    and not each.is_meta
                    and not computes_itself(each)
                ):
                    yield each, rate


def _elements(parameter: Tensor) -> Tensor:
    """Return a few elements of a parameter at equal distances."""
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _ELEMENTS)]


def _facts(parameter: Tensor, before: Tensor) -> Tensor:
    """Compute the facts of `_Compared`. Writes to `before`."""
    now, gradient = parameter.detach(), parameter.grad
    changed = before.sub_(now).count_nonzero() if now.shape == before.shape else torch.ones((), device=now.device)
    facts = [changed, *([torch.zeros((), device=now.device)] * 2), _root_mean_square(now)]
    if gradient is not None and gradient.layout is torch.strided and not computes_itself(gradient):
        facts[1:3] = gradient.count_nonzero(), _root_mean_square(gradient.detach())
    return torch.stack([each.to(torch.float32) for each in facts])


def _root_mean_square(values: Tensor) -> Tensor:
    wide = torch.promote_types(values.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(values, dtype=wide)
    return norm / math.sqrt(values.numel())


def _grouped(suspects: list[_Suspect]) -> list[list[_Suspect]]:
    """Group the parameters that one finding can cover."""
    groups: dict[tuple[object, ...], list[_Suspect]] = {}
    for each in suspects:
        parameter = each.parameter()
        assert parameter is not None
        groups.setdefault((each.is_cleared, each.rate, each.first, parameter.dtype), []).append(each)
    return list(groups.values())


def _cause(suspect: _Suspect, parameter: Tensor, largest: float) -> str:
    """Return the cause and the advice, as sentences."""
    if suspect.is_cleared:
        return (
            "The gradients are not zero when the backward ends and all zero at the step, so something between the two "
            "clears or scales them away. What to do: call zero_grad() before the backward, or after the step."
        )
    rate = f"{suspect.rate:.2g}"
    limits = torch.finfo(parameter.dtype)
    spacing = limits.eps * 2.0 ** math.floor(math.log2(suspect.value)) if suspect.value else limits.tiny
    dtype = dtype_name(parameter.dtype)
    if suspect.rate <= _TINY * largest:
        return (
            f"The learning rate is {rate}; it was {largest:.2g}. Updates that small are lost, because neighbouring "
            f"{dtype} values near {suspect.value:.2g} are {spacing:.2g} apart. What to do: look at the schedule; a "
            "scheduler that is meant for epochs decays too fast if scheduler.step() is called for each batch."
        )
    advice = (
        "keep the parameters in float32 and use torch.autocast for the forward, or raise the learning rate"
        if parameter.dtype in (torch.bfloat16, torch.float16)
        else "raise the learning rate (lr=), or scale the loss"
    )
    if suspect.rate >= spacing and suspect.rate * suspect.gradient >= spacing:
        return (
            f"Rounding does not explain this: the learning rate is {rate}, the root mean square of the gradient "
            f"{suspect.gradient:.2g}, and neighbouring {dtype} values near {suspect.value:.2g} are {spacing:.2g} "
            f"apart. What to do: look for code inside {suspect.optimizer}.step(), or a hook on it, that skips the "
            "update or restores the values."
        )
    return (
        f"Updates are rounded away: the learning rate is {rate}, the root mean square of the gradient "
        f"{suspect.gradient:.2g}, and neighbouring {dtype} values near {suspect.value:.2g} are {spacing:.2g} apart. "
        f"What to do: {advice}."
    )
