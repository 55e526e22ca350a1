"""The progress of the search on one line, if somebody can see it."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.engine.recompute import plan_recompute as progress_line
from tapescope.engine.recompute.plan_recompute import progress_shown
from tapescope.engine.recompute.predicted_memory import RecomputedLevels
from tapescope.engine.recompute.solvers import FoundDrops
from tapescope.inspector.text import progress as told_line
from tapescope.tests.says import says

FOUND = FoundDrops(frozenset({1}), RecomputedLevels(3 * 2**20, 0, 0.0, []), 1_234, 2.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "_AFTER_S", 0.0)


def test_on_a_terminal_a_line_says_what_was_found_and_goes_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with progress_shown(None) as told:
        assert told is not None
        told(FOUND)
        says(stream.getvalue(), "1,234", "3.0 MiB")
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().rpartition("s")[2].strip() == ""


def test_in_a_notebook_it_is_not_among_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    told_of, wrong = kernel(), kernel()
    monkeypatch.setattr("sys.stdout", told_of)
    monkeypatch.setattr("sys.stderr", wrong)
    with progress_shown(None) as told:
        assert told is not None
        told(FOUND)
    says(told_of.getvalue(), "1,234")
    assert wrong.getvalue() == ""


@pytest.mark.parametrize("asked", [None, False])
def test_in_a_file_nothing_is_written(asked: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO() if asked is None else Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with progress_shown(asked) as told:
        assert told is None
    assert stream.getvalue() == ""


def test_who_asks_is_told_and_no_line_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    heard: list[FoundDrops] = []
    with progress_shown(heard.append) as told:
        assert told is not None
        told(FOUND)
    assert heard == [FOUND] and stream.getvalue() == ""


@pytest.mark.parametrize("asked", [False, lambda found: None])
def test_the_verbs_that_a_search_calls_say_nothing_where_another_is_told_or_nobody(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(told_line, "_AFTER_S", 0.0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    ts.plan_recompute(lambda: model(torch.ones(3, 2)).sum(), seconds=0.0, progress=asked)
    assert stream.getvalue() == ""
