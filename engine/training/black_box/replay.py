"""`ts.replay`: runs a step recorded by a black box again, forward and backward, from its folder alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....inspector.capture.capture import capture
from ....inspector.graph.phrases import joined
from ....inspector.graph.source_lines import warn
from ....inspector.renderers import drawn
from ....inspector.text.progress import telling
from ....inspector.text.report import ShownAsFindings
from ....inspector.text.sizes_and_counts import counted, number_text
from ....inspector.torch_private.call_watchers import watching_modules
from ....inspector.torch_private.compiled import keep_compiler_out
from ....inspector.torch_private.thread_state import unobserved
from ....inspector.validation import expect_callable
from ...api.backward import backward
from ...api.environment import autocast_as, autocast_now, autocast_words, flags_as
from ...api.make_loss import loss_of as one_number
from ...api.make_loss import same_random_numbers
from ...diagnose.find_nan import NanReport, find_nan
from ...execution.unsupported import refuse_transforms
from ...recording.run import Run
from .batch import batch_of, why_not_kept
from .batch_source import inputs_of
from .models import named
from .read_step import RecordedStep, read_step, shown
from .restore_model import as_recorded, differences, home_of, modules_of, put_buffers, put_in, refuse_other

MakeModel = Callable[[], Any]
LossOf = Callable[[Any, Any], Tensor]


class _OtherAutocastError(Exception):
    """Raised if the model is called under other autocast settings than recorded."""


class _Player:
    """Runs micro-batches of a recorded step.

    Attributes:
        made: the result of `make_model()`, which is passed to `loss_of`.
        modules: its modules.
        notes: differences noticed during the run.
        around: whether to enter autocast around `loss_of`, which does not enter it.
    """

    def __init__(self, step: RecordedStep, made: Any, modules: list[nn.Module], loss_of: LossOf) -> None:
        self.step = step
        self.made = made
        self.modules = modules
        self.notes: list[str] = []
        self.around = False
        self._loss_of = loss_of
        self.tensors = step.load()
        self._random = [step.random_numbers(number, self.tensors) for number in range(len(step.micro_batches))]
        for number in range(len(step.micro_batches)):
            self._batch(number)  # a damaged batch is reported before anything runs
        put_in(modules, step, self.tensors)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Set flags and threads as recorded; restore them and the random number generators afterwards."""
        with flags_as(self.step.flags), same_random_numbers(), torch.enable_grad():
            yield

    def loss(self, number: int) -> Tensor:
        """Compute the loss of a micro-batch from the recorded state, with the recorded loss scale."""
        try:
            return self._loss(number)
        except _OtherAutocastError:
            self.around = True
            return self._loss(number)

    def _loss(self, number: int) -> Tensor:
        micro_batch = self.step.micro_batches[number]
        put_buffers(self.modules, self.step, self.tensors, number)
        batch = self._batch(number)
        self._random[number].restore()
        with ExitStack() as stack:
            stack.enter_context(watching_modules(self._at_first_call(number)))
            stack.enter_context(autocast_as(micro_batch.autocast) if self.around else nullcontext())
            loss = one_number(self._loss_of(self.made, batch))
        scale = self.tensors.get(f"{number}/scale")
        return loss if scale is None else loss * scale.to(loss.device)

    def _at_first_call(self, number: int) -> Callable[[nn.Module, object], None]:
        """Return a hook that checks that the first module is called in the recorded state."""
        recorded, at_model = self.step.micro_batches[number], self.tensors.get(f"{number}/random at the model")
        seen = False

        def look(module: nn.Module, given: object) -> None:
            nonlocal seen
            if seen or not torch.is_grad_enabled() or not any(True for _ in module.parameters()):
                return
            seen = True
            now = autocast_now()
            if now != recorded.autocast:
                if not self.around:
                    self._note(
                        f"loss_of calls the model under {autocast_words(now)}, but the loop called it under "
                        f"{autocast_words(recorded.autocast)}; the replay enters autocast around loss_of"
                    )
                    raise _OtherAutocastError
                self._note(
                    f"loss_of calls the model under {autocast_words(now)}, even if the replay enters autocast around it"
                )
            if at_model is not None and not torch.equal(torch.get_rng_state(), at_model):
                self._note(
                    "the loop drew other random numbers than loss_of before it called the model (for augmentation, "
                    "say); loss_of must do everything that the loop does with the batch"
                    if inputs_of(recorded.origin) is None
                    else "before it called the model, loss_of drew random numbers; no DataLoader returned the batch, "
                    "so the recorded random states are those at the call of the model, and loss_of must use the batch "
                    "that it is given and draw none"
                )

        return look

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def _batch(self, number: int) -> Any:
        facts = self.step.tensors

        def tensor(place: int) -> Tensor:
            name = f"{number}/batch/{place}"
            if name not in facts:
                raise ValueError(f"tensor {place} of batch {number} is missing")
            with unobserved():  # observers of the forward expect the first operation in the user's code
                return self.tensors[name].to(home_of(facts[name]), copy=True)

        try:
            return batch_of(self.step.micro_batches[number].batch, tensor)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.step.folder} cannot be used: {error}") from None


