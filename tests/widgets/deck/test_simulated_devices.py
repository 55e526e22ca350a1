"""Simulated devices as a deck: a queue, a lane and a clock for each device, as `ts.makespan` scheduled them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tapescope as ts
from tapescope.engine.studies.gantt import MakespanReport
from tapescope.tests.says import says
from tapescope.widgets.deck.simulated_devices import SimulatedDevices, devices_document


@pytest.fixture(scope="module")
def report() -> MakespanReport:
    program = ts.workload("two_devices")
    with ts.capture():
        loss = program.build(near_layers=3, far_layers=2)[1]()
    return ts.makespan(loss, policies=["heap", "bfs"], device_of=program.device_of)


def test_each_task_is_on_its_simulated_device_at_its_simulated_time(report: MakespanReport) -> None:
    content = devices_document(report.rows).content
    assert content["devices"] == ["cpu", "cuda:0"] and content["queues"] == "per device"
    assert content["is_simulated"] and content["position"] == 0
    for schedule, row in zip(content["schedules"], report.rows, strict=True):
        assert (schedule["policy"], schedule["order"]) == (row.policy, list(row.order))
        says(schedule["memory_note"], "durations=run")
        clock = schedule["clock"]
        for place, task in enumerate(row.order):
            assert content["devices"][content["tasks"]["device"][task]] == row.device_of[task]
            assert (clock["start"][place], clock["duration"][place]) == (
                row.bars[task].start_ns,
                row.bars[task].elapsed_ns,
            )


def test_the_devices_of_the_gradients_stay_those_of_this_process(report: MakespanReport) -> None:
    assert {meta["device"] for meta in devices_document(report.rows).metas} == {"cpu"}
    assert report.best.graph.devices == {torch.device("cpu")}


def test_one_schedule_or_several_become_a_deck_and_a_page(report: MakespanReport, tmp_path: Path) -> None:
    for result, policies in ((report, 2), (report["bfs"], 1)):
        deck = result.deck()
        assert isinstance(deck, SimulatedDevices) and deck.moment().ran == 0
        says(repr(deck), "SimulatedDevices", "heap" if policies == 2 else "bfs")
        deck.close()
        assert result.save_html(tmp_path / f"{policies}.html").stat().st_size > 100_000


def test_a_users_policy_has_a_tab(report: MakespanReport) -> None:
    policy = ts.Policy("oldest", "the earliest created first", key=lambda task, arrival: (task.id,))
    gantt = ts.makespan(report.best.graph, policy, device_of=ts.workload("two_devices").device_of)
    (schedule,) = devices_document([gantt]).content["schedules"]
    assert (schedule["policy"], schedule["order"]) == ("oldest", list(gantt.order))
