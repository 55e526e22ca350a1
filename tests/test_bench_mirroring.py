"""`tapescope bench recompute`, as typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapescope.__main__ import main
from tapescope.engine.studies import mirror_study as module


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide terminal, and sizes that take no time."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(module, "DESK", {"rnn": {"batch": 4, "width": 16, "steps": 3}})


def bench(*arguments: str) -> int:
    return main(["bench", "recompute", *arguments, "--repetitions", "1", "--seconds", "0.1", "--no-compile"])


def test_a_table_is_printed_and_what_it_says_and_a_page_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new" / "page.html"
    assert bench("rnn", "--html", str(page)) == 0
    printed, told = capsys.readouterr()
    lines = printed.splitlines()
    assert lines[0] == "rnn: batch=4 width=16 steps=3" and "HIPS/autograd" in lines[1]
    assert lines[3].split()[:2] == ["way", "peak"] and lines[4].startswith("nothing ")
    assert "checkpoint per block was left out: no module of this model repeats." in printed
    assert lines[-1].startswith("Measured on ")
    assert told.splitlines() == ["measuring rnn", f"tapescope: written to {page}"]
    assert "rnn: batch=4" in page.read_text(encoding="utf-8")


def test_an_interrupt_keeps_what_is_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    study = module.mirror_study

    def interrupted(found, **given):
        if found.name == "gpt2":
            raise KeyboardInterrupt
        return study(found, **given)

    monkeypatch.setattr(module, "mirror_study", interrupted)
    assert bench("rnn", "gpt2") == 130
    printed, told = capsys.readouterr()
    assert printed.startswith("rnn: batch=4") and "gpt2" not in printed
    assert "tapescope: interrupted; what was measured until then is above" in told
    assert bench("gpt2") == 130
    assert "tapescope: interrupted before anything was measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "tapescope: unknown workload 'nope'; known: resnet50"),
        (["linear50"], 'tapescope: workload linear50 has no size "desk"; those which have: rnn'),
        (["rnn", "--html", "."], "tapescope: --html: . is a folder, not the name of a file"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*arguments) == 2
    printed, told = capsys.readouterr()
    assert printed == "" and told.splitlines()[-1].startswith(message)
