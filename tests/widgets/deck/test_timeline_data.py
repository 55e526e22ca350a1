"""The data of the page's timeline: phases, devices, times of tasks, and lifetimes in rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.planning.simulate import simulate
from tapescope.engine.recording.run import Run
from tapescope.engine.studies.workloads import workload
from tapescope.tests.says import says
from tapescope.widgets.deck.page_data import Document, lifetime_rows, memory_content
from tapescope.widgets.deck.run_page_data import run_document

from ..models import Branches, forward

ROWS = ("name", "module", "count", "nbytes")


class Layers(nn.Module):
    """So many equal layers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(count)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).sum()


def profiled(count: int = 3, **more: Any) -> Run:
    model = Layers(count)
    return ts.profile(lambda: model(torch.randn(16, 8)), **more)


def content_of(run: Run) -> dict[str, Any]:
    return run_document(run).content


def test_a_profiled_run_has_its_forward_and_when_each_task_ran() -> None:
    run = profiled()
    assert run.trace is None and run.timeline is not None
    content = content_of(run)
    forward, backward = content["phases"]
    clock = content["schedules"][0]["clock"]
    assert (forward["name"], backward["name"]) == ("forward", "backward")
    assert len(clock["start"]) == len(clock["duration"]) == len(run.order)
    assert clock["start"][0] == 0 and clock["start"] == sorted(clock["start"])
    assert all(duration > 0 for duration in clock["duration"])
    assert backward["elapsed_ns"] == clock["start"][-1] + clock["duration"][-1] <= run.elapsed_ns
    columns = content["schedules"][0]["memory"]
    assert columns["forward_ns"] == sorted(columns["forward_ns"]) and columns["forward_ns"][0] == 0
    assert len(columns["forward_ns"]) == columns["starts"][0] and columns["before"] == 0


def test_what_is_done_between_forward_and_backward_takes_no_time() -> None:
    """A collector that has a lot to do there does not make the forward longer."""
    run = profiled()
    timeline = run.timeline
    assert timeline is not None
    start = timeline.starts[0]
    events = [event for event in range(start) if timeline.events[event] >= 0]
    before = timeline.forward_ns[-1]
    last = events[-1] if timeline.born_as[timeline.events[events[-1]]] != 1 else events[-2]
    for event in range(last + 1, start):
        timeline.event_ns[event] += 10**9
    del timeline.__dict__["forward_ns"]
    assert timeline.forward_ns[-1] == before == timeline.event_ns[last] - timeline.event_ns[0]


def test_of_a_backward_alone_there_is_no_forward() -> None:
    run = ts.backward(forward(Branches()), memory=True)
    content = content_of(run)
    assert [each["name"] for each in content["phases"]] == ["backward"]
    assert content["schedules"][0]["memory"]["forward_ns"] == []
    assert content["schedules"][0]["clock"] is not None, "measuring notes when tasks run"
    content = content_of(ts.backward(forward(Branches())))
    assert content["schedules"][0]["clock"] is None
    assert content["phases"] == [{"name": "backward", "elapsed_ns": pytest.approx(content["phases"][0]["elapsed_ns"])}]


def test_a_trace_tells_when_tasks_ran_and_pauses_between_steps_are_left_out() -> None:
    run = ts.backward(forward(Branches()), trace="off")
    clock = content_of(run)["schedules"][0]["clock"]
    assert run.trace is not None
    columns = run.trace.columns
    assert clock["start"] == [columns.started_ns[task] for task in run.order]
    with ts.debug(forward(Branches())) as session:
        session.step()
        time.sleep(0.3)
        session.run()
    stepped = content_of(session.result())["schedules"][0]["clock"]
    ends = [start + duration for start, duration in zip(stepped["start"], stepped["duration"], strict=True)]
    assert stepped["start"] == [0, *ends[:-1]]
    assert ends[-1] < 0.3e9


def test_a_thread_may_have_looked_at_the_clock_before_the_first_that_is_noted() -> None:
    run = ts.backward(forward(Branches()), trace="off")
    assert run.trace is not None
    first, second = run.order[:2]
    started, ended = run.trace.columns.started_ns, run.trace.columns.ended_ns
    started[first], ended[first] = started[second] + 1, ended[second]
    start = content_of(run)["schedules"][0]["clock"]["start"]
    assert start[:2] == [1, 0]


def test_times_come_back_from_a_file(tmp_path: Path) -> None:
    run = profiled(trace="off")
    loaded = ts.load(run.save(tmp_path / "run.json"))
    assert content_of(loaded)["schedules"][0]["clock"] == content_of(run)["schedules"][0]["clock"]
    assert content_of(loaded)["phases"] == content_of(run)["phases"]


def test_devices_are_a_list_and_tasks_have_its_numbers() -> None:
    loss = workload("two_devices").build()[1]()
    graph = ts.graph(loss)
    content = Document(graph, "two", "direct").content
    assert content["devices"] == sorted({str(device) for device in graph.devices})
    assert [content["devices"][number] for number in content["tasks"]["device"]] == [
        str(task.device) for task in graph.tasks
    ]


def test_what_equal_layers_made_is_one_row() -> None:
    run = profiled(3)
    assert run.timeline is not None
    rows = lifetime_rows(run.timeline)
    tanh = next(row for row in rows if row["name"] == "tanh")
    assert [tanh[name] for name in ROWS] == ["tanh", "layers.*.1", 3, 16 * 8 * 4]
    assert len(tanh["storages"]) == 3 and tanh["storages"] == sorted(tanh["storages"])
    says(tanh["kept_by"], "3 × TanhBackward0")
    grads = {(row["name"], row["module"], row["count"]) for row in rows if row["name"].endswith(".grad")}
    assert grads == {("weight.grad", "layers.*.0", 3), ("bias.grad", "layers.*.0", 3)}
    counted = [number for row in rows for number in row["storages"]]
    assert len(counted) == len(set(counted)), "a storage is in one row"


def test_of_many_equal_storages_the_first_born_and_the_last_freed_are_named() -> None:
    run = profiled(9)
    timeline = run.timeline
    assert timeline is not None
    tanh = next(row for row in lifetime_rows(timeline) if row["name"] == "tanh")
    made = [
        storage for storage in timeline if storage.made_by.operation and storage.made_by.operation.name.endswith("tanh")
    ]
    made = [storage for storage in made if storage.made_by.task is None]
    assert tanh["count"] == len(made) == 9
    last = max(made, key=lambda storage: storage.died or 0)
    assert tanh["storages"] == list(dict.fromkeys([made[0].number, last.number]))


def test_one_of_a_kind_keeps_the_name_of_its_module() -> None:
    run = profiled(1)
    assert run.timeline is not None
    tanh = next(row for row in lifetime_rows(run.timeline) if row["name"] == "tanh")
    assert (tanh["count"], tanh["module"]) == (1, "layers.0.1")


def test_predicted_memory_has_rows_and_no_forward() -> None:
    graph = ts.graph(forward(Branches()))
    content = memory_content(simulate(graph, "heap", dry_run(graph)))
    assert content["forward_ns"] == [] and content["rows"]
