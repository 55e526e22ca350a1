"""Saving and loading runs: nothing is lost, nothing of the file is trusted."""

from __future__ import annotations

import copy
import gzip
import json
import math
import random
import re
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tapescope as ts
from tapescope.engine.recording import run_file as run_reader
from tapescope.engine.recording import run_file as trace_file
from tapescope.inspector.graph.json_file import ColumnWriter, read_section
from tapescope.tests.says import Snapshots, raises, says, says_none_of
from tapescope.tests.warm_python import WarmPython

from ..backward_programs import random_program
from ..comparing import ENGINES
from ..strange_files import change_somewhere
from .test_task_records import POLICIES, last_ready

FIELDS = (
    "started_ns",
    "elapsed_ns",
    "thread",
    "device",
    "by_hand",
    "queue_before",
    "queue_after",
    "reason",
    "inputs",
    "outputs",
    "hooks",
    "edits",
)


def captured_run(level: str | None = "full", policy: Any = "dfs", engine: str = "direct") -> ts.Run:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    with ts.capture():
        loss = model(torch.randn(8, 4)).square().mean()
    loss.register_hook(lambda gradient: gradient * math.inf)
    return ts.backward(loss, policy=policy, engine=engine, trace=level)


def assert_same(run: ts.Run, loaded: ts.Run) -> None:
    for name in ("policy", "engine", "order", "planned", "elapsed_ns", "queue_lengths"):
        assert getattr(run, name) == getattr(loaded, name)
    graph, other = run.graph, loaded.graph
    assert (graph.edges, graph.roots, graph.calls, graph.raised) == (
        other.edges,
        other.roots,
        other.calls,
        other.raised,
    )
    for task, twin in zip(graph.tasks, other.tasks, strict=True):
        for name in ("id", "name", "kind", "sequence_nr", "inputs", "parameter", "call"):
            assert getattr(task, name) == getattr(twin, name)
        assert (task.operation and task.operation.name) == (twin.operation and twin.operation.name)
        assert (task.source and task.source.short) == (twin.source and twin.source.short)
        assert (task.source and task.source.code()) == (twin.source and twin.source.code())
        assert graph.describe(task) == other.describe(twin)
    assert (run.trace is None) == (loaded.trace is None)
    if run.trace is not None and loaded.trace is not None:
        assert (run.trace.policy, run.trace.level) == (loaded.trace.policy, loaded.trace.level)
        assert run.trace.order == loaded.trace.order
        for record, twin_record in zip(run.trace, loaded.trace, strict=True):
            for name in FIELDS:
                assert getattr(record, name) == getattr(twin_record, name), name


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("level", [None, "off", "cheap", "full"])
def test_a_run_comes_back_as_it_was(engine: str, level: str | None, tmp_path: Path) -> None:
    run = captured_run(level, engine=engine)
    assert run.save(tmp_path / "run.tape.json") == tmp_path / "run.tape.json"
    assert [path.name for path in tmp_path.iterdir()] == ["run.tape.json"]
    assert_same(run, ts.load(tmp_path / "run.tape.json"))


