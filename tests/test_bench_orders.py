"""`tapescope bench orders`, as typed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tapescope.__main__ import main
from tapescope.commands.command_arguments import ProgressLine
from tapescope.engine.studies.ready_workload import Parts, Workload
from tapescope.engine.studies.studied_orders import OrderStudy
from tapescope.engine.studies.workload_table import WORKLOAD_TABLE
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.tests.says import Snapshots, says


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide terminal, and workloads that take no time; one raises what its knob says."""
    monkeypatch.setenv("COLUMNS", "160")
    tiny = replace(WORKLOADS["linear50"], small={"uses": 6, "width": 32, "batch": 2})

    def raising(name: str, error: BaseException) -> Workload:
        def make(width: int) -> Parts:
            raise error

        return Workload(name, "", "", make, {"width": 1}, {"width": 1})

    monkeypatch.setitem(WORKLOADS, "linear50", tiny)
    for name in ("copy", "hopeless", "stopped"):
        monkeypatch.setitem(WORKLOAD_TABLE, name, WORKLOAD_TABLE["linear50"])
    monkeypatch.setitem(WORKLOADS, "copy", replace(tiny, name="copy"))
    monkeypatch.setitem(WORKLOADS, "hopeless", raising("hopeless", NotImplementedError("no such kernel")))
    monkeypatch.setitem(WORKLOADS, "stopped", raising("stopped", KeyboardInterrupt()))


def bench(*arguments: str) -> int:
    return main(["bench", "orders", *arguments, "--repetitions", "1"])


def test_the_table_is_printed_with_what_was_measured_and_how(
    capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    assert bench("linear50", "copy") == 0
    printed, told = capsys.readouterr()
    lines = printed.splitlines()
    assert lines[0].split()[1:] == ["bfs", "dfs", "heap"]
    assert lines[1].split()[0] == "linear50" and lines[6].split()[0] == "copy"
    _, compared, of_workloads, how = printed.strip().split("\n\n")
    says(compared, "bfs", "heap", "linear50", "copy")
    says(of_workloads, "linear50", WORKLOADS["linear50"].title, WORKLOADS["linear50"].source, "uses=6")
    *legend, machine = how.splitlines()
    snapshot("bench", f"{compared}\n\n{of_workloads}\n\n" + "\n".join(legend))
    says(machine, f"torch {torch.__version__}")
    assert told == "", "without a terminal no progress is shown"


def test_files_are_written_beside_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, data = tmp_path / "new" / "page.html", tmp_path / "data.json"
    assert bench("linear50", "--policies", "dfs", "heap", "--html", str(page), "--json", str(data), "--markdown") == 0
    printed, told = capsys.readouterr()
    headings, ruler, row = printed.splitlines()[:3]
    assert headings.startswith("| ") and ruler.startswith("| --- |") and row.startswith("| linear50 |")
    says(headings, "dfs", "heap")
    for line, path in zip(told.splitlines()[-2:], (page, data), strict=True):
        says(line, path)
    assert [each["policy"] for each in json.loads(data.read_text(encoding="utf-8"))["rows"]] == ["dfs", "heap"]
    text = page.read_text(encoding="utf-8")
    assert "<script src" not in text and "<link" not in text and "@import" not in text, "it works offline"


def test_where_a_file_cannot_be_written_the_table_is_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: OrderStudy, path: Path) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr(OrderStudy, "save_html", full)
    assert bench("linear50", "--html", str(tmp_path / "page.html")) == 2
    printed, told = capsys.readouterr()
    assert "linear50" in printed and told.splitlines()[-1] == "tapescope: no space left"


def test_an_interrupt_prints_what_is_there(capsys: pytest.CaptureFixture[str], snapshot: Snapshots) -> None:
    assert bench("linear50", "stopped", "copy") == 130
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].split()[0] == "linear50" and "\ncopy" not in printed
    snapshot("bench", printed.split("\n\n")[2])
    assert bench("stopped") == 130
    printed, told = capsys.readouterr()
    assert printed == ""
    snapshot("bench", told)


def test_what_cannot_be_measured_is_told_and_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("hopeless", "linear50") == 1
    says(capsys.readouterr().out, "hopeless", "no such kernel")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["nope"], ["'nope'", "resnet50"]),
        (["linear50", "--policies", "zzz"], ["'zzz'", "bfs"]),
        (["linear50", "--device", "meta"], ["meta"]),
        (["linear50", "--html", "."], ["--html"]),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], facts: list[str], capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    assert bench(*arguments) == 2
    printed, told = capsys.readouterr()
    assert printed == "" and told.startswith("tapescope: ") and told.count("\n") == 1
    says(told, *facts)
    snapshot("bench", told)


def test_on_a_terminal_progress_is_one_line_that_is_gone_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with ProgressLine() as line:
        line.show("linear50 (1 of 1): bfs, round 1 of 2")
        line.show("linear50 (1 of 1): bfs, round 2 of 2")
    told = capsys.readouterr().err
    assert "\n" not in told and told.endswith("round 2 of 2\r\x1b[K")
