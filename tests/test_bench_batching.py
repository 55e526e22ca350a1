"""`tapescope bench batching`, as typed."""

from __future__ import annotations

import json

import pytest

from tapescope.__main__ import main
from tapescope.engine.studies import batching_study as module
from tapescope.tests.says import says


def bench(*arguments: str) -> int:
    return main(["bench", "batching", "--no-compile", "--repetitions", "1", *arguments])


def test_a_table_is_printed_and_what_it_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert bench("--members", "10") == 0
    printed, told = capsys.readouterr()
    says(printed, "10 × Linear", "110", "47", "110 → 21")
    assert told == ""


def test_the_json_has_every_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--members", "4", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "bench batching/1" and not found["interrupted"]
    assert {row["way"]: row["products"] for row in found["rows"] if row["program"] == "Linear"} == {
        "eager": 44,
        "TorchScript": 44,
        "ts groups": 23,
    }


def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--members", "0") == 2
    printed, told = capsys.readouterr()
    assert printed == "" and told.startswith("tapescope: ") and told.count("\n") == 1
    says(told, "members", 0)


def test_an_interrupt_before_any_result_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "batching_study", interrupted)
    assert bench() == 130
    says(capsys.readouterr().err, "interrupted")
