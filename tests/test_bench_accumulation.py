"""`tapescope bench accumulation`, as typed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tapescope.__main__ import main
from tapescope.engine.studies import accumulation_study as module
from tapescope.engine.workloads.workloads import WORKLOADS


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide terminal, and workloads that take no time."""
    monkeypatch.setenv("COLUMNS", "160")
    for name, knob in (("rnn", "steps"), ("needless", "additions")):
        found = WORKLOADS[name]
        monkeypatch.setitem(WORKLOADS, name, replace(found, small={**found.small, knob: 3}))


def bench(*arguments: str) -> int:
    return main(["bench", "accumulation", *arguments, "--repetitions", "1"])


def test_a_table_is_printed_for_each_program_and_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("rnn", "needless", "--dtype", "float32", "float64") == 0
    printed, told = capsys.readouterr()
    lines = printed.splitlines()
    assert lines[0] == "rnn, float32: batch=4 width=128 steps=3" and "HIPS/autograd" in lines[1]
    assert lines[3].split()[:2] == ["gradient", "peak"] and lines[4].startswith("by hand ")
    heads = [line.partition(":")[0] for line in lines if ": batch=" in line or ": width=" in line]
    assert heads == ["rnn, float32", "rnn, float64", "needless, float32", "needless, float64"]
    assert printed.count("Summed in place and let go at once, the peak is ") == 4
    assert lines[-1].startswith("Measured on ")
    assert told.splitlines() == [f"measuring {head}" for head in heads]


def test_the_page_is_written_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "new" / "page.html"
    assert bench("needless", "--html", str(page)) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"tapescope: written to {page}"
    assert "needless, float32" in page.read_text(encoding="utf-8")


def test_an_interrupt_keeps_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = module.accumulation_study

    def interrupted(found, **given):
        if found.name == "rnn":
            raise KeyboardInterrupt
        return study(found, **given)

    monkeypatch.setattr(module, "accumulation_study", interrupted)
    page = tmp_path / "page.html"
    assert bench("needless", "rnn", "--html", str(page)) == 130
    printed, told = capsys.readouterr()
    assert printed.startswith("needless, float32") and "rnn" not in printed
    assert "tapescope: interrupted; what was measured until then is above" in told and page.exists()
    assert bench("rnn", "--html", str(tmp_path / "none.html")) == 130
    printed, told = capsys.readouterr()
    assert printed == "" and told.splitlines()[-1] == "tapescope: interrupted before anything was measured"
    assert not (tmp_path / "none.html").exists()


def test_where_the_page_cannot_be_written_the_tables_are_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(studies: object, path: Path) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr(module, "save_studies", full)
    assert bench("needless", "--html", str(tmp_path / "page.html")) == 2
    printed, told = capsys.readouterr()
    assert printed.startswith("needless, float32") and told.splitlines()[-1] == "tapescope: no space left"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "tapescope: unknown workload 'nope'; known: resnet50"),
        (["linear50"], "tapescope: workload linear50 has no gradient written by hand; those which have: rnn, fan_out"),
        (["needless", "--html", "."], "tapescope: --html: . is a folder, not the name of a file"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*arguments) == 2
    printed, told = capsys.readouterr()
    assert printed == "" and told.splitlines()[-1].startswith(message)