@dataclass(frozen=True, eq=False, repr=False)
class StepReplay(ShownAsFindings):
    """The result of running a step again, see `ts.replay`.

    Attributes:
        folder: the step's folder.
        step: its number in the loop.
        differences: differences from the recorded state, in sentences.
        losses: for each micro-batch, the scalar whose `.backward()` was called.
        gradients: the gradients by parameter, of the parameter's shape; parameters without one are absent.
        error: the exception that it raised; None if it raised none.
        same_loss, same_gradients: whether they are bit for bit the recorded ones; None if none were recorded.
        unrecorded: for each parameter without a recorded gradient, the reason, such as a sparse gradient.
    """

    folder: Path
    step: int
    differences: tuple[str, ...]
    losses: tuple[Tensor, ...]
    gradients: dict[str, Tensor]
    error: BaseException | None
    same_loss: bool | None
    same_gradients: bool | None
    unrecorded: dict[str, str]
    _differing: tuple[str, ...]
    _player: _Player = field(repr=False)

    @property
    def model(self) -> Any:
        """The result of `make_model()`, with the recorded values."""
        return self._player.made

    @property
    def same(self) -> bool:
        """True if loss and gradients are bit for bit the recorded ones, or the same exception was raised."""
        recorded = self._player.step.error
        if self.error is not None or recorded is not None:
            return recorded == (None if self.error is None else (type(self.error).__name__, shown(str(self.error))))
        return self.same_loss is not False and self.same_gradients is not False

    @property
    def loss(self) -> Tensor | None:
        """The scalar of the last micro-batch; None if an exception was raised before it."""
        return self.losses[-1] if self.losses else None

    def make_loss(self) -> Tensor:
        """Compute the last micro-batch's loss again with its graph, for calls like ts.profile(replay.make_loss)."""
        return self._player.loss(len(self._player.step.micro_batches) - 1)

    def find_nan(self, **options: Any) -> NanReport:
        """Run `ts.find_nan` on this step."""
        with self._player.surroundings():
            return find_nan(self.make_loss, **({"model": self._named} | options))

    def backward(self, **options: Any) -> Run:
        """Run `ts.backward` on this step and return the run, for `run.deck()` and `run.save_html("run.html")`."""
        with self._ready() as loss:
            return backward(loss, **({"trace": "full"} | options))

    def debug(self, **options: Any) -> Any:
        """Run `ts.debug` on this step. Return a deck in a notebook, or a session stopped before its first task."""
        with self._ready() as loss:
            return drawn("session or deck", loss, **options)

    def deck(self, **options: Any) -> Any:
        """Run `ts.deck` on this step and return the deck."""
        with self._ready() as loss:
            return drawn("a deck", loss, **options)

    @property
    def _named(self) -> nn.Module:
        modules = self._player.modules
        return modules[0] if len(modules) == 1 else nn.ModuleList(modules)

    @contextmanager
    def _ready(self) -> Iterator[Tensor]:
        """Yield the captured loss, with all gradients None."""
        for _, each in named(self._player.modules, "parameters"):
            each.grad = None
        with self._player.surroundings():
            with capture(self._named, every_call=True):
                loss = self.make_loss()
            yield loss

    @property
    def cells(self) -> list[list[str]]:
        return [[]]

    @property
    def sentences(self) -> list[str]:
        recorded = self._player.step
        return [
            f"Step {self.step} was recorded: {recorded.sentence}",
            *(f"{each[0].upper()}{each[1:]}." for each in self.differences),
            self._verdict(),
        ]

    def _verdict(self) -> str:
        recorded = self._player.step
        if self.error is not None:
            raised = f"{type(self.error).__name__}: {self.error}"
            if recorded.error is None:
                return f"The replay raised {raised}; the recorded step raised no exception."
            return f"It raises {'the recorded exception' if self.same else 'another exception'}: {raised}"
        if recorded.error is not None:
            return f"It raises no exception; the recorded step raised {recorded.error[0]}: {recorded.error[1]}"
        numbers = [number_text(float(each.real)) for each in self.losses]
        said = "The loss, " + ", ".join(numbers) if numbers else "No loss"
        if self.same_loss is None:
            said += ", was not recorded"
        elif self.same_loss and self.same_gradients:
            return f"{said}, and {self._compared} bit for bit the recorded ones{self._left_out}."
        else:
            said += ", is bit for bit the recorded one" if self.same_loss else ", is not the recorded one"
        if self.same_gradients is None:
            return f"{said}; gradients were not recorded."
        if self.same_gradients:
            return f"{said}; {self._compared}{self._left_out}."
        differ = "differs" if len(self._differing) == 1 else "differ"
        differing = f"{counted(len(self._differing), 'gradient')} {differ}: {joined(list(self._differing))}"
        return f"{said}; {differing}{self._left_out}."

    @property
    def _compared(self) -> str:
        return f"all {counted(len(self.gradients) - len(self.unrecorded), 'gradient')} are"

    @property
    def _left_out(self) -> str:
        names = joined([f"{name} ({why})" for name, why in self.unrecorded.items()])
        return f"; not recorded {'is' if len(self.unrecorded) == 1 else 'are'} {names}" if names else ""

    def __repr__(self) -> str:
        return str(self)


