"""`tapescope bench` of a function of the user's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tapescope.__main__ import main
from tapescope.engine.api.time_backwards import Spread
from tapescope.engine.studies.accumulation_study import BY_HAND, PYTORCH, accumulation_study
from tapescope.engine.studies.order_study import order_study
from tapescope.engine.studies.ready_workload import own_program
from tapescope.engine.studies.recompute_study import BLOCKS, COMPILED, NOTHING, recompute_study
from tapescope.tests.says import Snapshots, raises, says

_SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
block = lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh())

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = block()
    def forward(self, x):
        return x + self.inner(x)

model = nn.Sequential(Block(), Block(), Block())
scale = torch.ones(16, requires_grad=True)
x = torch.randn(512, 16)

def make_loss():
    return (model(x) * scale).square().mean()

def raises():
    raise KeyError("hidden")

def without_graph():
    return x.sum()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(_SCRIPT, encoding="utf-8")
    return "mine.py:make_loss"


def run(*arguments: str) -> int:
    return main(["bench", *arguments, "--repetitions", "2"])


def own() -> tuple[torch.nn.Module, torch.Tensor, dict[str, object]]:
    names: dict[str, object] = {}
    exec(_SCRIPT, names)
    model, scale = names["model"], names["scale"]
    assert isinstance(model, torch.nn.Module) and isinstance(scale, torch.Tensor)
    return model, scale, names


def test_orders_stand_in_a_table_of_80_columns_with_no_figure_cut(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("orders", script, "linear50") == 0
    printed = capsys.readouterr().out
    assert "…" not in printed and max(map(len, printed.splitlines())) <= 80
    assert f"mine.py:make_loss: {own_program(torch.Tensor, 'own').title}" in printed and "\nlinear50 " in printed


def test_accumulation_is_against_pytorchs_engine(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("accumulation", script) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("mine.py:make_loss, float32\n") and f"\n{PYTORCH} " in printed
    assert BY_HAND not in printed and "…" not in printed


def test_recomputation_finds_the_blocks(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recompute", script, "--seconds", "0.2", "--json") == 0
    (study,) = json.loads(capsys.readouterr().out)["studies"]
    assert [row["way"] for row in study["rows"]][:2] == [NOTHING, BLOCKS]
    assert study["rows"][1]["peak_bytes"] < study["rows"][0]["peak_bytes"]
    assert all(row["same_gradients"] for row in study["rows"])


@pytest.mark.parametrize("what", ["orders", "accumulation", "recompute"])
def test_what_is_wrong_with_it_is_said(
    what: str, script: str, capsys: pytest.CaptureFixture[str], snapshot: Snapshots
) -> None:
    assert run(what, "mine.py:raises") == 1
    told = capsys.readouterr().err
    assert "/commands/" not in told
    raised = told.splitlines()[-1]
    assert raised.startswith("tapescope: ")
    says(raised, "KeyError")
    assert run(what, "mine.py:without_graph") in (1, 2)
    said = " ".join("".join(capsys.readouterr()).split())
    says(said, "without_graph()", "torch.no_grad()", ".detach()")
    assert run(what, script, "--size", "full") == 2
    sized = capsys.readouterr().err
    says(sized, "--size", "mine.py:make_loss")
    if what == "accumulation":
        for told in (raised, said, sized):
            snapshot("bench", told)


def test_the_program_is_afterwards_as_it_was() -> None:
    model, scale, names = own()
    program = own_program(names["make_loss"], "own")  # type: ignore[arg-type]
    scale.grad = grad = torch.full((16,), 7.0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    order_study([program], repetitions=1)
    accumulation_study(program, repetitions=1)
    recompute_study(program, repetitions=1, seconds=0.1, compiled=False)
    assert scale.grad is grad and bool((grad == 7).all())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_study_of_it_has_no_size_and_is_against_pytorch(snapshot: Snapshots) -> None:
    _, _, names = own()
    program = own_program(names["make_loss"], "own")  # type: ignore[arg-type]
    study = accumulation_study(program, repetitions=1)
    assert study.size is None and study.reference == PYTORCH and study.ratio(PYTORCH) == 1 and study.title[:3] == "own"
    with raises(ValueError, "own", "'batch'") as refused:
        recompute_study(program, batch=3)
    snapshot("bench", refused.value)


def test_a_forward_of_several_modules_is_not_compiled(snapshot: Snapshots) -> None:
    one, other, x = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1), torch.randn(2, 4)
    study = recompute_study(own_program(lambda: other(one(x)).sum(), "two"), repetitions=1, seconds=0.1)
    assert COMPILED not in study
    snapshot("bench", study.refused[COMPILED])
    assert one.weight.grad is None


def test_noise_is_said() -> None:
    assert Spread(0.97, 1.01, 1.05).spans(1.0) and not Spread(1.02, 1.1, 1.2).spans(1.0)
    _, _, names = own()
    study = order_study([own_program(names["make_loss"], "own")], ["heap", "dfs"], repetitions=6)  # type: ignore[arg-type]
    ratio = study["own"].time_ratio("dfs", "heap")
    assert (study.within_noise("dfs") == {"own": ratio}) == ratio.spans(1.0)
    if ratio.spans(1.0):
        says(" ".join(study.sentences), "dfs", "heap", "own")
