"""Models and training loops that nobody here wrote go through every verb: `make models`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts

pytestmark = pytest.mark.heavy

FOLDER = Path(__file__).parent / "models"
FEW = {"transformers": "gpt2", "timm": "resnet", "diffusers": "unet"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(FOLDER), *arguments], capture_output=True, text=True, timeout=3000)


@pytest.mark.slow
@pytest.mark.parametrize("library", FEW)
def test_a_model_of_a_library_goes_through_every_verb(library: str) -> None:
    if importlib.util.find_spec(library) is None and os.environ.get("CI") != "true":
        pytest.skip(f"needs {library}")
    ran = run("--only", f"{library} {FEW[library]}", "--jobs", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 strangers, 10 results: " in ran.stdout and "skipped" not in ran.stdout


@pytest.mark.slow
def test_all_strangers_go_through_every_verb() -> None:
    if importlib.util.find_spec("torch_geometric") is None and os.environ.get("CI") != "true":
        pytest.skip("needs what `make models` installs")
    ran = run()
    assert ran.returncode == 0, ran.stdout + ran.stderr


MODULES = ("stranger", "results", "judge", "verbs", "table")


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The folder's modules as `python tests/models` finds them."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path, str(FOLDER.parent), str(FOLDER.parent / "engine")])
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})


@pytest.fixture
def stranger(suite: SimpleNamespace) -> object:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))
    x = torch.randn(24, 16)
    return suite.stranger.Stranger(model, lambda: model(x).square().mean())


def test_of_a_model_that_is_nobodys_everything_is_right(suite: SimpleNamespace, stranger: object) -> None:
    outcomes = {name: verb(stranger).outcome for name, verb in suite.verbs.VERBS.items()}
    assert set(outcomes.values()) <= {"right", "estimate"} and outcomes["calibrated"] == "right", outcomes


def test_one_wrong_bit_is_found(suite: SimpleNamespace, stranger: object, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ts.backward

    def wrong(loss: Tensor, **options: object) -> object:
        leaf = next(iter(ts.graph(loss).leaves.values()))
        run = plain(loss, **options)  # type: ignore[arg-type]
        assert leaf.grad is not None
        leaf.grad.mul_(1 + torch.finfo(torch.float32).eps)
        return run

    monkeypatch.setattr(ts, "backward", wrong)
    with pytest.raises(suite.judge.WrongError, match="heap"):
        suite.verbs.VERBS["native"](stranger)


def test_a_peak_that_is_off_is_wrong_unless_it_is_called_an_estimate(suite: SimpleNamespace) -> None:
    def held(estimates: tuple[str, ...], peak: int) -> str:
        outcome: str = suite.judge.held("", SimpleNamespace(peak_bytes=peak, estimates=estimates), 1000).outcome
        return outcome

    assert held((), 1005) == "right" and held((), 1006) == "wrong" and held(("so",), 1006) == "estimate"


def test_a_verb_that_changes_a_buffer_or_leaves_a_hook_is_found(suite: SimpleNamespace, stranger: object) -> None:
    with pytest.raises(suite.judge.WrongError, match=r"1\.running_mean"), suite.judge.nothing_changes(stranger):
        stranger.make_loss()  # type: ignore[attr-defined]
    handle = None
    with pytest.raises(suite.judge.WrongError, match="_forward_hooks"), suite.judge.nothing_changes(stranger):
        handle = stranger.model.register_forward_hook(lambda *told: None)  # type: ignore[attr-defined]
    assert handle is not None
    handle.remove()


def test_a_nan_that_is_blamed_on_another_module_and_a_parameter_wrongly_named_are_found(
    suite: SimpleNamespace, stranger: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, model = ts.find_nan, stranger.model  # type: ignore[attr-defined]
    monkeypatch.setattr(
        ts, "find_nan", lambda make_loss, engine: report(lambda: make_loss() + torch.zeros(()).log(), engine=engine)
    )
    with pytest.raises(suite.judge.WrongError, match="clean model"):
        suite.verbs.VERBS["find_nan"](stranger)
    unused = ts.find_unused
    monkeypatch.setattr(ts, "find_unused", lambda make_loss, _: unused(lambda: model[0].weight.sum(), model))
    with pytest.raises(suite.judge.WrongError, match="wrongly said"):
        suite.verbs.VERBS["find_unused"](stranger)


def test_a_refusal_is_a_sentence_of_ours_and_anything_else_is_a_crash(suite: SimpleNamespace) -> None:
    def refusal(raises: object) -> str | None:
        try:
            raises()  # type: ignore[operator]
        except Exception as error:
            said: str | None = suite.judge.refusal(error)
            return said
        return None

    def theirs() -> None:
        raise NotImplementedError("theirs")

    loss = torch.ones(2, requires_grad=True).sum()
    assert refusal(theirs) is None
    assert refusal(lambda: ts.backward(loss, accumulate="list")) is not None
