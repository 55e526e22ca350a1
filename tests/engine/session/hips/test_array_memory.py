from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import tapescope as ts
from tapescope.engine.memory.categories import Category

pytest.importorskip("autograd")

import autograd.numpy as np
import numpy
from autograd.extend import defvjp, primitive

from tapescope.engine.session.hips.levels import hips_levels
from tapescope.tests.says import Snapshots, raises, says

SIZE = 128
ARRAY = SIZE * SIZE * 8  # bytes
USES = 6


def fan_out(x: Any, z: Any) -> Any:
    for _ in range(USES):
        z = np.dot(x, z)
    return np.sum(z)


def tape() -> ts.types.HipsTape:
    return ts.hips.tape(fan_out, numpy.full((SIZE, SIZE), 0.01), numpy.ones((SIZE, SIZE)))


def test_the_levels_are_those_of_the_arrays_that_are_alive() -> None:
    run = ts.backward(tape(), policy="dfs", memory=True)
    timeline = run.timeline
    assert timeline is not None and timeline.basis == "measured" and timeline.graph.is_tape
    assert timeline.start_bytes == (USES - 1) * ARRAY + 8, "the products which formulas keep, and a scalar's gradient"
    assert timeline.end_bytes == USES * ARRAY, "autograd's nodes keep them; the gradient is new"
    assert {timeline.category_at(number) for number in timeline.grads} == {Category.GRADIENT}
    saved = [storage for storage in timeline if storage.category is Category.SAVED]
    assert {storage.nbytes for storage in saved} == {ARRAY} and len(saved) == USES - 1
    assert {keeper.slot for storage in saved for keeper in storage.kept_by if keeper.kind == "saved"} == {"B"}
    assert saved[0].made_by.source is not None and saved[0].made_by.source.function == "fan_out"


def test_the_peak_is_autograds_own_but_for_what_its_loop_goes_on_holding() -> None:
    given = tape()
    timeline = ts.backward(given, policy="dfs", memory=True).timeline
    assert timeline is not None
    _, own = hips_levels(fan_out, numpy.full((SIZE, SIZE), 0.01), numpy.ones((SIZE, SIZE)))
    assert 0 <= own.peak_bytes - timeline.peak_bytes <= 2 * ARRAY


@pytest.mark.parametrize(
    ("accumulate", "release", "more"), [("list", "eager", USES - 3), ("list", "never", 2 * USES - 3)]
)
def test_what_waits_in_a_list_and_what_is_never_let_go_is_named_and_counted(
    accumulate: Any, release: Any, more: int
) -> None:
    usual = ts.backward(tape(), policy="dfs", memory=True).timeline
    timeline = ts.backward(tape(), policy="dfs", memory=True, accumulate=accumulate, release=release).timeline
    assert usual is not None and timeline is not None
    assert timeline.peak_bytes - usual.peak_bytes == more * ARRAY
    event, place = timeline.peak_event, timeline.peak_place
    alive = [timeline.category_at(number, event, place) for number in timeline.alive()]
    assert alive.count(Category.LISTED) > USES // 2
    assert (alive.count(Category.CONSUMED) > 0) is (release == "never")


def test_a_workspace_is_what_a_task_took_besides_and_gave_back() -> None:
    def loss(x: Any) -> Any:
        return np.sum(np.tanh(x))

    timeline = ts.backward(ts.hips.tape(loss, numpy.ones((SIZE, SIZE))), policy="dfs", memory=True).timeline
    assert timeline is not None
    workspaces = [storage for storage in timeline if storage.category is Category.WORKSPACE]
    assert workspaces and all(storage.born == storage.died for storage in workspaces)
    assert all(storage.nbytes % ARRAY < 16 << 10 for storage in workspaces)


def test_a_measured_run_is_saved_and_says_what_its_peak_is(tmp_path: Path) -> None:
    run = ts.backward(tape(), policy="dfs", memory=True, trace="cheap")
    loaded = ts.load(run.save(tmp_path / "run.tape.json"))
    assert loaded.timeline is not None and run.timeline is not None
    assert loaded.timeline.levels == run.timeline.levels
    says(loaded.peak(), Category.SAVED.title, f"{USES - 1} × dot")


def test_measuring_leaves_tracing_as_it_was() -> None:
    ts.backward(tape(), memory=True)
    assert not tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        ts.backward(tape(), memory=True)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


