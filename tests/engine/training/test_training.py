"""The calls that a loop's observers get, and that the loop is unchanged."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

import tapescope as ts
from tapescope.engine.training import training as module
from tapescope.engine.training.follow_loop import BackwardGiven
from tapescope.engine.training.loop_observers import LoopPart
from tapescope.tests.says import Snapshots, raises, says


class Told(LoopPart):
    """An observer that records its calls."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begins(self, training: ts.types.Training) -> None:
        self.told.append("begins")

    def step_begins(self, number: int) -> None:
        self.told.append(f"({number}")

    def forward_begins(self, module: nn.Module, given: tuple[object, ...]) -> None:
        self.told.append(f"{type(module).__name__}(")

    def forward_ends(self, module: nn.Module, result: object) -> None:
        self.told.append(")")

    def backward_begins(self, given: BackwardGiven) -> None:
        self.told.append("backward(")

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        self.told.append(f"){'' if error is None else type(error).__name__}")

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        self.told.append(f"{type(optimizer).__name__}(")

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self.told.append(")")

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        self.told.append(f"{type(optimizer).__name__} skipped")

    def step_ends(self, number: int) -> None:
        self.told.append(f"{number})")

    def failed(self, error: BaseException) -> None:
        self.told.append(f"failed {type(error).__name__}")

    def ends(self) -> None:
        self.told.append("ends")


class Raises(LoopPart):
    def optimizer_begins(self, optimizer: Optimizer) -> None:
        raise ValueError("not mine")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    part = Told()
    monkeypatch.setattr(module, "PARTS", [lambda: part])
    return part


STEP = "Linear( ) backward( ) SGD( )"


def linear() -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, SGD(model.parameters(), 0.1)


def train(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()


def test_a_loop_is_told_of_in_its_order(told: Told) -> None:
    model, optimizer = linear()
    with ts.training(model, optimizer) as training:
        train(model, optimizer, 3)
    assert " ".join(told.told) == f"begins (0 {STEP} 0) (1 {STEP} 1) (2 {STEP} 2) ends"
    assert training.steps == 3


def test_where_nothing_is_given_a_step_ends_when_all_optimizers_have_stepped(told: Told) -> None:
    gc.freeze()  # those of other tests are not the loop's
    model, optimizer = linear()
    with ts.training() as training:
        train(model, optimizer, 3)
    assert " ".join(told.told) == f"begins (0 {STEP} 0) (1 {STEP} 1) (2 {STEP} 2) ends"
    assert training.steps == 3 and training.modules == [""]


def test_where_another_optimizer_may_step_yet_the_first_step_ends_as_one_steps_again(told: Told) -> None:
    model, optimizer = linear()
    waiting = linear()
    with ts.training() as training:
        train(model, optimizer, 3)
    del waiting
    first = "Linear( ) backward( ) SGD( ) Linear( ) backward( ) 0) (1 SGD( )"
    assert " ".join(told.told) == f"begins (0 {first} 1) (2 {STEP} 2) ends"
    assert training.steps == 3 and training.modules == [""]


class Discriminator(nn.Linear):
    pass


def gan(critic_steps: int) -> tuple[Callable[[], None], list[Optimizer]]:
    generator, discriminator = nn.Linear(2, 3), Discriminator(3, 1)
    of_both = [Adam(discriminator.parameters(), 0.1), SGD(generator.parameters(), 0.1)]
    rounds = itertools.count(1)

    def step() -> None:
        (discriminator(torch.ones(2, 3)) - discriminator(generator(torch.ones(2, 2)).detach())).sum().backward()
        of_both[0].step()
        if next(rounds) % critic_steps == 0:
            discriminator(generator(torch.ones(2, 2))).sum().backward()
            of_both[1].step()

    return step, list(of_both)


@pytest.mark.parametrize("given", [True, False])
def test_a_step_of_a_gan_is_one_of_both(told: Told, given: bool) -> None:
    step, optimizers = gan(1)
    with ts.training(None, optimizers if given else None) as training:
        for _ in range(4):
            step()
    stepped = [each for each in told.told if each in ("Adam(", "SGD(") or each[:1] == "(" or each[-1:] == ")" != each]
    assert training.steps == 4
    assert [each for each in stepped if each[0].isalpha()] == ["Adam(", "SGD("] * 4
    assert " ".join(stepped[-8:]) == "(2 Adam( SGD( 2) (3 Adam( SGD( 3)"


def test_each_step_of_a_critic_is_one(told: Told) -> None:
    step, _ = gan(3)
    with ts.training() as training:
        for _ in range(6):
            step()
    assert training.steps == 6


def test_accumulated_backwards_are_of_one_step(told: Told) -> None:
    model, optimizer = linear()
    with ts.training(model, optimizer) as training:
        for number in range(8):
            model(torch.ones(2, 3)).sum().backward()
            if number % 4 == 3:
                optimizer.step()
    assert training.steps == 2
    assert " ".join(told.told).count("backward( ) Linear(") == 6


def test_a_closure_is_told_of_before_its_optimizer(told: Told) -> None:
    model, _ = linear()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(torch.ones(2, 3)).square().sum()
        loss.backward()
        return loss

    with ts.training(model, optimizer) as training:
        for _ in range(2):
            optimizer.step(closure)
    assert training.steps == 2
    assert " ".join(told.told).startswith("begins (0 Linear( ) backward( ) LBFGS( Linear( ) backward( ) ")


def test_a_step_that_a_scaler_leaves_out_is_one(told: Told) -> None:
    model, optimizer = linear()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with ts.training(model, optimizer) as training:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 3)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert training.steps == 3
    assert [each for each in told.told if "SGD" in each] == ["SGD(", "SGD skipped", "SGD("]


