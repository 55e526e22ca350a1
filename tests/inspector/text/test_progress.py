"""Progress is shown on one line, only if somebody can see it, and only for long tasks."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from unittest.mock import Mock, call

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.studies.accumulation_study import BY_HAND
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.text import progress as told_line
from tapescope.tests.says import Snapshots, says


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Notebook = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
WEIGHT = torch.ones(2, requires_grad=True)


def graph() -> ts.Graph:
    return ts.graph(make_loss())


def step() -> None:
    optimizer = torch.optim.SGD([WEIGHT], 0.0)
    make_loss().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def recorded() -> object:
    with ts.record_steps(steps=2) as steps:
        for _ in range(3):
            step()
    return steps


def fit() -> ts.types.Fit:
    def batch(size: int = 2) -> Tensor:
        return torch.ones(size, 2)

    return ts.fits(nn.Linear(2, 1), batch, torch.optim.SGD, "1kB", lambda model, batch: model(batch).sum())


VERBS: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "compare": (lambda: ts.compare(make_loss), ("bfs",)),
    "find_order_dependence": (lambda: ts.find_order_dependence(make_loss), ("bfs",)),
    "advise": (lambda: ts.advise(make_loss), ()),
    "profile": (lambda: ts.profile(make_loss), ()),
    "profile_step": (lambda: ts.profile_step(step), ("2nd",)),
    "record_steps": (recorded, ()),
    "find_nan": (lambda: ts.find_nan(make_loss), ("NaN", "3 tasks")),
    "find_unused": (lambda: ts.find_unused(make_loss, nn.Linear(1, 1)), ()),
    "find_batches": (lambda: ts.find_batches(make_loss()), ("3 tasks",)),
    "plan_order": (lambda: ts.plan_order(make_loss(), ["bfs", "heap"]), ("bfs (1 of 2)",)),
    "simulate": (lambda: ts.simulate(graph()), ("3 tasks",)),
    "makespan": (lambda: ts.makespan(graph(), policies=["bfs", "heap"]), ("bfs (1 of 2)",)),
    "dry_run": (lambda: ts.orders.dry_run(graph()), ("3 tasks",)),
    "fits": (fit, ("2",)),
    "largest_batch": (lambda: fit().largest_batch, ("81",)),
    "accumulation": (
        lambda: ts.studies.accumulation("needless", additions=2, repetitions=1),
        ("needless, float32", BY_HAND),
    ),
    "record_forward": (lambda: ts.record_forward(make_loss, repetitions=1), ()),
    "diff": (
        lambda: ts.diff(ts.backward(make_loss(), trace="cheap"), ts.backward(make_loss(), trace="cheap")),
        ("3",),
    ),
}
"""What takes long, and facts of what it tells meanwhile."""


def make_loss() -> Tensor:
    return (WEIGHT * WEIGHT).sum()


def lines_of(stream: io.StringIO) -> list[str]:
    """Return the successive texts of the line."""
    return [*dict.fromkeys(text.strip() for text in stream.getvalue().split("\r") if text.strip())]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_line, "_AFTER_S", 0.0)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.usefixtures("at_once")
def test_what_takes_long_tells_a_terminal_what_it_does_and_takes_the_line_away(
    verb: str, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots
) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    run, facts = VERBS[verb]
    run()
    written = stream.getvalue()
    assert lines_of(stream) and "\n" not in written
    says(written, *facts)
    snapshot("progress", "\n".join(lines_of(stream)[:2]))
    assert written.rpartition("\r")[0].rpartition("\r")[2].strip() == ""


@pytest.mark.usefixtures("at_once")
def test_in_a_notebook_it_is_not_among_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, wrong = Notebook(), Notebook()
    monkeypatch.setattr("sys.stdout", seen)
    monkeypatch.setattr("sys.stderr", wrong)
    ts.compare(make_loss)
    says(seen.getvalue(), "bfs")
    assert wrong.getvalue() == ""


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("has_page", [True, False])
def test_a_notebook_that_runs_without_a_page_stores_no_line(has_page: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """nbconvert, nbclient and papermill send their requests with allow_stdin=False, as they cannot answer input()."""
    shell = Mock(get_parent=lambda: {"content": {"allow_stdin": has_page}})
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    seen = Notebook()
    monkeypatch.setattr("sys.stdout", seen)
    monkeypatch.setattr("sys.stderr", Notebook())
    ts.compare(make_loss)
    assert bool(seen.getvalue()) == has_page


@pytest.mark.usefixtures("at_once")
def test_a_pipe_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    ts.compare(make_loss)
    assert stream.getvalue() == ""


def test_who_asks_is_told_and_no_line_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    heard: list[str] = []
    ts.compare(make_loss, progress=heard.append)
    assert heard and stream.getvalue() == ""


def test_what_is_quick_needs_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(told_line, "_AFTER_S", 1e9)
    ts.compare(make_loss)
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("at_once")
def test_a_search_that_tells_somebody_else_writes_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Terminal(), Terminal()
    monkeypatch.setattr(sys.modules["tapescope.engine.planning.plan_order"], "_EXACT_TASKS", 0)
    _, make_loss = workload("lstm_cell").build(steps=20)
    for stream, progress in zip(streams, (None, lambda found: None), strict=True):
        monkeypatch.setattr("sys.stderr", stream)
        ts.plan_order(make_loss(), "bfs", seconds=0.1, progress=progress)
    told, quiet = map(lines_of, streams)
    assert {*quiet} < {*told}, "the search itself is told to one alone"


class Waited(Terminal):
    """A terminal on which the first words are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        if text.strip():
            self.written.set()
        return super().write(text)


