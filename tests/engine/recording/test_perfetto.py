"""A trace for Perfetto and chrome://tracing keeps the rules of the Trace Event Format, and says what the run says.

What Perfetto asks of slices and arrows: https://perfetto.dev/docs/getting-started/other-formats. Its clock is whole
nanoseconds, into which microseconds are cut off.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

import tapescope as ts
from tapescope.__main__ import main
from tapescope.engine.recording.perfetto import TraceEvents
from tapescope.engine.recording.task_records import Trace
from tapescope.tests.says import Snapshots, raises, says

from ..graph_shapes import chain

Event = dict[str, Any]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Sequential(nn.Tanh(), nn.Linear(32, 8)), nn.Linear(8, 1))


@pytest.fixture
def make_loss(model: nn.Module) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        made: Tensor = model(torch.ones(4, 16)).square().mean()
        return made

    return loss


def events_of(path: Path) -> list[Event]:
    """The events of a file, all of which keep the rules."""
    packed = path.suffix == ".gz"
    content = json.loads(gzip.decompress(path.read_bytes()) if packed else path.read_bytes())
    assert set(content) == {"displayTimeUnit", "otherData", "traceEvents"}
    events: list[Event] = content["traceEvents"]
    _check(events)
    return events


def _ns(event: Event) -> int:
    return int(event["ts"] * 1000)


def _check(events: list[Event]) -> None:
    names = [each for each in events if each["ph"] == "M"]
    assert events[: len(names)] == names, "names come first"
    threads = {each["tid"]: each["args"]["name"] for each in names if each["name"] == "thread_name"}
    assert len(set(threads.values())) == len(threads)
    last, open_until = 0.0, dict.fromkeys(threads, 0)
    slices: dict[int, list[tuple[int, int]]] = defaultdict(list)
    counters: dict[str, set[str]] = {}
    arrows: dict[int, list[Event]] = defaultdict(list)
    for event in events[len(names) :]:
        assert {"ph", "name", "pid", "tid", "ts"} <= set(event) and event["pid"] == names[0]["pid"]
        assert isinstance(event["ts"], float) and event["ts"] >= last, "in order of time, from 0 on"
        last = event["ts"]
        if event["ph"] == "X":
            begin, end = _ns(event), _ns(event) + int(event["dur"] * 1000)
            assert event["tid"] in threads and end > begin >= open_until[event["tid"]], "slices do not overlap"
            open_until[event["tid"]] = end
            slices[event["tid"]].append((begin, end))
        elif event["ph"] == "C":
            numbers = event["args"].values()
            assert numbers and all(type(number) is int and number >= 0 for number in numbers)
            assert counters.setdefault(event["name"], set(event["args"])) == set(event["args"])
        else:
            assert event["ph"] in "sf" and (event["ph"] == "s") == ("bp" not in event)
            arrows[event["id"]].append(event)
    for start, end in arrows.values():
        assert (start["ph"], end["ph"], end["bp"]) == ("s", "f", "e") and start["ts"] < end["ts"]
        assert (start["cat"], start["name"]) == (end["cat"], end["name"])
        for each in (start, end):
            assert any(begin <= _ns(each) < until for begin, until in slices[each["tid"]]), "it is in a slice"


def of_kind(events: list[Event], category: str) -> list[Event]:
    return [each for each in events if each.get("cat") == category and each["ph"] == "X"]


def counter(events: list[Event], name: str) -> list[dict[str, int]]:
    return [each["args"] for each in events if each["ph"] == "C" and each["name"] == name]


def tracks(events: list[Event]) -> list[str]:
    return [each["args"]["name"] for each in events if each["name"] == "thread_name"]


def test_tasks_are_slices_of_real_time_with_what_the_run_says_of_them(
    make_loss: Callable[[], Tensor], tmp_path: Path
) -> None:
    run = ts.profile(make_loss, trace="off")
    events = events_of(run.save_perfetto(tmp_path / "run.perfetto.json"))
    tasks, trace, timeline = of_kind(events, "backward"), run.trace, run.timeline
    assert trace is not None and timeline is not None and tracks(events) == ["forward", "backward on cpu"]
    assert [each["args"]["task"] for each in tasks] == list(run.order)
    assert [each["args"]["ready"] for each in tasks] == list(run.queue_lengths)
    assert [each["args"]["why"] for each in tasks] == [record.reason for record in trace]
    assert [each["args"]["peak bytes"] for each in tasks] == list(timeline.task_peaks)
    took = [end - start for start, end in zip(timeline.task_ns[::2], timeline.task_ns[1::2], strict=True)]
    assert [each["dur"] for each in tasks] == pytest.approx([ns / 1000 for ns in took], abs=0.02)
    assert [each["tasks"] for each in counter(events, "ready")] == [*run.queue_lengths, 0]
    level, by_category = sorted({each["name"] for each in events if each["ph"] == "C"} - {"ready"}, key=len)
    assert "cpu" in level and "cpu" in by_category
    assert [each["bytes"] for each in counter(events, level)] == list(timeline.levels[1:])
    highest = [sum(each.values()) for each in counter(events, by_category)]
    assert highest == list(timeline.task_peaks)


def test_an_arrow_leads_from_each_operation_of_the_forward_to_its_tasks(
    make_loss: Callable[[], Tensor], tmp_path: Path
) -> None:
    with ts.capture():
        loss = make_loss()
    run = ts.backward(loss, trace="off")
    for made in (run, ts.profile(make_loss), ts.profile(make_loss, trace="off", engine="direct")):
        events = events_of(made.save_perfetto(tmp_path / "run.json"))
        forward, backward = of_kind(events, "forward"), of_kind(events, "backward")
        assert max(each["ts"] for each in forward) < min(each["ts"] for each in backward)
        starts = {each["id"]: each for each in events if each["ph"] == "s"}
        ends = {each["id"]: each for each in events if each["ph"] == "f"}
        assert len(ends) == len(backward) == len(made.order)
        for number, end in ends.items():
            operation, task = _slice_at(forward, starts[number]), _slice_at(backward, end)
            assert task["args"]["operation"] == operation["name"]
            assert task["args"].get("module") == operation["args"].get("module")


def _slice_at(slices: list[Event], arrow: Event) -> Event:
    found = [
        each for each in slices if each["tid"] == arrow["tid"] and each["ts"] <= arrow["ts"] < each["ts"] + each["dur"]
    ]
    assert len(found) == 1
    return found[0]


def test_a_run_from_a_file_has_no_forward_and_one_without_a_clock_says_so(
    make_loss: Callable[[], Tensor], tmp_path: Path, snapshot: Snapshots
) -> None:
    run = ts.profile(make_loss, trace="off")
    loaded = ts.load(run.save(tmp_path / "run.json"))
    events = events_of(loaded.save_perfetto(tmp_path / "loaded.perfetto.json"))
    assert tracks(events) == ["backward on cpu"] and not [each for each in events if each["ph"] in "sf"]
    path = ts.backward(make_loss()).save_perfetto(tmp_path / "plain.perfetto.json.gz")
    events = events_of(path)
    (track,) = tracks(events)
    assert track.startswith("backward on cpu, ")
    snapshot("save_perfetto", track)
    assert [each["ts"] for each in of_kind(events, "backward")] == [float(place) for place in range(len(run.order))]


def test_a_task_that_did_not_end_is_there(make_loss: Callable[[], Tensor], tmp_path: Path) -> None:
    with ts.types.Stepper(make_loss()) as session:
        session.step()
        session.step()
        run = session.result()
    events = events_of(run.save_perfetto(tmp_path / "run.json"))
    assert len(of_kind(events, "backward")) == 2 and counter(events, "ready")[-1]["tasks"] > 0


def test_steps_have_phases_memory_and_one_backward(
    model: nn.Module, make_loss: Callable[[], Tensor], tmp_path: Path, snapshot: Snapshots
) -> None:
    optimizer = Adam(model.parameters())
    with ts.record_steps(3) as steps:
        for _ in range(4):
            optimizer.zero_grad()
            make_loss().backward()
            optimizer.step()
    step = steps[1]
    events = events_of(step.save_perfetto(tmp_path / "step.json"))
    phases = of_kind(events, "step")
    assert [each["name"] for each in phases] == [each.name for each in step.timeline.phases]
    assert [sum(each.values()) for each in counter(events, "memory of cpu")] == list(step.timeline.levels)
    assert tracks(events) == ["step", "forward", "backward on cpu"]
    for category in ("forward", "backward"):
        inside = next(each for each in phases if each["name"] == category)
        for each in of_kind(events, category):
            assert inside["ts"] <= each["ts"] and each["ts"] + each["dur"] <= inside["ts"] + inside["dur"] + 50
    path = steps.save_perfetto(tmp_path / "steps.json")
    whole = events_of(path)
    assert [each["args"]["step"] for each in of_kind(whole, "step") if each["name"] == "optimizer"] == [0, 1, 2]
    assert len(of_kind(whole, "backward")) == len(step.run.order)
    snapshot("save_perfetto", json.loads(path.read_text())["otherData"]["step 0"])
    with raises(ValueError) as refused:
        ts.record_steps(3).save_perfetto(tmp_path / "none.json")
    snapshot("save_perfetto", refused.value)


def test_a_file_is_replaced_when_all_is_written(
    make_loss: Callable[[], Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.perfetto.json"
    path.write_text("before")
    run = ts.backward(make_loss())
    with monkeypatch.context() as broken:
        broken.setattr(TraceEvents, "in_order", lambda events: (1 // 0 for _ in range(2)))
        with pytest.raises(ZeroDivisionError):
            run.save_perfetto(path)
    assert path.read_text() == "before" and [*tmp_path.iterdir()] == [path]
    events_of(run.save_perfetto(str(path)))
    with raises(TypeError, "path", "int"):
        run.save_perfetto(3)  # type: ignore[arg-type]


def test_the_command_line_writes_one(
    make_loss: Callable[[], Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = ts.backward(make_loss(), trace="off").save(tmp_path / "run.tape.json")
    assert main(["view", str(saved), "--out", str(tmp_path / "run.perfetto.json")]) == 0
    says(capsys.readouterr().out, "run.perfetto.json", "ui.perfetto.dev")
    assert of_kind(events_of(tmp_path / "run.perfetto.json"), "backward")


def test_the_orders_are_not_compared_for_each_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ts.backward(chain(200), engine="direct", trace="cheap")
    order, reads = run.order, 0

    def counted(trace: Trace) -> tuple[int, ...]:
        nonlocal reads
        reads += 1
        return order

    monkeypatch.setattr(Trace, "order", property(counted))
    path = run.save_perfetto(tmp_path / "run.perfetto.json")
    assert 1 <= reads < 20 < len(order)
    assert sum(each["ph"] == "X" and "why" in each["args"] for each in events_of(path)) == len(order)
