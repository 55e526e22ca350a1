"""`tapescope bench orders`, as typed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tapescope.__main__ import main
from tapescope.commands.answers import ProgressLine
from tapescope.engine.studies.studied_orders import OrderStudy
from tapescope.engine.workloads.ready_workload import Parts, Workload
from tapescope.engine.workloads.workloads import WORKLOADS


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
    monkeypatch.setitem(WORKLOADS, "copy", replace(tiny, name="copy"))
    monkeypatch.setitem(WORKLOADS, "hopeless", raising("hopeless", NotImplementedError("no such kernel")))
    monkeypatch.setitem(WORKLOADS, "stopped", raising("stopped", KeyboardInterrupt()))


def bench(*arguments: str) -> int:
    return main(["bench", "orders", *arguments, "--repetitions", "1"])


def test_the_table_is_printed_with_what_was_measured_and_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("linear50", "copy") == 0
    printed, told = capsys.readouterr()
    lines = printed.splitlines()
    assert lines[0].split() == ["workload", "bfs", "dfs", "heap"]
    assert lines[1].split()[:2] == ["linear50", "time"] and lines[6].split()[:2] == ["copy", "time"]
    assert "bfs needs more memory than heap on " in printed
    assert "linear50: One Linear used 50 times independently · pytorch PR #4746, 2018 · small: uses=6" in printed
    assert "peak: the highest level in the backward of all bytes asked for" in printed
    assert "Measured on " in printed and "torch" in lines[-1]
    assert told.splitlines() == ["measuring linear50 (1 of 2)", "measuring copy (2 of 2)"]


def test_files_are_written_beside_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, data = tmp_path / "new" / "page.html", tmp_path / "data.json"
    assert bench("linear50", "--policies", "dfs", "heap", "--html", str(page), "--json", str(data), "--markdown") == 0
    printed, told = capsys.readouterr()
    assert printed.startswith(
        "| workload | dfs, time | peak | heap, time | peak | longest queue (dfs / heap) |\n| --- |"
    )
    assert told.splitlines()[-2:] == [f"tapescope: written to {page}", f"tapescope: written to {data}"]
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
    assert printed.startswith("workload") and told.splitlines()[-1] == "tapescope: no space left"


def test_an_interrupt_prints_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("linear50", "stopped", "copy") == 130
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].split()[:2] == ["linear50", "time"] and "\ncopy" not in printed
    assert "The study was interrupted: workloads are missing." in printed
    assert bench("stopped") == 130
    printed, told = capsys.readouterr()
    assert printed == "" and told.splitlines()[-1] == "tapescope: interrupted before anything was measured"


def test_what_cannot_be_measured_is_told_and_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("hopeless", "linear50") == 1
    assert "hopeless was left out: no such kernel" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "tapescope: unknown workload 'nope'; known: resnet50"),
        (["linear50", "--policies", "zzz"], "tapescope: there is no policy 'zzz'; known are bfs"),
        (["linear50", "--device", "meta"], "tapescope: there is nothing to measure on the device meta"),
        (["linear50", "--html", "."], "tapescope: --html: . is a folder, not the name of a file"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*arguments) == 2
    printed, told = capsys.readouterr()
    assert printed == "" and told.startswith(message) and told.count("\n") == 1


def test_on_a_terminal_progress_is_one_line_that_is_gone_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with ProgressLine() as line:
        line.show("linear50 (1 of 1): bfs, round 1 of 2")
        line.show("linear50 (1 of 1): bfs, round 2 of 2")
    told = capsys.readouterr().err
    assert "\n" not in told and told.endswith("round 2 of 2\r\x1b[K")
