"""`--json`: one object of the documented schema on standard output, and nothing else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tapescope as ts
from tapescope.__main__ import main
from tapescope.commands.json_output import ENVELOPE, SCHEMAS, plain
from tapescope.tests.says import Snapshots, says
from tapescope.tests.warm_python import WarmPython

FORMATS = Path(__file__).parents[1] / "docs" / "reference" / "formats.md"
SCRIPT = """
import os, torch
from torch import nn

def loss():
    print("words of the script")
    os.system("echo words of another process")
    return nn.Linear(4, 1)(torch.ones(2, 4)).sum()

def setup():
    return {
        "make_model": lambda: nn.Linear(4, 1),
        "make_batch": lambda n=2: torch.ones(n, 4),
        "loss_of": lambda model, batch: model(batch).sum(),
        "make_optimizer": lambda parameters: torch.optim.SGD(parameters, 0.1),
    }

def make_model():
    return nn.Linear(4, 1)

def loss_of(model, batch):
    return model(batch[0]).sum().log()

def raises():
    raise KeyError("no data")

if __name__ == "__main__":
    loss().backward()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a script, and two runs; it is the current one."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "train", raising=False)
    for name, factor in (("a", 1.0), ("b", 2.0)):
        weight = torch.ones(3, requires_grad=True)
        ts.backward((weight * factor).exp().sum(), trace="full").save(f"{name}.tape.json")
    return tmp_path


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    try:
        code: object = main(arguments)
    except SystemExit as end:
        code = end.code
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    assert found["exit_code"] == code
    assert found["tapescope"] == ts.__version__
    return found


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("workloads", 0),
        ("demo linear50 --policy heap", 0),
        ("compare train.py:loss --policy heap", 0),
        ("advise train.py:loss", 0),
        ("fits train.py:setup --memory 1GB", 0),
        ("fits train.py:setup --memory 1B", 1),
        ("bench orders linear50 --policies heap --repetitions 1", 0),
        ("bench accumulation rnn --repetitions 1", 0),
        ("graph train.py:loss", 0),
        ("debug -c continue -c quit train.py:loss", 0),
        ("diff a.tape.json b.tape.json", 1),
        ("view a.tape.json --no-open", 0),
    ],
)
def test_each_command_prints_one_object_with_the_keys_of_its_schema(
    arguments: str, code: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(_with_json(arguments), capsys)
    schema = found["schema"]
    assert schema == next(name for name in SCHEMAS if arguments.startswith(name.removesuffix("/1")))
    assert set(found) == {*ENVELOPE, *SCHEMAS[schema]}
    assert found["exit_code"] == code and found["error"] is None


def _with_json(arguments: str) -> list[str]:
    """Before what `debug` leaves to the script, else last."""
    words = arguments.split()
    return [words[0], "--json=-", *words[1:]] if words[0] == "debug" else [*words, "--json"]


def test_a_replay_tells_what_was_bad(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ts.training(model, optimizer, black_box=folder / "box"):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.full((2, 4), float("nan"))).sum().log().backward()
            optimizer.step()
    step = sorted((folder / "box").glob("step_*"))[0]
    found = answer(["replay", str(step), "train.py:make_model", "train.py:loss_of", "--json"], capsys)
    assert set(found) >= {*ENVELOPE}
    if found["error"] is None:
        assert set(found) == {*ENVELOPE, *SCHEMAS["replay/1"]}
        assert found["losses"] == ["nan"]


def test_the_documented_schemas_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `([a-z ]+/\d+)` \| (`.*`) \|$", FORMATS.read_text(encoding="utf-8"), re.MULTILINE))
    assert {name: tuple(re.findall(r"`(\w+)`", keys)) for name, keys in rows.items()} == SCHEMAS


@pytest.mark.parametrize(
    ("arguments", "code", "facts", "traceback"),
    [
        (["graph", "none.py:loss", "--json"], 2, ["none.py"], False),
        (["graph", "train.py:raises", "--json"], 1, ["train.py:raises", "KeyError"], True),
        (["compare", "train.py:raises", "--json"], 1, ["train.py:raises", "KeyError"], True),
        (["fits", "train.py:setup", "--json"], 2, ["--memory"], False),
        (["diff", "a.tape.json", "none.tape.json", "--json"], 2, ["none.tape.json"], False),
        (["diff", "a.tape.json", "--json=-"], 2, ["B.tape.json"], False),
        (["debug", "--json=-", "--policy", "none", "train.py:loss"], 2, ["'none'", "heap"], False),
    ],
)
def test_an_error_is_an_object_too(
    arguments: list[str],
    code: int,
    facts: list[str],
    traceback: bool,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answer(arguments, capsys)
    assert found["exit_code"] == code
    says(found["error"]["sentence"], *facts)
    assert ("KeyError" in (found["error"]["traceback"] or "")) == traceback
    assert set(found) <= {*ENVELOPE}


def test_with_a_file_the_words_stay_and_the_object_is_in_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads", "--json", "new/found.json"]) == 0
    assert "ResNet-50" in capsys.readouterr().out
    assert json.loads((folder / "new" / "found.json").read_text())["schema"] == "workloads/1"


@pytest.mark.parametrize("word", ["train.py:loss", "a.tape.json"])
def test_a_word_that_is_meant_for_the_command_is_no_file(
    word: str, folder: Path, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    before = (folder / "a.tape.json").read_bytes()
    with pytest.raises(SystemExit):
        main(["view", "--json", word])
    told = capsys.readouterr().err
    says(told, "--json", repr(word), "--json=-")
    snapshot("view", told)
    assert (folder / "a.tape.json").read_bytes() == before


@pytest.mark.heavy
def test_what_scripts_and_other_processes_print_is_not_on_standard_output(
    folder: Path, fresh_python: WarmPython
) -> None:
    for arguments in (["graph", "train.py:loss", "--json"], ["debug", "--json=-", "-c", "c", "train.py", "--json"]):
        run = "import sys; from tapescope.__main__ import main; sys.exit(main())"
        done = fresh_python.run("-c", run, *arguments)
        assert json.loads(done.stdout)["exit_code"] == done.returncode == 0
        assert "words of the script" in done.stderr and "words of another process" in done.stderr


def test_a_scripts_own_json_option_is_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.py").write_text("import sys; print(sys.argv[1:])")
    assert main(["debug", "own.py", "--json"]) == 0  # it calls no backward
    assert capsys.readouterr().out.startswith("['--json']")


def test_numbers_that_json_has_no_word_for_are_words() -> None:
    assert plain({"a": float("nan"), 1: (float("inf"), 2.5)}) == {"a": "nan", "1": ["inf", 2.5]}
