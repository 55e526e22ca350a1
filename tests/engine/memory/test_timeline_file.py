"""Saving and loading runs with a timeline: nothing is lost, nothing of the file is trusted."""

from __future__ import annotations

import copy
import dataclasses
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tapescope as ts
from tapescope.engine.api.profile import profile
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.timeline import BlockLevels, Maker, Timeline
from tapescope.tests.says import Snapshots, raises

from ..backward_programs import random_program
from ..comparing import ENGINES
from ..strange_files import change_somewhere

IN_NO_FILE = ("graph", "makers", "began_ns", "tensors")  # clock and tensors of the process say nothing to another one
COLUMNS = [field.name for field in dataclasses.fields(Timeline) if field.name not in IN_NO_FILE]


def profiled_run(trace: Any = None) -> ts.Run:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    kept = []

    def make_loss() -> torch.Tensor:
        kept.append(hidden := model(torch.randn(8, 4)))
        with torch.no_grad():
            target = hidden.exp()
        return torch.nn.functional.mse_loss(hidden, target)

    return profile(make_loss, trace=trace)


def assert_same(timeline: Timeline, loaded: Timeline) -> None:
    assert loaded.began_ns is None
    for name in COLUMNS:
        mine, theirs = getattr(timeline, name), getattr(loaded, name)
        assert (tuple(mine) == theirs) if name == "changes" else mine == theirs, name
    assert (timeline.peak_bytes, timeline.peak_task, timeline.start_bytes, timeline.end_bytes) == (
        loaded.peak_bytes,
        loaded.peak_task,
        loaded.start_bytes,
        loaded.end_bytes,
    )
    assert timeline.category_levels == loaded.category_levels
    for storage, twin in zip(timeline, loaded, strict=True):
        assert dataclasses.replace(storage, made_by=twin.made_by) == twin
        made, also = storage.made_by, twin.made_by
        assert (made.task, made.module, made.variable) == (also.task, also.module, also.variable)
        assert (made.operation and made.operation.name) == (also.operation and also.operation.name)
        assert (made.source and made.source.short) == (also.source and also.source.short)
        assert (made.source and made.source.code()) == (also.source and also.source.code())
    of_tasks = [{task.operation: task.id for task in each.graph.tasks} for each in (timeline, loaded)]
    assert [of_tasks[0].get(maker.operation) for maker in timeline.makers] == [
        of_tasks[1].get(maker.operation) for maker in loaded.makers
    ], "the operation of a task is that very operation"


@pytest.mark.parametrize("trace", [None, "cheap"])
def test_a_timeline_comes_back_with_a_trace_and_without(trace: Any, tmp_path: Path) -> None:
    run = profiled_run(trace)
    assert run.timeline is not None and run.timeline.peak_bytes > 0
    loaded = ts.load(run.save(tmp_path / "run.json"))
    assert loaded.timeline is not None and (loaded.trace is None) == (trace is None)
    assert loaded.timeline.graph is loaded.graph and loaded.peak_bytes == run.peak_bytes
    assert loaded.footprints is None
    assert_same(run.timeline, loaded.timeline)


def test_operations_that_made_no_task_come_back_too(tmp_path: Path) -> None:
    run = profiled_run()
    loaded = ts.load(run.save(tmp_path / "run.json"))
    assert run.timeline is not None and loaded.timeline is not None
    operations = {maker.operation for maker in loaded.timeline.makers if maker.operation is not None}
    without = operations - {task.operation for task in loaded.graph.tasks}
    (target,) = (operation for operation in without if operation.name == "torch.Tensor.exp")
    assert target.source is not None and target.source.code() == ("            target = hidden.exp()",)
    assert {maker.module for maker in loaded.timeline.makers} >= {None, "0", "1", "2", "3"}