def test_steps_by_hand(told: Told) -> None:
    model, optimizer = linear()
    with ts.training(model, optimizer) as training:
        for _ in range(3):
            train(model, optimizer, 2)
            training.step()
    assert training.steps == 1 + 3  # of the first two the optimizer told
    with raises(RuntimeError, "step()", "with"):
        training.step()


def test_what_is_not_given_is_not_told_of(told: Told) -> None:
    model, optimizer = linear()
    with ts.training(model, optimizer) as training:
        train(*linear(), 3)
    assert told.told == ["begins", "(0", *["backward(", ")"] * 3, "ends"] and training.steps == 0


def test_a_model_that_is_wrapped_is_told_of(told: Told) -> None:
    model, optimizer = linear()
    with ts.training(model, optimizer):
        train(nn.Sequential(model), optimizer, 1)
    assert "Sequential(" in told.told


def test_an_error_is_told_of_once_and_left_as_it_is(told: Told) -> None:
    model, optimizer = linear()
    loss = model(torch.ones(2, 3)).square().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"), ts.training(model, optimizer):
        loss.backward()
    assert " ".join(told.told) == "begins (0 backward( )RuntimeError failed RuntimeError ends"


def test_a_part_that_raises_is_noted_once(monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots) -> None:
    model, optimizer = linear()
    monkeypatch.setattr(module, "PARTS", [Raises])
    with (
        pytest.warns(UserWarning, match="Raises") as warned,
        ts.training(model, optimizer) as training,
    ):
        train(model, optimizer, 3)
    assert len(warned) == 1
    (note,) = training.notes
    says(note, "Raises", "step 0", "ValueError", "not mine")
    snapshot("training", note)
    assert training.steps == 3


def finding(step: int, tensor: str = "a", sentence: str = "It is kept.") -> ts.types.Finding:
    return ts.types.Finding("leak", step, sentence, tensor=tensor)


@pytest.mark.filterwarnings("ignore:ts.training")
def test_the_same_finding_goes_on() -> None:
    training = ts.training()
    for step in (2, 3, 5):
        training.add(finding(step))
    training.add(finding(6, "b"))
    assert [(each.step, each.last_step) for each in training.findings] == [(2, 5), (6, None)]
    training.update(finding(7, "a", "More is kept."))
    assert training.findings[0] == ts.types.Finding("leak", 2, "More is kept.", tensor="a", last_step=7)
    assert str(training.findings[0]) == "More is kept."
    assert "leak     2–7    More is kept." in repr(training)


def test_findings_are_said_as_they_are_found() -> None:
    with pytest.warns(UserWarning, match=r"ts.training: step 2: It is kept\."):
        ts.training().add(finding(2))


def test_a_started_training_watches_until_it_is_stopped_also_where_nobody_keeps_it(told: Told) -> None:
    training = weakref.ref(ts.training().start())
    train(*linear(), 3)
    gc.collect()
    started = training()
    assert started is not None
    started.stop()
    train(*linear(), 3)
    assert started.steps == 3 and told.told[-1] == "ends"
    started.stop()
    with raises(RuntimeError, "ts.training()"):
        started.start()


@pytest.fixture
def plain() -> Iterator[None]:
    """Afterwards torch's own functions are in place again."""
    kept = patched()
    yield
    assert patched() == kept


def patched() -> list[object]:
    places = torch.nn.modules.module
    optimizers = importlib.import_module("torch.optim.optimizer")
    return [
        torch.autograd._engine_run_backward,  # type: ignore[attr-defined]
        torch.amp.grad_scaler.GradScaler._maybe_opt_step,
        torch.amp.grad_scaler.GradScaler.scale,
        dict(places._global_forward_hooks),
        dict(places._global_forward_pre_hooks),
        dict(optimizers._global_optimizer_pre_hooks),
        dict(optimizers._global_optimizer_post_hooks),
        torch.nn.utils.clip_grad_norm_,
    ]


@pytest.mark.usefixtures("plain")
def test_gradients_are_the_same_bit_for_bit_and_nothing_stays() -> None:
    plainly, watched = linear(), linear()
    train(*plainly, 5)
    with ts.training(*watched):
        train(*watched, 5)
    for one, other in zip(plainly[0].parameters(), watched[0].parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


def test_a_training_is_watched_once(snapshot: Snapshots) -> None:
    with ts.training() as training:
        pass
    with raises(RuntimeError, "ts.training()") as raised, training:
        pass
    snapshot("training", raised.value)
    says(repr(training), "0 steps", "training.step()")
    snapshot("training", repr(training))


def test_steps_after_one_that_raised_and_was_caught_are_seen() -> None:
    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise ValueError("this step fails")

    model, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    fails, steps = Fails(other.parameters(), 0.1), torch.optim.SGD(model.parameters(), 0.1)
    with ts.training(model, [fails, steps]) as training:
        for _ in range(4):
            steps.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            with contextlib.suppress(ValueError):
                fails.step()
            steps.step()
    assert training.steps == 4
