"""What is being done is told on one line, where somebody sees it, and only of what takes a while."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor

import tapehead as th
from tapehead.engine.words import told_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Notebook = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
WEIGHT = torch.ones(2, requires_grad=True)
VERBS = {"comparing: ": th.compare, "trying orders: ": th.order_dependent, "measuring: ": th.advise}


def make_loss() -> Tensor:
    return (WEIGHT * WEIGHT).sum()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_line, "_AFTER_S", 0.0)


@pytest.mark.parametrize("said", VERBS)
@pytest.mark.usefixtures("at_once")
def test_what_takes_long_tells_a_terminal_what_it_does_and_takes_the_line_away(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    VERBS[said](make_loss)
    written = stream.getvalue()
    assert said in written and "\n" not in written
    assert written.rpartition("\r")[0].rpartition("\r")[2].strip() == ""


@pytest.mark.usefixtures("at_once")
def test_in_a_notebook_it_is_not_among_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, wrong = Notebook(), Notebook()
    monkeypatch.setattr("sys.stdout", seen)
    monkeypatch.setattr("sys.stderr", wrong)
    th.compare(make_loss)
    assert "comparing: " in seen.getvalue() and wrong.getvalue() == ""


@pytest.mark.usefixtures("at_once")
def test_a_pipe_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    th.compare(make_loss)
    assert stream.getvalue() == ""


def test_who_asks_is_told_and_no_line_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    heard: list[str] = []
    th.compare(make_loss, progress=heard.append)
    assert heard and stream.getvalue() == ""


def test_what_is_quick_needs_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(told_line, "_AFTER_S", 1e9)
    th.compare(make_loss)
    assert stream.getvalue() == ""
