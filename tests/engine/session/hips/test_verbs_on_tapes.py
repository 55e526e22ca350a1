"""Verbs on tapes: predictions before a run, predictions from a measured run, compare, profile and find_nan."""

from __future__ import annotations

from typing import Any

import pytest

import tapescope as ts
from tapescope.engine.memory.categories import Category
from tapescope.widgets.deck.deck import Deck

pytest.importorskip("autograd")

import autograd.numpy as np
import numpy

from tapescope.tests.says import Snapshots, raises, says

PROGRAMS = ["rnn", "fan_out", "elementwise", "needless"]


def close(predicted: ts.types.Timeline, measured: ts.types.Timeline | None) -> bool:
    """But for what Python's own objects take."""
    assert measured is not None
    return abs(predicted.peak_bytes - measured.peak_bytes) <= max(16 << 10, measured.peak_bytes // 100)


def recorded(name: str) -> ts.types.HipsTape:
    fun, args = ts.workload(name).in_numpy()
    return ts.hips.tape(fun, *args)


@pytest.mark.parametrize("policy", ["dfs", "heap", "bfs"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_before_a_backward_its_memory_is_known_with_what_the_forward_left(name: str, policy: str) -> None:
    tape = recorded(name)
    predicted = ts.simulate(tape.graph, policy)
    measured = ts.backward(tape, policy=policy, memory=True).timeline
    assert measured is not None
    assert predicted.start_bytes == measured.start_bytes
    assert predicted.end_bytes == measured.end_bytes
    assert close(predicted, measured)
    assert predicted.estimates


def test_a_prediction_for_a_tape_tells_what_it_counts(snapshot: Snapshots) -> None:
    tape = recorded("rnn")
    snapshot("simulate", ts.simulate(tape.graph, "dfs").estimates[0])


def widened(x: Any) -> Any:
    return np.sum(x.astype(numpy.float32) * np.ones(3))


def test_a_watch_for_upcasts_on_a_tape_names_what_the_value_has_and_no_cast() -> None:
    session = ts.debug(ts.hips.tape(widened, np.ones(3)), policy="dfs")
    session.watch("upcast")
    session.run()
    says(session.stopped, "multiply", "float64", "float32")
    assert "PyTorch" not in str(session.stopped)


@pytest.mark.parametrize("name", PROGRAMS)
def test_after_a_measured_run_any_other_order_is_predicted(name: str) -> None:
    tape = recorded(name)
    run = ts.backward(tape, policy="bfs", memory=True)
    assert run.footprints is not None and run.footprints.basis == "calibrated"
    for policy in ("dfs", "heap", "bfs"):
        measured = ts.backward(tape, policy=policy, memory=True).timeline
        predicted = ts.simulate(run.graph, policy, run.footprints)
        assert close(predicted, measured)


def test_a_live_deck_of_a_tape_shows_the_memory_that_a_run_measures() -> None:
    tape = recorded("rnn")
    measured = ts.backward(tape, policy="dfs", memory=True).timeline
    assert measured is not None
    deck = Deck(ts.types.Stepper(tape, policy="dfs"), policy="dfs", retain_graph=True)
    try:
        (_, shown), *_ = deck.compare(["dfs"]).timelines.items()
    finally:
        deck.close()
    assert close(shown, measured)
    saved = {number for number in shown.alive(0) if shown.category_at(number) is Category.SAVED}
    assert sum(shown.nbytes[number] for number in saved) == measured.start_bytes - 4, "and a scalar's gradient"


def test_formulas_that_users_defined_are_not_called_for_a_prediction(snapshot: Snapshots) -> None:
    from autograd.extend import defvjp, primitive

    called = []
    doubled = primitive(lambda x: x * 2.0)
    defvjp(doubled, lambda ans, x: lambda g: called.append(1) or g * 2.0)
    tape = ts.hips.tape(lambda x: np.sum(doubled(x)), numpy.ones(64))
    timeline = ts.simulate(tape.graph)
    assert not called
    snapshot("simulate", "\n".join(timeline.estimates))


def test_profile_and_compare_take_a_function_that_records_a_tape() -> None:
    fun, args = ts.workload("fan_out").in_numpy()

    def make_tape() -> ts.types.HipsTape:
        return ts.hips.tape(fun, *args)

    run = ts.profile(make_tape, "dfs")
    assert run.engine == "direct" and run.footprints is not None and run.peak_bytes == run.timeline.peak_bytes
    found = ts.compare(make_tape, ["dfs", "bfs"], accumulate=["inplace", "list"], repetitions=1)
    rows = {row.policy: row for row in found.rows}
    assert rows["dfs, list"].peak_bytes > 1.5 * rows["dfs"].peak_bytes
    assert close(rows["dfs"].timeline, run.timeline)


def test_find_nan_finds_what_a_tape_made(snapshot: Snapshots) -> None:
    def forward(x: Any) -> Any:
        return np.sum(np.log(x) * 2.0)

    def backward(x: Any) -> Any:
        return np.sum(np.sqrt(x * 2.0))

    with numpy.errstate(all="ignore"):
        found = ts.find_nan(lambda: ts.hips.tape(forward, numpy.array([1.0, -1.0])))
        assert found.where == "forward" and found.operation == "log"
        says(found.sentences[0], "forward", "NaN", "log", "test_verbs_on_tapes.py", "1 of 2")
        snapshot("find_nan", found.sentences[0])
        found = ts.find_nan(lambda: ts.hips.tape(backward, numpy.array([1.0, 0.0])))
        assert found.where == "backward" and found.operation == "sqrt"
    assert not ts.find_nan(lambda: ts.hips.tape(backward, numpy.ones(2)))


def test_find_nan_looks_at_each_value_of_a_tape_not_at_their_sum(snapshot: Snapshots) -> None:
    def doubled(x: Any) -> Any:
        return x * 2.0

    with raises(RuntimeError, "doubled", "(10,)", "grad_tensors="):
        ts.find_nan(lambda: ts.hips.tape(doubled, numpy.full(10, 5e307)))
    with numpy.errstate(all="ignore"):
        found = ts.find_nan(lambda: ts.hips.tape(doubled, numpy.array([1.0, 1e308, -1e308])))
    assert (found.where, found.operation) == ("forward", "multiply")
    says(found.sentences[0], "doubled", "inf", "multiply", "2 of 3")
    snapshot("find_nan", found.sentences[0])


def test_what_needs_torch_refuses_a_tape_by_name() -> None:
    with raises(TypeError, "make_loss()", "ts.profile"):
        ts.plan_recompute(lambda: recorded("fan_out"))  # type: ignore[arg-type, return-value]
    with raises(NotImplementedError, 'engine="direct"'):
        ts.find_nan(lambda: recorded("fan_out"), engine="native")  # type: ignore[arg-type, return-value]
