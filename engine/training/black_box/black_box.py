"""The black box of a training loop: writes a step that goes wrong to a folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from threading import get_ident
from typing import Any, get_args

from torch import Tensor, nn
from torch.optim import Optimizer

from ....inspector.graph.phrases import joined
from ....inspector.text.sizes_and_counts import number_text
from ....inspector.torch_private.call_watchers import watching_batches
from ....inspector.torch_private.distributed import world
from ....inspector.torch_private.optimizer_steps import watching_scales
from ....inspector.torch_private.tensors import computable, elements_of, version_of
from ....inspector.torch_private.thread_state import unobserved
from ....inspector.validation import a_kind
from ..findings import Finding, FindingKind
from ..follow_loop import BackwardGiven
from ..loop_observers import LoopPart
from ..norms import NormSums, TensorNorms
from ..optimizer_checks import LeftOutUpdates
from ..training_result import Training
from .batch_source import inputs_alone
from .models import Models
from .step_recorder import StepKeeper, Unit
from .write_step import Reason, unit_as_written, write_step


class Finiteness:
    """A first check of many tensors for NaN and Inf, by their norms. Create it `unobserved`.

    Very large finite elements make a norm infinite too. `is_finite` decides then.

    Args:
        tensors: the tensors to check.
        norms: norms of further tensors to check.
    """

    def __init__(self, tensors: Sequence[Tensor], norms: Iterable[TensorNorms] = ()) -> None:
        self._norms = [*norms, *NormSums().take(tensors, [0] * len(tensors))]

    @property
    def is_pending(self) -> bool:
        """True if reading it would synchronize an accelerator."""
        return any(each.is_pending for each in self._norms)

    def look(self) -> bool:
        """Return whether all norms are finite. It may wait for an accelerator."""
        return all(all(map(isfinite, each.norms)) for each in self._norms)


def is_finite(tensor: Tensor) -> bool:
    """Return whether all elements are finite. True for a tensor without readable elements."""
    with unobserved():
        return all(bool(values.isfinite().all()) for values in _values(tensor))


def _values(tensor: Tensor) -> list[Tensor]:
    """Return the parts of the tensor whose elements can be read."""
    found = [computable(part) for part in elements_of(tensor.detach()).parts]
    return [each for each in found if each.numel() and (each.is_floating_point() or each.is_complex())]


USUAL = ("non-finite", "exception")
"""Default triggers: a non-finite loss or gradient, and an exception."""

_LEFT_OUT = 8
"""So many steps skipped in a row are a fault: a gradient scaler that searches its scale halves it after each."""


def kinds_of(value: object) -> tuple[str, ...]:
    """Check `black_box_on`, the triggers on which a step is written.

    Raises:
        TypeError, ValueError: it is not a list of triggers.
    """
    known = tuple(dict.fromkeys((*USUAL, *(each for each in get_args(FindingKind) if each != "black box"))))
    wanted = f"some of {', '.join(map(repr, known))}"
    if isinstance(value, str) or not isinstance(value, Collection):
        raise TypeError(f"black_box_on is {a_kind(value)}; expected a list with {wanted}")
    if not len(value):
        raise ValueError(f"black_box_on is empty; expected {wanted}")
    for each in value:
        if each not in known:
            raise ValueError(f"black_box_on has {each!r} in it; expected {wanted}")
    return tuple(value)


_AFTER_BACKWARD = "after the backward"


@dataclass(frozen=True, slots=True)
class _Late:
    """A check whose result is read a step later."""

    finiteness: Finiteness
    unit: Unit
    step: int


class BlackBox(LoopPart):
    """Keeps the inputs of the current step, and writes them to a folder on the triggers of `black_box_on`.

    Of several non-finite steps in a row the first is written. On the CPU the check runs before the optimizer updates
    the parameters. On an accelerator that would wait, so the parameters are copied and the result is read a step later.
    A step that a gradient scaler skips counts as its search for a scale, unless the loss itself is not finite or eight
    steps in a row are skipped.
    """

    def __init__(self) -> None:
        self._training: Training | None = None
        self._keeper = StepKeeper()
        self._stack = ExitStack()
        self._thread = 0
        self._step = 0
        self._was_bad = False  # the last checked step was not finite
        self._left_out = 0  # consecutive steps that a scaler skipped
        self._looked_at: list[tuple[int, int]] = []  # checked gradients, by id and version
        self._late: list[_Late] = []
        self._findings = 0  # number of findings already handled
        self._left_out_updates = LeftOutUpdates()
        self._has_noted_unfused = False  # the note on an optimizer that cannot skip updates was added

    def begins(self, training: Training) -> None:
        if training.black_box is None:
            return
        self._training = training
        self._thread = get_ident()
        self._keeper = StepKeeper([each for _, each in training.watched])
        self._stack.enter_context(watching_batches(self._in_the_loop(self._keeper.batch_fetched)))
        self._stack.enter_context(watching_scales(self._in_the_loop(self._keeper.scaled)))

    def _in_the_loop(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Wrap a callback for torch's hooks: it runs only in the loop's thread and never raises into the loop."""

        def safely(*given: Any) -> None:
            if self._training is not None and get_ident() == self._thread:
                try:
                    with unobserved():
                        callback(*given)
                except Exception as error:
                    training, self._training = self._training, None
                    training.note(f"the black box is closed since step {self._step}: {type(error).__name__}: {error}")

        return safely

    def step_begins(self, number: int) -> None:
        self._step = number

    def forward_begins(self, module: nn.Module, given: tuple[object, ...]) -> None:
        if self._training is not None:
            self._keeper.forward_begins(module, given, self._training.autocast)

    def backward_begins(self, given: BackwardGiven) -> None:
        if self._training is not None:
            self._keeper.backward_begins(given[0])

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        if self._training is None or error is not None:
            return
        self._keeper.backward_ends()
        self._note_gradients()
        self._look(_AFTER_BACKWARD)

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        if self._training is None:
            return
        changed = self._note_gradients()  # after the backward, by clipping say; or there was none
        if changed:
            self._look(None)
        self._judge_late()
        self._write_what_was_found(None if changed else _AFTER_BACKWARD)
        self._keeper.optimizer_begins(optimizer, self._leaves_out(optimizer))

    def _leaves_out(self, optimizer: Optimizer) -> bool:
        """Return whether the optimizer skips the update of a bad step, so that the parameters need no copy."""
        training = self._training
        assert training is not None
        if not training.found_inf:
            return False
        loss = self._keeper.unit.micro_batches[-1].loss if self._keeper.unit.micro_batches else None
        judged = [*self._keeper.models.gradients, *([] if loss is None else [loss])]
        found = self._left_out_updates.begins(optimizer, judged)
        if found is None and not self._has_noted_unfused:
            self._has_noted_unfused = True
            training.note(f"{type(optimizer).__name__} is not fused, so found_inf cannot skip its updates")
        return bool(found)

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self._left_out_updates.ends()
        if self._training is not None:
            self._left_out = 0
            self._keeper.optimizer_ends(optimizer)

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        if self._training is not None:
            self._left_out += 1
            self._judge_late()
            self._keeper.optimizer_ends(optimizer)

    def step_ends(self, number: int) -> None:
        if any(each.done for each in self._keeper.unit.micro_batches):  # `training.step()` ended it, no optimizer
            self._keeper.renew()

    def _note_gradients(self) -> bool:
        """Return whether the gradients have changed since the last call."""
        before = self._looked_at
        self._looked_at = [(id(each), version_of(each)) for each in self._keeper.models.gradients]
        return before != self._looked_at

    def _look(self, gradients: str | None) -> None:
        """Check the loss and the gradients. `gradients`: when these were computed, if they are unchanged since."""
        training, keeper = self._training, self._keeper
        assert training is not None
        if not keeper.unit.micro_batches or "non-finite" not in training.black_box_on:
            return
        loss = keeper.unit.micro_batches[-1].loss
        finiteness = self._finiteness([] if loss is None else [loss], gradients == _AFTER_BACKWARD)
        if finiteness.is_pending and not training.synchronize and not keeper.stepping:
            keeper.lasting = True
            self._late.append(_Late(finiteness, keeper.unit, self._step))
        elif finiteness.look():
            self._was_bad = False
        elif said := self._what_is_bad(keeper.unit, keeper.models):
            self._write_first(Reason("non-finite", said, gradients=gradients), keeper.unit, self._step)

    def _finiteness(self, losses: list[Tensor], as_the_backward_left_them: bool) -> Finiteness:
        """Check these losses and all gradients, reusing norms just taken: reading all gradients again takes time."""
        training, models = self._training, self._keeper.models
        assert training is not None
        taken, training.taken_norms = training.taken_norms, None
        if taken is None or not as_the_backward_left_them:
            return Finiteness([*models.gradients, *losses])
        others = [
            each.grad for _, each in models.parameters if id(each) not in taken.parameters and each.grad is not None
        ]
        return Finiteness([*others, *losses], taken.norms)

    def _judge_late(self, all_of_it: bool = False) -> None:
        """Read the results of earlier steps' checks."""
        while self._late and (all_of_it or self._late[0].unit is not self._keeper.unit):
            late = self._late.pop(0)
            if late.finiteness.look():
                self._was_bad = False
                continue
            if said := self._what_is_bad(late.unit, None):
                self._write_first(Reason("non-finite", said), late.unit, late.step)

    def _write_first(self, reason: Reason, unit: Unit, step: int) -> None:
        """Write the first of several bad steps in a row."""
        if not self._was_bad:
            self._was_bad = True
            self._write(reason, unit, step)

    def _what_is_bad(self, unit: Unit, models: Models | None) -> str:
        """Return what is not finite, as a sentence; "" if nothing is, or if it is a scaler's search for its scale.

        Args:
            models: the models whose gradients are still those of the step; None: they are gone.
        """
        micro_batch = unit.micro_batches[-1]
        scaled = micro_batch.scale is not None
        loss = micro_batch.unscaled if scaled else micro_batch.loss
        if loss is not None and not is_finite(loss):
            return f"the loss is {number_text(float(loss.real))}."
        if scaled and self._left_out + 1 < _LEFT_OUT:
            return ""
        if models is None:
            return "a gradient is not finite."
        names = [name for name, each in models.parameters if each.grad is not None and not is_finite(each.grad)]
        if len(names) == 1:
            return f"the gradient of {names[0]} is not finite."
        return f"gradients are not finite: those of {joined(names)}." if names else ""

    def _write_what_was_found(self, gradients: str | None) -> None:
        training = self._training
        assert training is not None
        new, self._findings = training.findings[self._findings :], len(training.findings)
        for finding in new:
            if finding.kind in training.black_box_on and finding.kind != "non-finite":
                reason = Reason(finding.kind, _ended(finding.sentence), gradients=gradients)
                self._write(reason, self._keeper.unit, self._step)
                return

    def failed(self, error: BaseException) -> None:
        training = self._training
        if training is None or not isinstance(error, Exception) or "exception" not in training.black_box_on:
            return
        if self._keeper.unit.micro_batches:
            said = _ended(f"it raised {type(error).__name__}: {error}")
            folder = self._write(Reason("exception", said, error), self._keeper.unit, self._step)
            if folder is not None:
                error.add_note(f"tapescope: the step is kept in {folder}; {_again(folder)} runs it again")

    def _write(self, reason: Reason, unit: Unit, step: int) -> Path | None:
        training = self._training
        assert training is not None
        assert training.black_box is not None
        if not unit.micro_batches:
            return None
        try:
            written = unit_as_written(step, unit, self._keeper.models, reason)
            folder = write_step(Path(training.black_box), _name(step), written, training.limit)
        except (ValueError, NotImplementedError, OSError) as error:
            why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            training.add(_finding(step, f"{reason.sentence} The step was not put into the black box: {why}"))
            return None
        said = f"{reason.sentence} The step is kept: {_again(folder)} runs it again."
        if alone := inputs_alone(each.fetched.origin for each in unit.micro_batches):
            said += f" {alone}"
        training.add(_finding(step, said, str(folder)))
        return folder

    def ends(self) -> None:
        self._left_out_updates.ends()
        if self._training is not None:
            self._judge_late(all_of_it=True)
        self._training = None
        self._stack.close()
        self._keeper.forget()
        self._late.clear()
        self._looked_at.clear()


def _ended(sentence: str) -> str:
    """Return the sentence with a full stop, which few error messages have."""
    return sentence if sentence.rstrip().endswith((".", "!", "?")) else f"{sentence.rstrip(': ')}."


def _again(folder: Path) -> str:
    return f"tapescope replay {folder} SCRIPT.py:make_model SCRIPT.py:loss_of"


def _finding(step: int, sentence: str, at: str | None = None) -> Finding:
    return Finding("black box", step, f"{sentence[0].upper()}{sentence[1:]}", at=at)


def _name(step: int) -> str:
    group = world()
    return f"step_{step}" if group is None else f"step_{step}_rank_{group.rank()}"
