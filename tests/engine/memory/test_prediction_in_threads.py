"""Predictions in several threads, and beside a measurement: they wait for each other, and give what they give alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory import dry_run
from tapescope.engine.memory import kernel_workspaces as kernel_runs
from tapescope.inspector.torch_private import allocators
from tapescope.inspector.torch_private.allocators import begin_recording, one_recording
from tapescope.tests.says import raises, says, says_none_of


def program(width: int) -> tuple[nn.Module, Tensor]:
    convolutions = [nn.Conv1d(width, width, 3, padding=1) for _ in range(3)]
    return nn.Sequential(*convolutions, nn.Softmax(-1), nn.Softmax(-1)), torch.randn(2, width, 28 + width)


def predicted(width: int) -> tuple[int, tuple[str, ...]]:
    model, rows = program(width)
    timeline = ts.simulate(ts.graph(model(rows).sum()))
    return timeline.peak_bytes, timeline.estimates


def test_in_several_threads_a_prediction_is_what_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {}
    for width in range(5, 13):
        model, rows = program(width)
        alone[width] = ts.profile(lambda: model(rows).sum()).peak_bytes
    monkeypatch.setattr(kernel_runs, "_found", {})
    with ThreadPoolExecutor(4) as threads:
        found = dict(zip(alone, threads.map(predicted, alone), strict=True))
    assert found == {width: (peak_bytes, ()) for width, peak_bytes in alone.items()}


def test_a_measurement_waits_for_the_predictions_of_another_thread() -> None:
    over, begun = Event(), Event()

    def predict() -> None:
        width = 20
        while not over.is_set():
            predicted(width := width + 1)
            begun.set()

    thread = Thread(target=predict)
    thread.start()
    try:
        begun.wait()
        model, rows = program(4)
        model(rows).sum().backward()  # makes .grad
        peaks = {ts.profile(lambda: model(rows).sum()).peak_bytes for _ in range(5)}
        with ts.record_steps():
            model(rows).sum().backward()
    finally:
        over.set()
        thread.join()
    assert peaks == {ts.profile(lambda: model(rows).sum()).peak_bytes}


def test_a_prediction_beside_a_measurement_waits_once_and_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_runs, "_found", {})
    monkeypatch.setattr(kernel_runs, "WAITS_S", 0.01)
    measurement = begin_recording("ts.measured")
    with ThreadPoolExecutor(1) as threads:
        _, estimates = threads.submit(predicted, 5).result()
        assert any("ts.measured" in each and kernel_runs.MEASURED in each for each in estimates)
    measurement.ended = True
    assert not predicted(5)[1]


def test_a_measurement_inside_of_another_is_refused_at_once() -> None:
    def nested() -> Tensor:
        with raises(RuntimeError, "ts.profile"):
            ts.profile(lambda: (torch.ones(2, requires_grad=True) * 2).sum())
        return (torch.ones(2, requires_grad=True) * 2).sum()

    ts.profile(nested)
    assert one_recording.holder is None and not allocators.profiler_is_on()


def test_a_measurement_that_was_never_closed_is_not_in_the_way_once_it_is_gone() -> None:
    caller = begin_recording("ts.first")
    with pytest.raises(RuntimeError, match="ts.first"):
        begin_recording("ts.second")
    del caller
    begin_recording("ts.second").ended = True


def test_what_a_node_without_values_says_is_told_and_a_mistake_of_ours_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.ones(3, requires_grad=True)
    graph = ts.graph((x * 2).exp().sum())

    def fails(error: Exception) -> None:
        def call(*given: object) -> None:
            raise error

        monkeypatch.setattr(dry_run, "call_node", call)

    fails(RuntimeError("no data, see\nthe rest"))
    (said,) = [each for each in ts.simulate(graph).estimates if "RuntimeError" in each]
    says(said, "no data, see")
    says_none_of(said, "the rest")
    fails(KeyError("our own"))
    with pytest.raises(KeyError, match="our own"):
        ts.simulate(ts.graph((x * 3).exp().sum()))
