"""`tapescope bench accumulation`, as typed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tapescope.__main__ import main
from tapescope.engine.studies import accumulation_study as module
from tapescope.engine.studies.accumulation_study import BY_HAND, IN_PLACE
from tapescope.engine.studies.workloads import WORKLOADS
from tapescope.tests.says import Snapshots, says


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
    assert lines[4].startswith(f"{BY_HAND} ")
    heads = [line.partition(":")[0] for line in lines if ": batch=" in line or ": width=" in line]
    assert heads == ["rnn, float32", "rnn, float64", "needless, float32", "needless, float64"]
    assert any(line.split() == ["rnn", "float32", "float64"] for line in lines), "both dtypes side by side"
    sentences = [line for line in lines if line.endswith(".")]
    peaks = [" ".join(line.removeprefix(IN_PLACE).split()[:2]) for line in lines if line.startswith(f"{IN_PLACE} ")]
    assert len(peaks) == 6 and all(any(peak in sentence for sentence in sentences) for peak in peaks)
    says(lines[-1], f"torch {torch.__version__}")
    assert told == "", "without a terminal no progress is shown"


def test_the_page_is_written_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "new" / "page.html"
    assert bench("needless", "--html", str(page)) == 0
    assert capsys.readouterr().err.splitlines()[-1].endswith(str(page))
    assert "needless, float32" in page.read_text(encoding="utf-8")


def test_an_interrupt_keeps_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots
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
    assert page.exists()
    snapshot("bench", told)
    assert bench("rnn", "--html", str(tmp_path / "none.html")) == 130
    printed, told = capsys.readouterr()
    assert printed == ""
    snapshot("bench", told)
    assert not (tmp_path / "none.html").exists()


def test_an_interrupt_within_a_study_keeps_its_rows_and_the_page_has_had_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    measured: list[str] = []
    measure = module._Torch.measure

    def third_raises(self):
        measured.append(self.name)
        if len(measured) == 3:
            assert measured[1] in page.read_text(encoding="utf-8")
            raise KeyboardInterrupt
        return measure(self)

    monkeypatch.setattr(module._Torch, "measure", third_raises)
    assert bench("needless", "rnn", "--html", str(page)) == 130
    printed, told = capsys.readouterr()
    assert all(name in printed for name in (BY_HAND, *measured[:2])) and "rnn" not in printed
    says(told, "interrupted", page)
    says(printed, "study", "interrupted")


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
    ("arguments", "facts"),
    [
        (["nope"], ["'nope'", "resnet50"]),
        (["linear50"], ["linear50", "rnn", "fan_out"]),
        (["needless", "--html", "."], ["--html"]),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], facts: list[str], capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    assert bench(*arguments) == 2
    printed, told = capsys.readouterr()
    assert printed == "" and told.splitlines()[-1].startswith("tapescope: ")
    says(told, *facts)
    snapshot("bench", told)