@pytest.mark.parametrize("ends", ["well", "in an error"])
def test_a_forward_that_never_ends_is_told_while_it_runs_and_no_thread_is_left(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Waited()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(told_line, "_AFTER_S", 0.01)

    def long() -> Tensor:
        assert stream.written.wait(60)
        if ends != "well":
            raise ValueError("in here")
        return make_loss()

    before = threading.active_count()
    if ends == "well":
        ts.profile(long)
    else:
        with pytest.raises(ValueError, match="in here"):
            ts.profile(long)
    assert threading.active_count() == before
    assert stream.getvalue().endswith("\r")


def test_a_thread_waits_only_where_somebody_looks_and_no_time_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Mock()  # a list would be put back
    before = threading.active_count()

    def counted() -> Tensor:
        noted(threading.active_count() - before)
        return make_loss()

    ts.profile(counted)  # this is not a terminal
    monkeypatch.setattr("sys.stderr", Terminal())
    ts.find_nan(counted)
    assert noted.mock_calls == [call(0), call(1)] and threading.active_count() == before
    ts.compare(counted, "heap", repetitions=1)
    assert noted.mock_calls[2:].count(call(0)) == len(noted.mock_calls) - 2 > 0


@pytest.mark.usefixtures("at_once")
def test_what_a_verb_calls_says_nothing_between_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    ts.compare(make_loss, "heap", repetitions=1)
    told = lines_of(stream)
    says(stream.getvalue(), "heap")
    assert len({line.partition(": ")[0] for line in told}) == 1, "ts.profile, which it calls, tells nothing"
    with told_line.quiet():
        ts.profile(make_loss)
    assert lines_of(stream) == told


def test_the_time_left_is_that_of_the_median_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 20.0, 80.0, 85.0])
    monkeypatch.setattr(told_line, "perf_counter", lambda: next(clock))
    heard: list[str] = []
    tell = told_line.TimeLeft(heard.append, 10)
    tell("first")
    tell("second")
    tell("slow", 2)  # 60 s for a weight of 2
    tell("fourth")
    tell("fifth")
    assert heard[0] == "first"
    says(heard[1], "about 90 s left")
    says(heard[2], "about 80 s left")
    says(heard[3], "about 60 s left")
    says(heard[4], "about 50 s left")
