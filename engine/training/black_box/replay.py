"""`ts.replay`: a step that a black box has kept runs again, forward and backward, from its folder alone."""

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
from ....inspector.text.sizes_and_counts import counted
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
from .models import named
from .read_step import RecordedStep, read_step, shown
from .restore_model import as_recorded, differences, home_of, modules_of, put_buffers, put_in, refuse_other

MakeModel = Callable[[], Any]
LossOf = Callable[[Any, Any], Tensor]


class _OtherAutocastError(Exception):
    """The model is called under another autocast than it was."""


class _Player:
    """Runs micro-batches of a recorded step.

    Attributes:
        made: what `make_model()` gave, which `loss_of` gets.
        modules: of it.
        notes: what was seen to differ as it ran.
        around: whether autocast is to be opened around `loss_of`, which does not do so.
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
        """Flags and threads are as they were, and random numbers as they are now afterwards."""
        with flags_as(self.step.flags), same_random_numbers(), torch.enable_grad():
            yield

    def loss(self, number: int) -> Tensor:
        """The loss of a micro-batch, from the state in which it was; scaled as it was."""
        try:
            return self._loss(number)
        except _OtherAutocastError:
            self.around = True
            return self._loss(number)

    def _loss(self, number: int) -> Tensor:
        micro_batch = self.step.micro_batches[number]
        put_buffers(self.modules, self.step, self.tensors, number)
        batch = self._batch(number)
        self._random[number].go_on()
        with ExitStack() as stack:
            stack.enter_context(watching_modules(self._at_first_call(number)))
            stack.enter_context(autocast_as(micro_batch.autocast) if self.around else nullcontext())
            loss = one_number(self._loss_of(self.made, batch))
        scale = self.tensors.get(f"{number}/scale")
        return loss if scale is None else loss * scale.to(loss.device)

    def _at_first_call(self, number: int) -> Callable[[nn.Module, object], None]:
        """Looks whether the first module is called in the state in which it was."""
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
                        f"loss_of calls the model under {autocast_words(now)}, and the loop did under "
                        f"{autocast_words(recorded.autocast)}: it is opened around loss_of"
                    )
                    raise _OtherAutocastError
                self._note(f"loss_of calls the model under {autocast_words(now)}, whatever is around it")
            if at_model is not None and not torch.equal(torch.get_rng_state(), at_model):
                self._note(
                    "before it called the model the loop had drawn other random numbers than loss_of does, such as "
                    "those of an augmentation: loss_of has to do with the batch all that the loop does"
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
                raise ValueError(f"there is no tensor {place} of batch {number}")
            with unobserved():  # what looks at the forward has its first operation in the user's code
                return self.tensors[name].to(home_of(facts[name]), copy=True)

        try:
            return batch_of(self.step.micro_batches[number].batch, tensor)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.step.folder} can't be used: {error}") from None


@dataclass(frozen=True, eq=False, repr=False)
class StepReplay(ShownAsFindings):
    """A step that has run again. See `ts.replay`.

    Attributes:
        folder: from which.
        step: its number in the loop.
        differences: what is not as it was, in sentences.
        losses: the scalar of each micro-batch of which `.backward()` was called.
        gradients: by parameter, of its shape; those that got none are not there.
        error: what it raised, if it did.
        same_loss, same_gradients: whether they are bit for bit the recorded ones; None: none were recorded.
        unrecorded: by parameter why its gradient is not recorded: a sparse one.
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
        """What `make_model()` gave, with the recorded values."""
        return self._player.made

    @property
    def same(self) -> bool:
        """Whether it is what was recorded: loss and gradients bit for bit, or what was raised."""
        recorded = self._player.step.error
        if self.error is not None or recorded is not None:
            return recorded == (None if self.error is None else (type(self.error).__name__, shown(str(self.error))))
        return self.same_loss is not False and self.same_gradients is not False

    @property
    def loss(self) -> Tensor | None:
        """The scalar of the last micro-batch; None: it raised before there was one."""
        return self.losses[-1] if self.losses else None

    def make_loss(self) -> Tensor:
        """The loss of the last micro-batch, anew, with its graph: for ts.profile(replay.make_loss) and its like."""
        return self._player.loss(len(self._player.step.micro_batches) - 1)

    def find_nan(self, **options: Any) -> NanReport:
        """`ts.find_nan` of this step."""
        with self._player.surroundings():
            return find_nan(self.make_loss, **({"model": self._named} | options))

    def backward(self, **options: Any) -> Run:
        """`ts.backward` of it: a run, which `run.deck()` and `run.save_html("run.html")` play."""
        with self._ready() as loss:
            return backward(loss, **({"trace": "full"} | options))

    def debug(self, **options: Any) -> Any:
        """`ts.debug` of it: in a notebook a deck, else a session that stands before its first task."""
        with self._ready() as loss:
            return drawn("session or deck", loss, **options)

    def deck(self, **options: Any) -> Any:
        """`ts.deck` of it: a deck, wherever this runs."""
        with self._ready() as loss:
            return drawn("a deck", loss, **options)

    @property
    def _named(self) -> nn.Module:
        modules = self._player.modules
        return modules[0] if len(modules) == 1 else nn.ModuleList(modules)

    @contextmanager
    def _ready(self) -> Iterator[Tensor]:
        """The captured loss, and no gradients."""
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
            f"Step {self.step} was kept: {recorded.sentence}",
            *(f"{each[0].upper()}{each[1:]}." for each in self.differences),
            self._verdict(),
        ]

    def _verdict(self) -> str:
        recorded = self._player.step
        if self.error is not None:
            raised = f"{type(self.error).__name__}: {self.error}"
            if recorded.error is None:
                return f"The replay raised {raised}; the step had raised nothing."
            return f"It raises {'what the step did' if self.same else 'something else'}: {raised}"
        if recorded.error is not None:
            return f"It raises nothing; the step had raised {recorded.error[0]}: {recorded.error[1]}"
        said = "The loss, " + ", ".join(f"{float(each.real):.6g}" for each in self.losses) if self.losses else "No loss"
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
        differing = f"{counted(len(self._differing), 'gradient')} differ: {joined(list(self._differing))}"
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
    """Runs a step that a black box has kept again, forward and backward, bit for bit as it was.

    The model gets the recorded parameters, buffers and modes; the batch, random numbers, threads and flags are the
    recorded ones, too, and the latter are afterwards as they were before. Of a step whose gradients were summed over
    micro-batches all of these run. What differs from the recording is warned of before anything runs.

    Nothing in the folder is run or unpickled: data are read, whose shapes and sizes are checked first.

    Args:
        folder: one step's, `black_box/step_37`.
        make_model: makes the model, with any values; or several, a list, as they were given to `ts.training`.
        loss_of: `loss_of(model, batch)` gives what the loop called `.backward()` of. It has to do all that the loop
            does with a batch, drawing random numbers included. A batch is what the DataLoader gave, or, where the
            folder says so, what the model was called with: a tuple, or a dict where it was by name.

    Raises:
        TypeError: an argument is none; a function gives something else than it should.
        ValueError: the folder is no such folder or is not as it was written; or the model is another one.
        OSError: it can't be read.
    """
    refuse_transforms("ts.replay")
    expect_callable(make_model, 0, "make_model", "a function that makes the model")
    expect_callable(loss_of, 2, "loss_of", "a function that takes model and batch and gives the loss")
    step = read_step(folder)
    if not step.micro_batches:
        raise ValueError(f"{step.folder} has no batch: nothing of that step had run, so there is nothing to replay")
    with same_random_numbers():
        made = make_model()
    modules = as_recorded(modules_of(made), step)
    refuse_other(modules, step)
    told = list(differences(modules, step))
    for each in told:
        warn(f"replay of {step.folder}: {each}")
    player = _Player(step, made, modules, loss_of)
    return _run(player, told)


keep_compiler_out(replay)


def _run(player: _Player, told: Sequence[str]) -> StepReplay:
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
        (*told, *player.notes),
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
    """Whether they are the same bits; NaNs are all alike."""
    one, other = one.detach().cpu(), other.detach().cpu()
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bad = one.isnan()
    if not torch.equal(bad, other.isnan()):
        return False
    zero = one.new_zeros(())
    one, other = (torch.where(bad, zero, each).contiguous().flatten() for each in (one, other))
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