@given(st.integers(0, 10**6), st.sampled_from(["heap", "bfs", "dfs"]), st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_timeline_of_any_program_comes_back(tmp_path: Path, seed: int, policy: str, with_forward: bool) -> None:
    if with_forward:
        run = profile(lambda: random_program(seed)[1], policy)
    else:
        run = ts.backward(random_program(seed)[1], policy=policy, memory=True)
    loaded = ts.load(run.save(tmp_path / "run.json"))
    assert run.timeline is not None and loaded.timeline is not None
    assert_same(run.timeline, loaded.timeline)


def test_what_no_measurement_has_comes_back(tmp_path: Path) -> None:
    run = profiled_run()
    assert run.timeline is not None
    made = Maker(2, None, ""), *run.timeline.makers[1:]
    timeline = dataclasses.replace(
        run.timeline, basis="dry run", estimates=("workspace is unknown", "ä"), makers=made, device="cuda:1"
    )
    timeline = dataclasses.replace(timeline, inputs=timeline.inputs[:0], event_ns=timeline.event_ns[:0])
    loaded = ts.load(dataclasses.replace(run, timeline=timeline).save(tmp_path / "run.json")).timeline
    assert loaded is not None and loaded.makers[0] == Maker(2, None, "")
    assert_same(timeline, loaded)


def with_blocks(run: ts.Run) -> ts.Run:
    assert run.timeline is not None
    places = range(len(run.order))
    columns = (array("q", [high + place for place in places]) for high in (100, 512, 2**21))
    blocks = BlockLevels(*columns, peak_before=700)
    return dataclasses.replace(run, timeline=dataclasses.replace(run.timeline, blocks=blocks))


def test_what_the_allocator_took_comes_back(tmp_path: Path) -> None:
    run = with_blocks(profiled_run())
    loaded = ts.load(run.save(tmp_path / "run.json"))
    assert run.timeline is not None and run.timeline.blocks is not None and loaded.timeline is not None
    assert_same(run.timeline, loaded.timeline)
    path = run.save(tmp_path / "run.json")
    content = json.loads(path.read_text())
    del content["timeline"]["blocks"]  # as files were before
    path.write_text(json.dumps(content))
    older = ts.load(path).timeline
    assert older is not None and older.blocks is None


@pytest.mark.parametrize(
    ("key", "value", "facts"),
    [
        ("requested", [1], ['"timeline.blocks.requested"', 1]),
        (("requested", 0), 2**30, ['"timeline.blocks.requested"']),
        (("allocated", -1), 2**30, ['"timeline.blocks.allocated"']),
        (("reserved", 0), -1, ['"timeline.blocks.reserved"']),
        ("peak_before", -1, ['"timeline.blocks.peak_before"', -1]),
        ("peak_before", None, ['"timeline.blocks.peak_before"']),
    ],
)
def test_blocks_that_can_not_be_are_refused(
    key: Any, value: Any, facts: list[object], tmp_path: Path, snapshot: Snapshots
) -> None:
    path = with_blocks(profiled_run()).save(tmp_path / "run.json")
    content = json.loads(path.read_text())
    blocks = content["timeline"]["blocks"]
    if isinstance(key, tuple):
        blocks[key[0]][key[1]] = value
    else:
        blocks[key] = value
    path.write_text(json.dumps(content))
    with raises(ValueError, *facts) as raised:
        ts.load(path)
    if key == ("requested", 0):
        snapshot("load", raised.value)


def test_an_order_that_is_not_the_runs_comes_back(tmp_path: Path) -> None:
    run = profiled_run()
    loaded = ts.load(dataclasses.replace(run, order=run.order[:-1]).save(tmp_path / "run.json"))
    assert run.timeline is not None and loaded.timeline is not None and loaded.order != loaded.timeline.order
    assert_same(run.timeline, loaded.timeline)


@pytest.mark.parametrize("engine", ENGINES)
def test_files_without_a_timeline_load(engine: str, tmp_path: Path) -> None:
    path = ts.backward(random_program(1)[1], engine=engine, trace="cheap").save(tmp_path / "run.json")
    assert ts.load(path).timeline is None
    content = json.loads(path.read_text())
    del content["timeline"]  # as tapescope wrote files before it measured memory
    path.write_text(json.dumps(content))
    run = ts.load(path)
    assert run.timeline is None and run.trace is not None
    with raises(ValueError, "memory=True", "ts.profile(make_loss)"):
        run.peak_bytes  # noqa: B018


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = with_blocks(profiled_run()).save(tmp_path_factory.mktemp("saved") / "run.json")
    return path, json.loads(path.read_text())


@pytest.mark.parametrize(
    ("key", "value", "facts"),
    [
        ("device", "toaster", ['"timeline.device"', "'toaster'"]),
        ("device", 0, ['"timeline.device"']),
        ("basis", "guessed", ['"timeline.basis"', "'guessed'", "measured", "calibrated", "dry run"]),
        ("estimates", [1], ['"timeline.estimates"']),
        ("order", [0, 0], ['"timeline.order"']),
        ("before", 10**6, ['"timeline.before"', 1000000]),
        ("before", -1, ['"timeline.before"', -1]),
        ("events", [], ['"timeline.events"', 0]),
        (("events", 0), 3, ['"timeline.events"', 0, 3]),
        (("events", 0), ~0, ['"timeline.events"', 0, -1]),
        (("events", 1), 0, ['"timeline.events"', 1, 0]),
        (("events", 0), 10**6, ['"timeline.events"', 10**6]),
        ("starts", [0], ['"timeline.starts"', 1]),
        (("starts", 0), 10**6, ['"timeline.starts"', 10**6]),
        (("starts", -1), 0, ['"timeline.starts"']),
        (("nbytes", 0), -1, ['"timeline.nbytes"', -1]),
        (("nbytes", 0), 2**60, ['"timeline.nbytes"', 2**60]),
        (("categories", 0), "PASSING", ['"timeline.categories"', "'PASSING'"]),
        (("born_as", 0), 99, ['"timeline.born_as"', 99]),
        ("born_as", [], ['"timeline.born_as"', 0]),
        (("change_event", 0), 10**6, ['"timeline.change_event"', 10**6]),
        (("change_event", -1), 0, ['"timeline.change_event"']),
        (("change_storage", 0), 10**6, ['"timeline.change_storage"', 10**6]),
        (("change_category", 0), 99, ['"timeline.change_category"', 99]),
        (("maker_task", 0), 10**6, ['"timeline.maker_task"', 10**6]),
        (("maker_operation", 0), 10**6, ['"timeline.maker_operation"', 10**6]),
        (("maker_module", 0), 10**6, ['"timeline.maker_module"', 10**6]),
        ("modules", [1], ['"timeline.modules"']),
        (("operation_source", 0), 10**6, ['"timeline.operation_source"', 10**6]),
        (("sources", 0), [1], ['"timeline.sources"', 4]),
        (("saved_storage", 0), 10**6, ['"timeline.saved_storage"', 10**6]),
        (("saved_task", 0), 10**6, ['"timeline.saved_task"', 10**6]),
        (("saved_slot", 0), 10**6, ['"timeline.saved_slot"', 10**6]),
        ("saved_slot", [], ['"timeline.saved_slot"', 0]),
        ("held", [0, 0], ['"timeline.held"']),
        ("held", [10**6], ['"timeline.held"', 10**6]),
        (("grad_task", 0), 10**6, ['"timeline.grad_task"', 10**6]),
        (("grad_storage", 0), 10**6, ['"timeline.grad_storage"', 10**6]),
        ("inputs", [0], ['"timeline.inputs"', 1, 0]),
        (("inputs", 0), 10**6, ['"timeline.inputs"', 10**6]),
        ("event_ns", [0], ['"timeline.event_ns"', 1, 0]),
        ("event_ns", ["now"], ['"timeline.event_ns"']),
    ],
)
def test_what_contradicts_itself_is_refused_and_named(
    saved: tuple[Path, Any], key: Any, value: Any, facts: list[object]
) -> None:
    refused(saved, key, value, *facts)


def test_each_refusal_has_its_text(saved: tuple[Path, Any], snapshot: Snapshots) -> None:
    cases: list[tuple[Any, Any]] = [
        ("device", 0),
        ("basis", "guessed"),
        ("estimates", [1]),
        ("order", [0, 0]),
        ("before", -1),
        ("events", []),
        (("events", 0), 3),
        ("starts", [0]),
        (("starts", 0), 10**6),
        (("starts", -1), 0),
        (("categories", 0), "PASSING"),
        (("change_event", 0), 10**6),
        (("sources", 0), [1]),
        ("inputs", [0]),
        ("event_ns", ["now"]),
    ]
    snapshot("load", "\n".join(refused(saved, key, value) for key, value in cases))


def refused(saved: tuple[Path, Any], key: Any, value: Any, *facts: object) -> str:
    path, content = saved
    content = copy.deepcopy(content)
    if isinstance(key, tuple):
        content["timeline"][key[0]][key[1]] = value
    else:
        content["timeline"][key] = value
    path.write_text(json.dumps(content))
    with raises(ValueError, *facts) as raised:
        ts.load(path)
    return str(raised.value)


@pytest.mark.parametrize("column", ["events", "nbytes", "maker_task", "saved_slot", "inputs", "basis", "held"])
def test_a_column_that_is_missing_is_named(saved: tuple[Path, Any], column: str) -> None:
    path, content = saved
    content = copy.deepcopy(content)
    del content["timeline"][column]
    path.write_text(json.dumps(content))
    with raises(ValueError, f'"timeline.{column}"'):
        ts.load(path)


def test_a_change_of_a_storage_that_is_not_alive_is_refused(saved: tuple[Path, Any]) -> None:
    path, content = saved
    content = copy.deepcopy(content)
    timeline = content["timeline"]
    dead = ~next(number for number in timeline["events"] if number < 0)
    after = timeline["events"].index(~dead) + 1
    timeline["change_storage"], timeline["change_event"], timeline["change_category"] = [dead], [after], [0]
    path.write_text(json.dumps(content))
    with raises(ValueError, f"storage {dead}", after):
        ts.load(path)
    timeline["change_event"] = [after - 1]
    path.write_text(json.dumps(content))
    assert ts.load(path).timeline is not None


def test_bytes_beyond_what_can_be_added_are_refused(saved: tuple[Path, Any]) -> None:
    path, content = saved
    content = copy.deepcopy(content)
    timeline, born = content["timeline"], 1025
    timeline["nbytes"] = [2**53 - 1] * born
    timeline["born_as"], timeline["before"], timeline["events"] = [0] * born, born, []
    path.write_text(json.dumps(content))
    with raises(ValueError, '"timeline.nbytes"'):
        ts.load(path)


@given(st.data())
def test_whatever_is_changed_in_a_timeline_it_is_refused_or_can_be_looked_at(
    saved: tuple[Path, Any], data: Any
) -> None:
    path, content = saved
    content = copy.deepcopy(content)
    change_somewhere(content["timeline"], data)
    path.write_text(json.dumps(content))
    try:
        timeline = ts.load(path).timeline
    except ValueError:
        return
    if timeline is None:
        return
    assert repr(timeline)
    highest = [sum(levels) for levels in zip(*timeline.category_levels.values(), strict=True)]
    assert not highest or highest == list(timeline.task_peaks)
    assert timeline.peak_bytes == sum(timeline.nbytes[number] for number in timeline.alive())
    assert timeline.peak_task is None or timeline.graph.task(timeline.peak_task)
    assert timeline.forward_peak_bytes is None or timeline.forward_peak_bytes >= timeline.start_bytes
    for storage in timeline:
        assert (
            repr(storage)
            and storage.category in Category
            and (storage.made_by.source is None or storage.made_by.operation)
        )
        assert all(keeper.task is None or timeline.graph.task(keeper.task) for keeper in storage.kept_by)


def test_an_older_file_which_lists_a_category_that_no_storage_is_of_is_read(saved: tuple[Path, Any]) -> None:
    path, content = saved
    content = copy.deepcopy(content)
    content["timeline"]["categories"].append("parameter")
    path.write_text(json.dumps(content))
    timeline = ts.load(path).timeline
    assert timeline is not None
    assert {storage.category for storage in timeline} <= set(Category)