def test_one_measurement_does_not_end_the_tracing_of_another(snapshot: Snapshots) -> None:
    inner: list[str] = []

    @primitive  # type: ignore[untyped-decorator]
    def nested(x: Any) -> Any:
        return x * 1.0

    def derivative(gradient: Any) -> Any:
        with raises(RuntimeError, "tape") as refused:
            ts.backward(tape(), memory=True)
        inner.append(str(refused.value))
        assert tracemalloc.is_tracing()
        return gradient

    defvjp(nested, lambda value, x: derivative)
    ts.backward(ts.hips.tape(lambda x: np.sum(nested(x)), numpy.ones(2)), memory=True)
    assert len(inner) == 1 and not tracemalloc.is_tracing()
    snapshot("backward", inner[0])
    ts.backward(tape(), memory=True)


def test_a_failed_measurement_ends_tracing() -> None:
    failing = ts.hips.tape(lambda x: np.sum(x), numpy.ones(2))
    failing.nodes[0].vjp = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        ts.backward(failing, memory=True)
    assert not tracemalloc.is_tracing()


def test_a_profile_of_a_tape_begins_with_the_forwards_first_array() -> None:
    plain = ts.backward(tape(), policy="dfs", memory=True).timeline
    timeline = ts.profile(tape, "dfs").timeline
    assert plain is not None and timeline is not None
    assert plain.before and not plain.forward_ns and plain.forward_peak_bytes is None
    assert timeline.before == 0 and timeline.levels[0] == 0 and timeline.forward_peak_bytes == USES * ARRAY
    forward = timeline.levels[: timeline.starts[0] + 1]
    assert [level // ARRAY for level in forward] == [*range(USES + 1), USES - 1, USES - 1], "each product, then the sum"
    assert timeline.start_bytes == plain.start_bytes and timeline.end_bytes == plain.end_bytes
    assert [peak // ARRAY for peak in timeline.task_peaks] == [peak // ARRAY for peak in plain.task_peaks]
    assert list(timeline.event_ns) == sorted(timeline.event_ns) and len(timeline.event_ns) == len(timeline.events)
    assert len(timeline.forward_ns) == timeline.starts[0] and timeline.forward_ns[0] == 0
    assert len(timeline.task_ns) == 2 * len(timeline.order)


def test_of_the_forward_it_says_what_made_what_and_what_it_took_besides() -> None:
    def loss(x: Any) -> Any:
        for _ in range(3):
            x = np.sin(numpy.ones((SIZE, SIZE)) * 0.5) + x
        return np.sum(x)

    run = ts.profile(lambda: ts.hips.tape(loss, numpy.ones((SIZE, SIZE))), "dfs")
    assert run.timeline is not None
    forward = [storage for storage in run.timeline if storage.born < 0 and storage.category is not Category.BUFFER]
    assert {storage.made_by.operation.name for storage in forward if storage.made_by.operation} == {"add"}
    assert {storage.category for storage in forward} == {Category.FORWARD, Category.WORKSPACE}
    assert all(storage.died == -1 for storage in forward), "a sum keeps nothing"


def test_what_else_keeps_an_array_of_the_forward_is_told_apart() -> None:
    kept = []

    def loss(x: Any) -> Any:
        kept.append(np.tanh(x))  # of no use for the value
        return np.sum(x * 2)

    run = ts.profile(lambda: ts.hips.tape(loss, numpy.ones((SIZE, SIZE))), "dfs")
    assert run.timeline is not None and run.footprints is not None and not run.footprints.unsure
    (held,) = [storage for storage in run.timeline if storage.died is None and storage.category is Category.FORWARD]
    assert held.nbytes == ARRAY and [keeper.kind for keeper in held.kept_by] == ["user"]
    assert held.made_by.operation is not None and held.made_by.operation.name == "tanh"


def test_the_last_tape_of_a_profile_is_followed_and_another_measured_from_its_backward_on() -> None:
    earlier = tape()
    assert ts.profile(lambda: (tape(), tape())[1]).timeline.before == 0
    assert ts.profile(lambda: (tape(), tape())[0]).timeline.before == USES - 1
    assert ts.profile(lambda: earlier).timeline.before == USES - 1
    assert not tracemalloc.is_tracing()


def test_a_forward_that_raises_leaves_nothing_at_work() -> None:
    def loss(x: Any) -> Any:
        np.dot(x, x)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        ts.profile(lambda: ts.hips.tape(loss, numpy.ones((SIZE, SIZE))))
    assert not tracemalloc.is_tracing()
    assert ts.profile(tape).timeline.before == 0
