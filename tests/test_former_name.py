"""tapescope was called tapehead: what was saved under that name loads, and nothing else has it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.engine.training.black_box.read_step import FACTS
from tapescope.engine.training.training_file import document_of, read_page

ROOT = Path(__file__).parents[1]
FORMER = "tapehead"
_MAY_HAVE_IT = {"CHANGELOG.md", "inspector/files.py", "tests/test_former_name.py"}


def test_the_former_name_stands_where_it_is_explained_or_read_alone() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    having = {
        file.relative_to(ROOT).as_posix()
        for file in files
        if FORMER in file.name.lower() or (file.is_file() and FORMER.encode() in file.read_bytes().lower())
    }
    assert having == _MAY_HAVE_IT


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model: nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = model(*batch).pow(2).mean()
    return loss


def as_formerly(path: Path) -> Path:
    """The file as it was written under the former name."""
    text = path.read_text("utf-8")
    former = text.replace("tapescope", FORMER).replace('"ts-loop"', '"th-loop"')
    assert former != text
    path.write_text(former, "utf-8")
    return path


def test_a_run_of_the_former_name_loads(tmp_path: Path) -> None:
    model = perceptron()
    run = ts.profile(lambda: loss_of(model, (torch.ones(4, 8),)))
    run.save(tmp_path / "run.tape.json")
    assert ts.load(as_formerly(tmp_path / "run.tape.json")).peak_bytes == run.peak_bytes


def test_a_plan_of_the_former_name_loads(tmp_path: Path) -> None:
    model = perceptron()
    plan = ts.plan_recompute(lambda: loss_of(model, (torch.ones(4, 8),)), 0.9, seconds=0.01, repetitions=1)
    plan.save(tmp_path / "plan.json")
    assert ts.types.RecomputePlan.load(as_formerly(tmp_path / "plan.json")).dropped == plan.dropped


@pytest.mark.filterwarnings("ignore:ts.training", "ignore:replay of")
def test_a_loop_and_its_black_box_of_the_former_name_load(tmp_path: Path) -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ts.training(model, optimizer, black_box=tmp_path / "box") as training:
        for value in (1.0, torch.nan):
            optimizer.zero_grad()
            loss_of(model, (torch.full((4, 8), value),)).backward()
            optimizer.step()
    page = as_formerly(training.save_html(tmp_path / "loop.html"))
    assert read_page(page).steps == document_of(training).steps == 2

    as_formerly(tmp_path / "box" / "step_1" / FACTS)
    assert ts.replay(tmp_path / "box" / "step_1", perceptron, loss_of).step == 1
