"""The values that a user's logger receives: each with its own step, without disturbing the loop's own logging."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam

import tapescope as ts
from tapescope.inspector.torch_private.tensors import LateTensor
from tapescope.tests.says import raises, says


class Board:
    """Takes what TensorBoard's SummaryWriter takes."""

    def __init__(self) -> None:
        self.scalars: dict[str, dict[int, float]] = defaultdict(dict)
        self.texts: list[tuple[str, str, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert type(value) is float and type(step) is int and step not in self.scalars[tag]
        self.scalars[tag][step] = value

    def add_text(self, tag: str, text: str, step: int) -> None:
        self.texts.append((tag, text, step))


class Bees:
    """Keeps rows as a run of wandb does: what is not committed waits for more of its step, and no step comes back."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.metrics: list[tuple[str, str | None]] = []
        self._waiting: dict[str, Any] = {}
        self.step = 0

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        if step is not None:
            assert step >= self.step, f"wandb drops step {step}: it is at {self.step}"
            if step > self.step:
                self.finish()
                self.step = step
        self._waiting.update(data)
        if commit or (commit is None and step is None):
            self.finish()
            self.step += 1

    def finish(self) -> None:
        if self._waiting:
            self.rows.append(self._waiting)
        self._waiting = {}


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.Tanh(), nn.Linear(16, 8)), nn.Linear(8, 1))


def train(model: nn.Module, steps: int, **options: Any) -> tuple[ts.types.Training, list[float], list[float]]:
    """Return the losses and total norms that the loop itself computes."""
    optimizer = Adam(model.parameters())
    losses, norms = [], []
    log: Callable[[int], None] = options.pop("log", lambda step: None)
    with ts.training(model, optimizer, every=4, **options) as training:
        for step in range(steps):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 1))
            loss.backward()
            losses.append(loss.item())
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            norms.append(float(nn.utils.get_total_norm(gradients)))
            optimizer.step()
            log(step)
    return training, losses, norms


def test_each_number_has_its_own_step() -> None:
    board = Board()
    training, losses, norms = train(perceptron(), 10, writer=board)
    assert board.scalars["tapescope/loss"] == dict(enumerate(losses))
    assert list(board.scalars["tapescope/gradient_norm"]) == [*range(10)]
    assert list(board.scalars["tapescope/gradient_norm"].values()) == pytest.approx(norms)
    assert board.scalars["tapescope/learning_rate"] == pytest.approx(dict.fromkeys(range(10), 0.001))
    ratios = training.norms.ratios[:, training.norms.modules.index("2")].tolist()
    assert board.scalars["tapescope/update_ratio/2"] == pytest.approx(dict(zip((0, 4, 8), ratios, strict=True)))


def test_it_is_told_while_the_loop_runs_and_a_step_late() -> None:
    board, known = Board(), []
    train(perceptron(), 6, writer=board, log=lambda step: known.append(len(board.scalars["tapescope/loss"])))
    assert known == [0, 0, 0, 1, 2, 3] or known == [0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("depth", "groups"), [(0, []), (1, ["0", "1", "2"]), (2, ["0", "1.1", "2"]), (9, ["0", "1.1", "2"])]
)
def test_modules_are_told_apart_as_deep_as_was_asked_for(depth: int, groups: list[str]) -> None:
    board = Board()
    train(perceptron(), 3, writer=board, depth=depth)
    found = [tag.removeprefix("tapescope/gradient_norm/") for tag in board.scalars if "gradient_norm/" in tag]
    assert found == groups
    whole = torch.tensor(list(board.scalars["tapescope/gradient_norm"].values()))
    parts = [torch.tensor(list(board.scalars[f"tapescope/gradient_norm/{each}"].values())) for each in groups]
    if parts:
        assert torch.allclose(torch.stack(parts).norm(dim=0), whole)


def test_no_more_than_a_hundred_modules_are_told_apart() -> None:
    model = nn.Sequential(*(nn.Sequential(*(nn.Linear(2, 2) for _ in range(6))) for _ in range(20)))
    board, optimizer = Board(), SGD(model.parameters(), 0.1)
    with ts.training(model, optimizer, writer=board, depth=2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert len([tag for tag in board.scalars if "gradient_norm/" in tag]) == 20


@pytest.mark.parametrize("counts", [True, False])
def test_a_run_of_wandb_keeps_its_own_steps(counts: bool) -> None:
    run = Bees()

    def log(step: int) -> None:
        run.log({"mine": step}, step=step if counts else None)

    _, losses, _ = train(perceptron(), 10, writer=run, log=log)
    run.log({"mine": 10}, step=11 if counts else None)
    run.finish()
    assert [row["mine"] for row in run.rows if "mine" in row] == [*range(11)]
    told = {row["tapescope/step"]: row["tapescope/loss"] for row in run.rows if "tapescope/loss" in row}
    assert told == dict(enumerate(losses))
    assert run.metrics == [("tapescope/step", None), ("tapescope/*", "tapescope/step")]


def test_findings_are_texts_and_nan_is_written_as_it_is() -> None:
    model, board = perceptron(), Board()
    optimizer = SGD(model.parameters(), 0.1)

    def loop() -> None:
        for step in range(6):
            optimizer.zero_grad()
            (model(torch.ones(2, 8)).sum() * (math.nan if step == 3 else 1.0)).backward()
            optimizer.step()

    with pytest.warns(UserWarning, match="ts.training"), ts.training(model, optimizer, writer=board) as training:
        loop()
    assert board.texts == [(f"tapescope/findings/{each.kind}", str(each), each.step) for each in training.findings]
    assert board.texts[0][0] == "tapescope/findings/non-finite" and board.texts[0][2] == 3
    assert math.isnan(board.scalars["tapescope/loss"][3])


def test_several_optimizers_have_a_tag_each() -> None:
    first, second, board = perceptron(), perceptron(), Board()
    optimizers = [SGD(first.parameters(), 0.1), SGD(second.parameters(), 0.2)]
    with ts.training([first, second], optimizers, writer=board):
        for _ in range(3):
            for model, optimizer in zip((first, second), optimizers, strict=True):
                optimizer.zero_grad()
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
    assert board.scalars["tapescope/learning_rate/SGD_1"] == pytest.approx(dict.fromkeys(range(3), 0.1))
    assert board.scalars["tapescope/learning_rate/SGD_2"] == pytest.approx(dict.fromkeys(range(3), 0.2))


def test_nothing_waits_for_numbers_that_have_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    come, board, known = [False], Board(), []
    monkeypatch.setattr(LateTensor, "is_ready", lambda self: come[0])

    def log(step: int) -> None:
        known.append(len(board.scalars["tapescope/loss"]))
        come[0] = step >= 4

    _, losses, _ = train(perceptron(), 8, writer=board, log=log)
    assert known[:5] == [0] * 5 and known[-1] > 3
    assert board.scalars["tapescope/loss"] == dict(enumerate(losses))


def test_a_loop_that_is_over_can_be_written_too() -> None:
    live, later, run = Board(), Board(), Bees()
    training, losses, _ = train(perceptron(), 10, writer=live)
    training.write_to(later)
    assert later.scalars == live.scalars and later.texts == live.texts
    training.write_to(run, depth=0)
    assert {row["tapescope/step"]: row["tapescope/loss"] for row in run.rows} == live.scalars["tapescope/loss"]
    assert len(run.rows) == len(losses)


def test_a_logger_that_raises_does_so_once_and_the_loop_goes_on() -> None:
    class Broken(Board):
        def add_scalar(self, tag: str, value: float, step: int) -> None:
            raise OSError("the disk is full")

    with pytest.warns(UserWarning, match="the disk is full"):
        training, losses, _ = train(perceptron(), 8, writer=Broken())
    assert len(losses) == 8 and training.norms.losses.shape[0] == 8
    assert [note for note in training.notes if "the disk is full" in note] == training.notes
    (note,) = training.notes
    says(note, "Writer", "OSError")


@pytest.mark.parametrize("writer", [3, "runs/", [], Board, {}, torch.ones(2)])
def test_what_is_no_logger_is_refused(writer: Any) -> None:
    with raises(TypeError, "writer", "add_scalar(tag, value, step)", "log(values, commit=)"):
        ts.training(writer=writer)
    with ts.training() as training:
        pass
    with raises(TypeError, "writer", "add_scalar(tag, value, step)"):
        training.write_to(writer)
    with raises(ValueError, "depth", -1):
        ts.training(depth=-1)


def test_tensorboard_reads_what_it_was_told(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    _, losses, _ = train(perceptron(), 10, writer=writer)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("tapescope/loss")] == [*enumerate(losses)]


def test_what_no_optimizer_steps_has_no_update_ratio() -> None:
    frozen, stepped = perceptron().requires_grad_(False), nn.Linear(1, 1)
    model = nn.ModuleDict({"frozen": frozen, "head": stepped, "other": nn.Linear(1, 1)})
    optimizers = [SGD(model[name].parameters(), lr=0.1) for name in ("head", "other")]
    board = Board()
    with ts.training(model, optimizers, writer=board, every=1):
        for step in range(4):
            optimizers[step % 2].zero_grad()
            model["head" if step % 2 == 0 else "other"](frozen(torch.ones(1, 8))).sum().backward()
            optimizers[step % 2].step()
    ratios = {tag: values for tag, values in board.scalars.items() if "update_ratio" in tag}
    assert ratios and not any("frozen" in tag for tag in ratios)
    assert all(0 < each < 1 for values in ratios.values() for each in values.values())