@given(
    st.integers(0, 10**6),
    st.sampled_from([*POLICIES, last_ready]),
    st.sampled_from(ENGINES),
    st.sampled_from([None, "off", "cheap", "full"]),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_program_comes_back_as_it_was(
    tmp_path: Path, seed: int, policy: Any, engine: str, level: str | None
) -> None:
    run = ts.backward(random_program(seed)[1], policy=policy, engine=engine, trace=level)
    assert_same(run, ts.load(run.save(tmp_path / "run.json")))


def test_a_session_driven_by_hand_comes_back_with_what_was_replaced(tmp_path: Path) -> None:
    pick = random.Random(0)
    session = ts.debug(random_program(3)[1], policy="heap", trace="cheap")
    while session.ready:
        session.step(pick.choice(session.ready))
    trace = session.trace
    order = tuple(session.order)
    run = ts.Run(session.graph, "heap", "direct", order, order, 5, trace)
    loaded = ts.load(run.save(tmp_path / "run.json"))
    assert_same(run, loaded)
    assert any(record.choice == "hand" for record in loaded.trace)


def test_a_loaded_graph_can_be_drawn_and_exported_and_shows_saved_lines(tmp_path: Path) -> None:
    run = captured_run()
    graph = ts.load(run.save(tmp_path / "run.json")).graph
    assert graph.nodes == () and graph.saved == ()
    assert graph.to_svg() == run.graph.to_svg()
    mine, theirs = json.loads(graph.to_json()), json.loads(run.graph.to_json())
    assert {**mine, "saved": 0} == {**theirs, "saved": 0}
    source = next(task.source for task in graph.tasks if task.source)
    assert source.code() == ("        loss = model(torch.randn(8, 4)).square().mean()",)
    assert source.code(3, 3) == source.code()


def test_files_named_by_a_file_are_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("not to be shown\n")
    path = captured_run().save(tmp_path / "run.json")
    content = json.loads(path.read_text())
    content["graph"]["sources"][0] = [str(secret), 1, "f", None]
    path.write_text(json.dumps(content))
    assert all(task.source.code() == () for task in ts.load(path).graph.tasks if task.source)


def test_a_large_file_is_compressed_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = captured_run()
    plain = run.save(tmp_path / "plain.json")
    assert plain.read_bytes().startswith(b"{")
    monkeypatch.setattr(trace_file, "_LARGE", 1000)
    packed = run.save(tmp_path / "packed.json")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert_same(run, ts.load(packed))
    assert run.save(tmp_path / "again.json").read_bytes() == packed.read_bytes()


def test_numbers_that_javascript_has_not_are_texts_and_all_is_json(tmp_path: Path) -> None:
    path = captured_run().save(tmp_path / "run.json")
    content = json.loads(path.read_text(encoding="ascii"), parse_constant=lambda name: pytest.fail(name))
    assert "18446744073709551615" in content["graph"]["sequence_nr"]
    numbers: list[Any] = [content]
    for each in numbers:
        if isinstance(each, dict | list):
            numbers.extend(each.values() if isinstance(each, dict) else each)
    assert all(abs(each) < 2**53 for each in numbers if isinstance(each, int))
    assert content["trace"]["statistics"]["edges"][0] == "-inf"


def test_an_error_while_saving_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = captured_run()
    path = run.save(tmp_path / "run.json")
    before = path.read_bytes()

    def full_disk(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(trace_file, "_write_trace", full_disk)
    with pytest.raises(OSError, match="no space left"):
        run.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("large", [False, True])
def test_a_file_that_is_cut_off_anywhere_is_refused(
    large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(trace_file, "_LARGE", 0)
    path = captured_run("cheap").save(tmp_path / "run.json")
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with raises(ValueError, path):
            ts.load(path)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        pytest.param(b"", ("empty",), id="empty"),
        pytest.param(b"[1, 2]", (), id="list"),
        pytest.param(b"{}", ('"format"', "tapescope.trace"), id="no format"),
        pytest.param(
            b'{"format": "tapescope.graph", "version": 1}', ('"format"', "tapescope.trace"), id="another format"
        ),
        pytest.param(b'{"format": "tapescope.trace"}', ('"version"',), id="no version"),
        pytest.param(b'{"format": "tapescope.trace", "version": 2}', ('"version"', 2, 1), id="newer"),
        pytest.param(b'{"format": "tapescope.trace", "version": true}', ('"version"',), id="version of another type"),
        pytest.param(b'{"format": "tapescope.trace", "version": 1} {}', (), id="longer"),
        pytest.param(b"\xff\xfe\x00", ("utf-8", "0xff"), id="UTF-16"),
        pytest.param(b"\x1f\x8b\x08\x00", (), id="half of a gzip"),
        pytest.param(b"\x80\x04\x95", ("utf-8", "0x80"), id="pickle"),
        pytest.param(b'{"a":' + b"[" * 100_000, (), id="many lists"),
    ],
)
def test_foreign_and_newer_files_are_refused(
    content: bytes, facts: tuple[object, ...], tmp_path: Path, snapshot: Snapshots
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with raises(ValueError, path, *facts) as caught:
        ts.load(path)
    snapshot("load", caught.value)


def test_a_small_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots
) -> None:
    monkeypatch.setattr(run_reader, "_LARGEST", 10_000)
    path = tmp_path / "run.json"
    path.write_bytes(gzip.compress(b" " * 1_000_000))
    with raises(ValueError, "10,000 bytes") as caught:
        ts.load(path)
    snapshot("load", caught.value)
    path.write_bytes(b" " * 1_000_000)
    with raises(ValueError, "10,000 bytes"):
        ts.load(path)


@pytest.mark.parametrize("large", [False, True])
def test_a_small_file_is_loaded_in_little_memory(large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(trace_file, "_LARGE", 0)
    path = captured_run().save(tmp_path / "run.json")
    tracemalloc.start()
    try:
        ts.load(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 50 * 2**20


def test_a_dtype_is_not_asked_of_torch_which_might_import_it(tmp_path: Path, fresh_python: WarmPython) -> None:
    path = captured_run(None).save(tmp_path / "run.json")
    content = json.loads(path.read_text())
    content["graph"]["metas"][0][1] = "_inductor"
    path.write_text(json.dumps(content))
    program = f"""
import sys, tapescope
before = set(sys.modules)
try:
    tapescope.load({str(path)!r})
except ValueError as error:
    print(error, *(name for name in set(sys.modules) - before if name.startswith("torch._inductor")))
"""
    ran = fresh_python.run("-c", program)
    says(ran.stdout, "'_inductor'")
    says_none_of(ran.stdout, "torch._inductor")


CONTRADICTIONS: list[tuple[tuple[Any, ...], Any, tuple[str, ...]]] = [
    (("graph", "edge_next_task", 0), 10**6, ('"graph.edge_next_task"',)),
    (("graph", "edge_input", 0), 9, ('"graph.edge_input"',)),
    (("graph", "edge_task", 0), 5, ('"graph.edge_output"', "output=0")),
    (("graph", "roots"), [], ('"graph.roots"',)),
    (("graph", "roots"), [[0]], ('"graph.roots"',)),
    (("graph", "kinds", 0), "sorcery", ('"graph.kinds"', "'sorcery'")),
    (("graph", "metas", 0), [[2], "float7", "cpu"], ('"graph.metas"', "'float7'")),
    (("graph", "metas", 0), [[2], "nn", "cpu"], ('"graph.metas"', "'nn'")),
    (("graph", "metas", 0), [[2], "float32", "toaster"], ('"graph.metas"', "'toaster'")),
    (("graph", "metas", 0), [[2], "float32", 0], ('"graph.metas"',)),
    (("graph", "metas", 0), [[-2], "float32", "cpu"], ('"graph.metas"',)),
    (("graph", "sequence_nr", 0), "many", ('"graph.sequence_nr"',)),
    (("graph", "calls", 0), ["", "M", 0, 0], ('"graph.calls"',)),
    (("order",), [0, 0], ('"order"',)),
    (("engine",), "steam", ('"engine"', "native", "direct")),
    (("trace", "started_ns"), [1], ('"trace.started_ns"',)),
    (("trace", "input_row", 0), 10**6, ('"trace.input_row"',)),
    (("trace", "arrived", 0), 10**6, ('"trace.arrived"',)),
    (("trace", "terms"), [], ('"trace.terms"',)),
    (("trace", "terms", 0), [3, "dfs", None, True], ('"trace.terms"',)),
    (("trace", "terms", 0, 3), False, ('"trace.terms"',)),
    (("trace", "labels", 0), ["#", "colour"], ('"trace.labels"',)),
    (("trace", "forms", 0), [[[2], "float32", "cpu", "nn"]], ('"trace.forms"',)),
    (("trace", "forms"), [], ('"trace.forms"',)),
    (("trace", "edits"), [[0, 99, None, -1, None, -1]], ('"trace.edits"',)),
    (("trace", "statistics", "low", 0), "low", ('"trace.statistics.low"',)),
    (("trace", "statistics", "bin_count", 0), 64, ('"trace.statistics.bin_count"',)),
    (("trace", "statistics", "edges", 3), -5, ('"trace.statistics.edges"',)),
]


@pytest.mark.parametrize(
    ("where", "value", "facts"),
    CONTRADICTIONS,
    ids=[f"{'.'.join(map(str, where))}={json.dumps(value)}" for where, value, _ in CONTRADICTIONS],
)
def test_what_contradicts_itself_is_refused_and_named(
    where: tuple[Any, ...], value: Any, facts: tuple[object, ...], tmp_path: Path, snapshot: Snapshots
) -> None:
    path = captured_run().save(tmp_path / "run.json")
    content = json.loads(path.read_text())
    inner = content
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    path.write_text(json.dumps(content))
    with raises(ValueError, *facts) as caught:
        ts.load(path)
    snapshot("load", str(caught.value).replace(torch.__version__, "TORCH"))


def test_edges_that_form_a_circle_are_refused(tmp_path: Path, snapshot: Snapshots) -> None:
    path = captured_run().save(tmp_path / "run.json")
    content = json.loads(path.read_text())
    graph = content["graph"]
    last = len(graph["edge_task"]) - 1
    graph["edge_next_task"][0] = graph["edge_task"][last]
    path.write_text(json.dumps(content))
    with raises(ValueError, path) as caught:
        ts.load(path)
    snapshot("load", caught.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = captured_run().save(tmp_path_factory.mktemp("saved") / "run.json")
    return path, json.loads(path.read_text())


@given(st.data())
def test_whatever_is_changed_in_a_file_it_is_refused_or_can_be_looked_at(saved: tuple[Path, Any], data: Any) -> None:
    path, content = saved
    content = copy.deepcopy(content)
    change_somewhere(content, data)
    path.write_text(json.dumps(content))
    try:
        run = ts.load(path)
    except ValueError:
        return
    assert run.queue_lengths is not None and repr(run)
    for record in run.trace or ():
        assert repr(record)
        for name in FIELDS:
            getattr(record, name)


MEBIBYTES = 3


FILLED = [
    (("unknown",), "[],"),
    (("graph", "calls"), "0,"),
    (("trace", "statistics", "bins"), "0,"),
    *(
        pytest.param(*each, marks=pytest.mark.slow)
        for each in [
            (("unknown",), "0,"),
            (("unknown",), '"a",'),
            (("trace", "unknown"), "0.5,"),
            (("order",), "0,"),
            (("graph", "name"), "0,"),
            (("graph", "names"), '"a",'),
            (("graph", "calls"), "[],"),
            (("graph", "sequence_nr"), "0,"),
            (("trace", "key"), "0,"),
            (("trace", "labels"), '["",null],'),
            (("trace", "statistics", "low"), "0.5,"),
            (("policy",), ""),
        ]
    ),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("where", "filler"), FILLED)
def test_whatever_a_large_file_is_full_of_it_takes_three_times_its_size(
    where: tuple[str, ...], filler: str, saved: tuple[Path, Any], tmp_path: Path
) -> None:
    content = copy.deepcopy(saved[1])
    inner = content
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = "here"
    count = MEBIBYTES * 2**20 // max(len(filler), 1)
    full = f"[{(filler * count).rstrip(',')}]" if filler else f'"{"x" * count}"'
    path = tmp_path / "large.json"
    path.write_text(json.dumps(content).replace('"here"', full))
    tracemalloc.start()
    try:
        with suppress(ValueError):
            ts.load(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < (3 * MEBIBYTES + 24) * 2**20


def test_a_key_that_nobody_asks_for_is_passed_over(saved: tuple[Path, Any], tmp_path: Path) -> None:
    path, newer = tmp_path / "run.json", tmp_path / "newer.json"
    path.write_text(json.dumps(saved[1]))
    newer.write_text(json.dumps({"unknown": [{"a": ["]", '"', "\\"]}, 1e5], **saved[1]}))
    assert_same(ts.load(path), ts.load(newer))
    for broken in ("[1, {]}", "[1, 2", '"', "tru", "", "[[]]]"):
        path.write_text('{"unknown": ' + broken + ', "format": "tapescope.trace"}')
        with raises(ValueError, path) as caught:
            ts.load(path)
        assert not isinstance(caught.value, UnicodeDecodeError)
        says_none_of(caught.value, '"unknown"', '"format"')


@pytest.mark.parametrize("number", [2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**400])
def test_a_rank_may_be_any_number_that_a_column_can_hold(number: int, tmp_path: Path) -> None:
    path = captured_run("off", policy="heap").save(tmp_path / "run.json")
    content = json.loads(path.read_text())
    assert content["trace"]["key"], "heap has keys"
    content["trace"]["key"][0] = number
    path.write_text(json.dumps(content))
    if number < 2**63:
        assert ts.load(path).queue_lengths
    else:
        with raises(ValueError, '"trace.key"'):
            ts.load(path)


@pytest.mark.parametrize("value", ["x" * 5000, 10**4000, [["x" * 5000]], {"x" * 5000: 0}, [10**4000]])
def test_a_refusal_does_not_repeat_what_is_long(value: Any, saved: tuple[Path, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    todo: list[tuple[Any, Any]] = [(saved[1], key) for key in saved[1]]
    for section in ("graph", "trace"):
        todo += [(saved[1][section], key) for key in saved[1][section]]
    todo += [(saved[1]["trace"]["statistics"], key) for key in saved[1]["trace"]["statistics"]]
    for inner, key in todo:
        before = inner[key]
        for changed in [value, *([[value, *before[1:]]] if isinstance(before, list) else [])]:
            inner[key] = changed
            path.write_text(json.dumps(saved[1]))
            said = ""
            try:
                ts.load(path)
            except ValueError as refused:
                said = str(refused).replace(str(path), "")
            assert "x" * 101 not in said and not re.search(r"\d{101}", said) and len(said) < 400
        inner[key] = before


def test_columns_of_any_length_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tapescope.inspector.graph.json_file._CHUNK", 3)
    for length in range(8):
        pieces: list[str] = []
        writer = ColumnWriter(pieces.append)
        with writer.object(), writer.object("inner"):
            writer.column("whole", range(length))
            writer.floats("broken", [math.nan, math.inf, -math.inf, 0.5][:length])
        section = read_section(" " + "".join(pieces) + "\n").section("inner")
        assert list(section.integers("whole", 100)) == list(range(length))
        broken = section.floats("broken", min(length, 4))
        assert [str(each) for each in broken] == ["nan", "inf", "-inf", "0.5"][:length]
