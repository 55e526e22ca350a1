"""Run every function of the benchmarks once, on tiny models, without checking times."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which
from types import ModuleType

import pytest
import torch

from tapescope.engine.execution import find_hooks as hook_watch
from tapescope.engine.studies.accumulation_study import BY_HAND, FUSED, HIPS, IN_PLACE
from tapescope.engine.studies.recompute_study import BLOCKS, NOTHING, SELECTIVE
from tapescope.inspector.torch_private.hooks import hooks_registered
from tapescope.tests.says import says

from . import second_device

FOLDER = Path(__file__).parent / "benchmarks"
MODULES = (
    *("measure", "models", "capture_cost", "stepping", "drawing", "walking", "tracing", "other_tools", "table"),
    *("memory", "memory_cuda", "prediction", "orders", "planning", "deck", "watching", "accumulation", "batching"),
    *("recompute", "echo", "whole_calls", "starting", "many", "two_devices", "whole_steps", "loop_page"),
    *("compare_page", "growth"),
)


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with its modules beside it, as `python tests/benchmarks` finds them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.util.spec_from_file_location("benchmarks", FOLDER / "__main__.py")
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    return script


@pytest.mark.parametrize(
    ("name", "rows", "goals"),
    [
        ("whole_calls", 57, 53),
        ("starting", 3, 3),
        ("capture", 2, 2),
        ("stepping", 12, 4),
        ("drawing", 8, 8),
        ("walking", 1, 1),
        ("many", 14, 0),
        ("tracing", 11, 1),
        ("memory", 7, 6),
        ("whole_steps", 2, 1),
        ("training_loops", 15, 9),
        ("compare_page", 6, 3),
    ],
)
@pytest.mark.slow
def test_each_benchmark_gives_its_rows_and_goals(benchmarks: ModuleType, name: str, rows: int, goals: int) -> None:
    found = list(benchmarks.BENCHMARKS[name](benchmarks.Effort(repetitions=1, tiny=True)))
    assert len(found) == rows
    assert sum(row.goal is not None for row in found) == goals
    assert all(len(row.values) == 1 and row.values[0] > 0 for row in found)


@pytest.mark.slow
def test_the_growth_of_each_verb_is_measured_at_two_sizes_of_each_shape(benchmarks: ModuleType) -> None:
    found = list(benchmarks.BENCHMARKS["growth"](benchmarks.Effort(repetitions=1, tiny=True)))
    shapes = [row.what.partition(":")[0] for row in found]
    wanted = {"chain": 21, "fan": 21, "layers": 21, "steps": 1, "LSTM": 1, "retain_grad": 1}
    assert {shape: shapes.count(shape) for shape in shapes} == wanted
    for row in found:
        small, large = (float(size.split()[1]) for size in row.note.split("; "))
        assert row.goal == 1.1 and small > 0 and large > 0


@pytest.mark.slow
@pytest.mark.e2e
def test_the_page_of_a_loop_is_opened_and_zoomed_in_a_browser(benchmarks: ModuleType) -> None:
    # In a separate thread, since a browser of other tests may have an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        rows = thread.submit(lambda: [*benchmarks.BENCHMARKS["loop_page"](benchmarks.Effort(repetitions=1, tiny=True))])
        *written, opened, zoomed = rows.result()
    assert [row.unit for row in written] == ["ms", "kB", "kB"]
    assert opened.goal == 1000 and zoomed.goal == 33 and min(opened.measured, zoomed.measured) > 0


def test_a_recompute_plan_of_echos_size_is_made_without_its_memory(benchmarks: ModuleType) -> None:
    plain, *planned, taken = benchmarks.BENCHMARKS["echo"](benchmarks.Effort(repetitions=1, tiny=True))
    assert [each.measured <= plain.measured for each in planned] == [True] * 5
    assert all("an estimate" in each.note for each in planned) and "Echo: 6 %" in planned[1].note
    assert planned[-1].measured < plain.measured and taken.unit == "s"


@pytest.mark.slow
def test_what_fits_is_measured_beside_what_a_step_took(benchmarks: ModuleType) -> None:
    *off, largest = benchmarks.BENCHMARKS["fitting"](benchmarks.Effort(repetitions=1, tiny=True))
    assert [row.unit for row in off] == ["%", "%"]
    assert all(row.measured <= row.goal for row in off)
    assert largest.goal == 10.0 and "None" not in largest.what


@pytest.mark.slow
@pytest.mark.skipif(second_device.why_not() is not None, reason=str(second_device.why_not()))
def test_two_devices_are_measured_on_threads_beside_the_simulation(benchmarks: ModuleType) -> None:
    found = list(benchmarks.BENCHMARKS["two_devices"](benchmarks.Effort(repetitions=1, tiny=True)))
    assert [row.unit for row in found] == ["×", "%"] * 4
    assert all(row.note.startswith("ts.makespan says ") for row in found[::2])
    assert all(len(row.values) == 1 and row.values[0] > 0 for row in found[::2]), "by how much is chance"


@pytest.mark.slow
def test_watching_is_measured_beside_anomaly_mode(benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    anomaly, native, *others = benchmarks.BENCHMARKS["watching"](benchmarks.Effort(repetitions=1, tiny=True))
    assert "detect_anomaly" in anomaly.what and anomaly.goal is None
    assert native.what.startswith('native session, watch("nan")') and native.goal == 1.3
    assert len(others) == 4 and all(len(row.values) == 1 for row in (anomaly, native, *others))


@pytest.mark.slow
def test_predictions_are_held_against_measurements(benchmarks: ModuleType) -> None:
    workload, programs = benchmarks.BENCHMARKS["prediction"](benchmarks.Effort(repetitions=1, tiny=True))
    assert workload.what.startswith("linear50: 3.002 to 51.002 MiB")
    says(workload.outcome, "8 of 8")
    says(programs.outcome, "8 of 8")


@pytest.mark.slow
def test_orders_are_compared_by_time_by_peak_and_on_two_devices_by_makespan(benchmarks: ModuleType) -> None:
    rows = {row.what: row for row in benchmarks.BENCHMARKS["orders"](benchmarks.Effort(repetitions=1, tiny=True))}
    peak = rows["linear50: peak, bfs / heap"]
    assert peak.measured == pytest.approx(17, rel=0.01) and peak.goal == 15 and peak.at_least
    assert rows["linear50: time, dfs / heap"].measured > 0
    for policy in ("dfs", "heap"):
        span = rows[f"two_devices: makespan on cpu and cuda:0, {policy} / bfs"]
        assert span.measured > 1 and span.goal == 1.2
    assert len(rows) == 10 and sum(row.goal is not None for row in rows.values()) == 3


@pytest.mark.slow
def test_planning_is_timed_as_graphs_grow_and_auto_is_held_against_heap(benchmarks: ModuleType) -> None:
    *found, linear50, din = benchmarks.BENCHMARKS["planning"](benchmarks.Effort(repetitions=1, tiny=True))
    shapes = [row for row in found if row.what.startswith('"auto" planned: ')]
    assert len(shapes) == 9 and all(row.goal == 1.0 for row in shapes)
    assert sum(row.what.startswith("ts.plan_order: ") and row.outcome is not None for row in found) == 2
    auto = [row for row in found if 'policy "auto" / plain' in row.what]
    assert [row.goal for row in auto] == [1.15, None] and all(row.measured > 0 for row in auto)
    assert linear50.measured == 1 and linear50.goal == 1
    assert din.measured < 0.9 and "lower bound" in din.what


@pytest.mark.slow
def test_each_rule_of_accumulation_is_held_against_the_gradient_by_hand(benchmarks: ModuleType, tmp_path: Path) -> None:
    effort = benchmarks.Effort(repetitions=1, tiny=True, folder=tmp_path / "pages")
    rows = {row.what: row for row in benchmarks.BENCHMARKS["accumulation"](effort)}
    for dtype in ("float32", "float64"):
        for name in ("rnn", "fan_out", "elementwise", "needless"):
            own = rows[f"{name}, {dtype}: peak, {IN_PLACE} / {BY_HAND}"]
            peak, predicted, *_ = own.note.split(", ")
            assert own.measured < own.goal == 1.05 and predicted == f"predicted {peak}"
            assert rows[f"{name}, {dtype}: the worst of 14 predictions, off by"].measured <= 1
            assert rows[f"{name}, {dtype}: peak, {HIPS} / {BY_HAND}"].measured > 1
        assert rows[f"rnn, {dtype}: peak, list / {BY_HAND}"].measured > 10
        assert rows[f"fan_out, {dtype}: peak, list, graph kept / {BY_HAND}"].measured > 1.9
        assert rows[f"fan_out, {dtype}: peak of PyTorch, graph kept / freed"].measured < 1.02
        assert rows[f"rnn, {dtype}: peak, {FUSED} / {BY_HAND}"].measured < 0.8
    assert len(rows) == 8 * (17 + 3) + 1
    page = (tmp_path / "pages" / "accumulation.html").read_text(encoding="utf-8")
    assert "fan_out, float64" in page and "<script src" not in page and "<link" not in page


@pytest.mark.slow
def test_products_as_one_are_timed_and_counted_beside_each_by_itself(
    benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # If any tensor of the process has a hook, as other tests may leave one, trees run product by product.
    monkeypatch.setattr(hook_watch, "_none_of", hooks_registered())
    effort = benchmarks.Effort(repetitions=1, tiny=True)
    rows = {row.what: row for row in benchmarks.BENCHMARKS["batching"](effort)}
    assert rows["ensemble of 2: as one"].outcome == "no group: each task runs by itself"
    assert "launches → " in rows["ensemble of 4: direct, one by one / as one"].note
    assert rows["linear50: direct, one by one / as one"].note.startswith("99 launches → 3, ")
    assert " heap " in rows["linear50: peak, as one / heap"].note
    assert "grouped_mm" in rows["mixture_of_experts: not joined"].outcome
    assert all(row.measured > 0 for row in rows.values() if row.outcome is None)
    if not torch.cuda.is_available():
        (row,) = benchmarks.BENCHMARKS["batching_cuda"](effort)
        assert row.outcome == "no CUDA here"


@pytest.mark.slow
def test_recomputation_is_held_against_checkpoints_and_its_predictions(
    benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    effort = benchmarks.Effort(repetitions=1, tiny=True, folder=tmp_path)
    rows = {row.what: row for row in benchmarks.BENCHMARKS["recompute"](effort)}
    assert rows[f"unet: time, {BLOCKS} / {NOTHING}"].measured > 0
    assert "mutated" in rows[f"unet: {SELECTIVE}"].outcome
    assert rows[f"unet: the higher peak of both recompute plans / {NOTHING}"].measured <= 1
    assert rows["unet: predicted peak off by"].goal == 0.5
    assert rows[f"unet: peak, recompute / {BLOCKS}"].goal == 1.0
    assert (tmp_path / "recompute-cpu.html").exists()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (row,) = benchmarks.BENCHMARKS["recompute_cuda"](effort)
    assert row.outcome == "no CUDA here"


@pytest.mark.gpu
def test_recomputation_is_measured_on_cuda(benchmarks: ModuleType, tmp_path: Path) -> None:
    rows = {
        row.what: row
        for row in benchmarks.BENCHMARKS["recompute_cuda"](benchmarks.Effort(repetitions=1, tiny=True, folder=tmp_path))
    }
    assert rows[f"unet: {NOTHING}"].measured > 0
    assert rows[f"unet: the higher peak of both recompute plans / {NOTHING}"].measured <= 1


@pytest.mark.gpu
def test_launch_bound_ensembles_are_timed_by_cudas_clock(benchmarks: ModuleType) -> None:
    rows = list(benchmarks.BENCHMARKS["batching_cuda"](benchmarks.Effort(repetitions=1, tiny=True)))
    assert next(row.what for row in rows if row.outcome is None).startswith("ensemble of 4 on CUDA")
    assert all(row.measured > 0 for row in rows if row.outcome is None)


def test_without_cuda_its_memory_is_not_measured(benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (row,) = benchmarks.BENCHMARKS["memory_cuda"](benchmarks.Effort(tiny=True))
    assert (row.values, row.outcome) == ((), "no CUDA here")


@pytest.mark.gpu
def test_on_cuda_a_workload_has_its_peak_and_its_cost(benchmarks: ModuleType) -> None:
    peak, cost = benchmarks.BENCHMARKS["memory_cuda"](benchmarks.Effort(repetitions=1, tiny=True))
    assert "measured" in peak.outcome and "off by 0 bytes" in peak.outcome
    assert len(cost.values) == 1 and cost.goal == 1.3


def test_the_table_says_what_was_measured_and_by_how_much_a_goal_is_missed(
    benchmarks: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    row = benchmarks.Row
    made = [
        row("slow", "×", (3.0, 6.0, 4.0), 2.0),
        row("fast", "s", (0.5, 0.5, 0.5), 2.0),
        row("large", "×", (12.0, 12.0), 15.0, at_least=True),
        row("other", "s", outcome="not installed"),
    ]
    monkeypatch.setitem(benchmarks.BENCHMARKS, "walking", lambda effort: iter(made))
    benchmarks.main(["--only", "walking", "--json", str(tmp_path / "rows.json")])
    slow, fast, large, other, machine = [line.split() for line in capsys.readouterr().out.splitlines()[-5:]]
    assert slow == ["slow", "4.00", "×", "3.00", "–", "6.00", "2", "×", "missed", "by", "100%"]
    assert fast == ["fast", "0.500", "s", "0.500", "–", "0.500", "2", "s", "met,", "75%", "below"]
    assert large == ["large", "12.00", "×", "12.00", "–", "12.00", "≥", "15", "×", "missed", "by", "20%"]
    assert other == ["other", "not", "installed"]
    assert "torch" in machine and machine[-3:] == ["noisy:", "compare", "ratios"]
    written = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert [each["measured"] for each in written] == [4.0, 0.5, 12.0, None]


def test_the_two_sides_of_a_ratio_run_in_turns(benchmarks: ModuleType) -> None:
    ran: list[str] = []

    def side(name: str, elapsed: float) -> float:
        ran.append(name)
        return elapsed

    ratios = sys.modules["measure"].ratios(lambda: side("a", 6.0), lambda: side("b", 2.0), 3)
    assert ran == ["a", "b"] * 4
    assert ratios == (3.0, 3.0, 3.0)


@pytest.mark.parametrize(
    ("script", "limit_s", "outcome"),
    [
        ("print('drawing'); print(1.5)", 60, 1.5),
        ("print('drawing', flush=True); import time; time.sleep(60)", 0.1, "timeout > 0.1 s"),
        ("raise ValueError('no such node')", 60, "error: ValueError: no such node"),
    ],
    ids=["draws", "hangs", "fails"],
)
def test_another_tool_gives_its_seconds_or_says_what_went_wrong(
    benchmarks: ModuleType, script: str, limit_s: float, outcome: float | str
) -> None:
    assert importlib.import_module("other_tools").run_limited([sys.executable, "-c", script], limit_s) == outcome


@pytest.mark.skipif(which("ps") is None, reason="needs ps")
def test_a_tool_past_its_limit_takes_its_children_with_it(benchmarks: ModuleType, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = (
        "import pathlib, subprocess, sys, time; child = subprocess.Popen(['sleep', '600']); "
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid)); print('drawing', flush=True); time.sleep(60)"
    )
    importlib.import_module("other_tools").run_limited([sys.executable, "-c", script], 0.1)
    for _ in range(1000):  # the kernel takes a moment
        if not _runs(pid.read_text()):
            return
        time.sleep(0.01)
    pytest.fail("the drawing's child outlived it")


def _runs(pid: str) -> bool:
    """Return whether the process exists and is not a zombie."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True).stdout
    return bool(found.strip()) and not found.startswith("Z")


def test_a_tool_that_is_not_there_is_named_so(benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("other_tools.find_spec", lambda name: None)
    rows = list(benchmarks.BENCHMARKS["other_tools"](benchmarks.Effort(tiny=True)))
    assert {row.outcome for row in rows} == {"not installed"} and len(rows) == 12
