"""Kinds of programs crossed with verbs: `make matrix`. A sample here, every cell in `make full`."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .warm_python import WarmPython, warm_python

FOLDER = Path(__file__).parent / "matrix"
TOPICS = ("models", "layouts", "graphs", "functions", "hooks", "transforms", "surroundings", "distributed")
SAMPLED = 8
"""Cells of each topic, of some 1,000."""


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    """Runs code in processes that have imported what the programs of all topics import."""
    with warm_python("torch.distributed.fsdp", "tapescope.engine.session.direct_session") as python:
        yield python


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(FOLDER), *arguments], capture_output=True, text=True)


@pytest.mark.heavy
@pytest.mark.parametrize("topic", TOPICS)
def test_a_sample_of_verbs_leaves_gradients_and_state_as_plain_pytorch_does(topic: str, python: WarmPython) -> None:
    ran = python.run(FOLDER / "__main__.py", topic, "--sample", str(SAMPLED))
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("topic", TOPICS)
def test_every_verb_leaves_gradients_and_state_as_plain_pytorch_does(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run(topic, "--jobs", "1", "--json", str(tmp_path / "results.json"))
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    refusals = importlib.import_module("refusals")
    results = json.loads((tmp_path / "results.json").read_text())
    refused = {(each["kind"], each["verb"]) for each in results if each["outcome"] == "refused"}
    kinds = {each["kind"] for each in results}
    listed = {pair for pair in refusals.pairs_of_page(refusals.PAGE.read_text()) if pair[0] in kinds}
    assert listed == refused, "python tests/matrix --write-docs writes the table anew"


@pytest.mark.slow
@pytest.mark.parametrize("topic", TOPICS)
def test_a_sample_of_verbs_adds_to_gradients_that_are_there_as_plain_pytorch_does(topic: str) -> None:
    ran = run(topic, "--sample", str(15 * SAMPLED), "--prefilled")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.heavy
def test_a_wrong_cell_fails(tmp_path: Path, python: WarmPython) -> None:
    """The matrix sees a verb that leaves one flag, one gradient or one hook changed."""
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE.format(folder=str(FOLDER)))
    ran = python.run(probe)
    assert ran.stdout.split() == ["wrong", "wrong", "wrong", "crash", "right"], ran.stdout + ran.stderr


PROBE = """
import sys
sys.path.insert(0, {folder!r})
import kinds, torch
from cell import Cell
from program import KINDS
from run import ended
from verbs import VERBS

def flag(cell):
    cell.predicts(lambda program, arguments: torch.set_grad_enabled(False))

def gradient(cell):
    def run(program, arguments):
        torch.autograd.backward(**arguments)
        next(iter(program.leaves.values())).grad.mul_(1 + 1e-6)
    cell.runs_backward(run)

def hook(cell):
    cell.runs_program(lambda program: program.model.register_forward_hook(lambda *_: None))

def obscure(cell):
    cell.predicts(lambda program, arguments: torch.ones(2) @ torch.ones(3))

def nothing(cell):
    cell.predicts(lambda program, arguments: None)

for verb in (flag, gradient, hook, obscure, nothing):
    VERBS[verb.__name__] = verb
    print(ended("plain", verb.__name__, Cell(KINDS["plain"])).outcome)
    torch.set_grad_enabled(True)
"""
