"""`tapescope bench recompute`, as typed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tapescope.__main__ import main
from tapescope.engine.studies import recompute_study as module
from tapescope.tests.says import Snapshots, says


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide terminal, and sizes that take no time."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(module, "DESK", {"rnn": {"batch": 4, "width": 16, "steps": 3}})


def bench(*arguments: str) -> int:
    return main(["bench", "recompute", *arguments, "--size", "desk", "--repetitions", "1", "--seconds", "0.1"])


def test_a_table_is_printed_and_what_it_says_and_a_page_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    page = tmp_path / "new" / "page.html"
    assert bench("rnn", "--html", str(page)) == 0
    printed, told = capsys.readouterr()
    lines = printed.splitlines()
    assert lines[0] == "rnn: batch=4 width=16 steps=3" and "HIPS/autograd" in lines[1]
    assert lines[4].startswith(f"{module.NOTHING} ")
    (left_out,) = (line for line in lines if module.BLOCKS in line)
    snapshot("bench", left_out)
    says(lines[-1], f"torch {torch.__version__}")
    (written,) = told.splitlines()  # without a terminal no progress is shown
    says(written, page)
    assert "rnn: batch=4" in page.read_text(encoding="utf-8")


def test_an_interrupt_keeps_what_is_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots
) -> None:
    study = module.recompute_study

    def interrupted(found, **given):
        if found.name == "gpt2":
            raise KeyboardInterrupt
        return study(found, **given)

    monkeypatch.setattr(module, "recompute_study", interrupted)
    assert bench("rnn", "gpt2") == 130
    printed, told = capsys.readouterr()
    assert printed.startswith("rnn: batch=4") and "gpt2" not in printed
    snapshot("bench", told)
    assert bench("gpt2") == 130
    snapshot("bench", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["nope"], ["'nope'", "resnet50"]),
        (["linear50"], ["linear50", '"desk"', "rnn"]),
        (["rnn", "--html", "."], ["--html"]),
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