def replay(folder: str | Path, make_model: MakeModel, loss_of: LossOf) -> StepReplay:
    """Run a step recorded by a black box again, forward and backward, bit for bit.

    The model gets the recorded parameters, buffers and modes. The batch, random number states, threads and flags are
    the recorded ones too; random number states, threads and flags are restored afterwards. If the step accumulated
    gradients over micro-batches, all recorded micro-batches run. A warning reports any difference from the recording
    before anything runs.

    Nothing in the folder is executed or unpickled. Shapes and sizes are checked before data are read.

    Args:
        folder: the folder of one step, such as `black_box/step_37`.
        make_model: a function that creates the model with any values, or a list of models as passed to `ts.training`.
        loss_of: `loss_of(model, batch)` returns the tensor whose `.backward()` the loop called. It must do everything
            that the loop does with a batch, including drawing random numbers. The batch is the DataLoader's, or, if the
            folder says so, the model's arguments: a tuple, or a dict for keyword arguments.

    Raises:
        TypeError: if an argument has the wrong type, or a function returns an object of the wrong type.
        ValueError: if the folder is not a recorded step or is damaged, or the model differs from the recorded one.
        OSError: if the folder cannot be read.
    """
    refuse_transforms("ts.replay")
    expect_callable(make_model, 0, "make_model", "a function that creates the model")
    expect_callable(loss_of, 2, "loss_of", "a function of the model and the batch that returns the loss")
    step = read_step(folder)
    if not step.micro_batches:
        raise ValueError(f"{step.folder} has no batch because nothing of that step had run, so it cannot be replayed")
    with same_random_numbers():
        made = make_model()
    modules = as_recorded(modules_of(made), step)
    refuse_other(modules, step)
    notes = list(differences(modules, step))
    for each in notes:
        warn(f"replay of {step.folder}: {each}")
    player = _Player(step, made, modules, loss_of)
    return _run(player, notes)


keep_compiler_out(replay)


def _run(player: _Player, notes: Sequence[str]) -> StepReplay:
    step = player.step
    losses: list[Tensor] = []
    error: BaseException | None = None
    for name, each in named(player.modules, "parameters"):
        before = player.tensors.get(f"gradient before/{name}")
        each.grad = None if before is None else before.to(each.device, copy=True)
    with telling(None, "replaying") as tell, player.surroundings():
        try:
            for number in range(len(step.micro_batches)):
                tell(f"batch {number + 1} of {len(step.micro_batches)}")
                loss = player.loss(number)
                losses.append(loss.detach().clone())
                if step.micro_batches[number].backward or step.error is not None:
                    loss.backward()  # type: ignore[no-untyped-call]
        except Exception as raised:
            error = raised
            if step.error is None:
                raise
    own = {name: each.grad for name, each in named(player.modules, "parameters") if each.grad is not None}
    recorded = {
        name.removeprefix("gradient/"): each for name, each in player.tensors.items() if name.startswith("gradient/")
    }
    unrecorded = {name: why for name, each in own.items() if name not in recorded and (why := why_not_kept(each))}
    differing = tuple(
        name
        for name in {**recorded, **own}
        if name not in unrecorded
        if name not in own or name not in recorded or not _same(own[name], recorded[name])
    )
    compares = bool(recorded or differing or not unrecorded)
    kept = {
        number: player.tensors[f"{number}/loss"] for number in range(len(losses)) if f"{number}/loss" in player.tensors
    }
    return StepReplay(
        step.folder,
        step.step,
        (*notes, *player.notes),
        tuple(losses),
        {name: each.clone() for name, each in own.items()},
        error,
        all(_same(losses[number], each) for number, each in kept.items()) if kept else None,
        not differing if compares and step.gradients is not None and not step.before else None,
        unrecorded,
        differing,
        player,
    )


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal bit by bit; all NaNs are equal."""
    one, other = one.detach().cpu(), other.detach().cpu()
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bad = one.isnan()
    if not torch.equal(bad, other.isnan()):
        return False
    zero = one.new_zeros(())
    one, other = (torch.where(bad, zero, each).contiguous().flatten() for each in (one, other))
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
