"""Values that carry an earlier step's graph are reported before PyTorch raises; errors of a plain loop name the
writes."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import tapescope as ts
from tapescope.engine.training.pending_graphs import Forwards
from tapescope.tests.says import Snapshots, says, says_none_of

SECOND_TIME = "retain_graph=True"  # of PyTorch's two errors
MODIFIED = "inplace operation"
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def line(text: str) -> str:
    """`file:line` of this line of this file, which begins with so many spaces."""
    return f"test_freed_graphs.py:{LINES.index(text) + 1}"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ts.training")
        yield


def recurrent(cell: nn.LSTMCell, optimizer: SGD, detach: bool) -> None:
    hidden = None
    for _ in range(4):
        optimizer.zero_grad()
        h, c = cell(torch.randn(2, 4), hidden)
        h.pow(2).sum().backward()
        optimizer.step()
        hidden = (h.detach(), c.detach()) if detach else (h, c)


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


def test_a_state_that_is_carried_on_is_named_with_its_step_before_the_error(snapshot: Snapshots) -> None:
    cell = nn.LSTMCell(4, 4)
    optimizer = SGD(cell.parameters(), 0.1)
    with ts.training(cell, optimizer) as training, pytest.raises(RuntimeError, match=SECOND_TIME) as raised:
        recurrent(cell, optimizer, detach=False)
    (found,) = [each for each in training.findings if each.kind == "second backward"]
    assert found.step == 1
    says(found, "step 0", "recurrent()", "hidden[0]", "hidden[1]", "hidden[0].detach()")
    says(notes(raised.value), "hidden = tuple(each.detach() for each in hidden)")
    snapshot("training", found)
    assert found.at is not None and found.at.startswith("test_freed_graphs.py:")
    assert not training.notes


def test_one_that_is_detached_is_none() -> None:
    cell = nn.LSTMCell(4, 4)
    with ts.training() as training:
        recurrent(cell, SGD(cell.parameters(), 0.1), detach=True)
    assert not training.findings and not training.notes


trainer = SimpleNamespace(state=torch.zeros(3))


def test_it_is_found_without_modules_too() -> None:
    w = torch.ones(3, requires_grad=True)
    optimizer = SGD([w], 0.1)

    def train() -> None:
        for _ in range(3):
            trainer.state = (trainer.state * w).tanh()
            trainer.state.exp().sum().backward()
            optimizer.step()

    trainer.state = torch.zeros(3)
    with ts.training() as training, pytest.raises(RuntimeError, match=SECOND_TIME):
        train()
    (found,) = [each for each in training.findings if each.kind == "second backward"]
    says(found, "MulBackward0", "TanhBackward0")


def test_two_losses_over_one_part_with_the_graph_kept_are_right() -> None:
    model = nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), 0.1)
    total = torch.zeros(())
    with ts.training() as training:
        for _ in range(3):
            out = model(torch.randn(2, 4)).exp()
            out.sin().sum().backward(retain_graph=True)
            loss = out.cos().sum()
            loss.backward()
            optimizer.step()
            total = total + loss
    assert not [each for each in training.findings if each.kind == "second backward"] and not training.notes


def step(made: nn.Module, judge: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    g_loss = judge(made(torch.randn(8, 4))).mean()
    judge(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    g_loss.backward()


def test_an_optimizers_write_is_named_in_pytorchs_own_error(snapshot: Snapshots) -> None:
    made, judge = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(judge.parameters(), foreach=True)
    with ts.training(), pytest.raises(RuntimeError, match=MODIFIED) as raised:
        step(made, judge, optimizer)
    says(notes(raised.value), "mat2", "Adam.step()", line("    optimizer.step()"))
    snapshot("training", notes(raised.value))


def test_who_saved_it_and_the_parameter_have_their_names() -> None:
    made, judge = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(judge.parameters(), foreach=True)
    with ts.training([made, judge]), pytest.raises(RuntimeError, match=MODIFIED) as raised:
        step(made, judge, optimizer)
    says(
        notes(raised.value),
        "Sequential",
        line("    g_loss = judge(made(torch.randn(8, 4))).mean()"),
        "mat2",
        "Sequential.2.weight",
    )


def spoil() -> Tensor:
    y = (torch.ones(3, requires_grad=True) * 2).exp()
    loss = y.sin().sum()
    with torch.no_grad():
        y.mul_(2)
    return loss


def test_every_other_write_is_named_where_it_is_asked_for(snapshot: Snapshots) -> None:
    with ts.training(writes=True), pytest.raises(RuntimeError, match=MODIFIED) as raised:
        spoil().backward()
    says(notes(raised.value), "mul_", line("        y.mul_(2)"))
    snapshot("training", notes(raised.value))
    with ts.training(), pytest.raises(RuntimeError, match=MODIFIED) as raised:
        spoil().backward()
    says(notes(raised.value), "version 1", line("        y.mul_(2)"))
    says_none_of(next(each for each in raised.value.__notes__ if "version 1" in each), "mul_")
    with pytest.raises(RuntimeError, match=MODIFIED) as raised:
        spoil().backward()
    assert notes(raised.value) == ""


def test_forwards_are_freed_without_the_garbage_collector_while_a_graph_is_alive() -> None:
    forwards = Forwards()
    module = nn.Linear(2, 1)
    forwards.begins()
    result = module(torch.ones(2))
    forwards.ends(module, result, 0)
    (alive,) = forwards.alive()
    assert alive.title == "Linear"
    known = weakref.ref(forwards)
    gc.disable()
    try:
        del forwards, alive
        assert known() is None and result.grad_fn is not None
    finally:
        gc.enable()
