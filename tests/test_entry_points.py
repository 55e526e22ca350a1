"""Policies and reports of the guide's package, built and installed in an environment of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch import nn

import tapescope as ts
from tapescope.inspector import entry_points
from tapescope.tests.says import says

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "guides" / "extend.md").read_text(encoding="utf-8")

PROGRAM = """
import sys
from pathlib import Path
import torch, tapescope as ts
from torch import nn

def make_loss():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return net(torch.ones(2, 4)).sum() + net[0].weight.square().sum()

assert "backward_costs" not in sys.modules
run = ts.backward(make_loss(), policy="small_first")
import backward_costs
assert run.order == ts.backward(make_loss(), policy=backward_costs.small_first).order
assert run.policy == "small_first"
run.report("costs").render(Path("costs.txt"))
run.save("run.tape.json")
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.slow
@pytest.mark.heavy
def test_the_guides_package_adds_a_policy_and_a_report_when_installed(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    policy, report, _ = blocks("python")
    assert all(len(each.strip().splitlines()) <= 11 for each in (policy, report))
    (package / "backward_costs.py").write_text(policy + report)
    (package / "pyproject.toml").write_text(
        blocks("toml")[0] + '\n[tool.setuptools]\npy-modules = ["backward_costs"]\n'
    )
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.check_output(where, text=True).strip())
    # torch is the one that is here, and tapescope the code that is tested.
    paths = [*Path(ts.__file__).parents[1:2], sysconfig.get_path("purelib")]
    (site / "here.pth").write_text("\n".join(map(str, paths)))

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run([python, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)

    # The environment's own setuptools is that of its Python, and may be too old to build wheels.
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--target", site]
    subprocess.run([*install, str(package)], check=True)
    (tmp_path / "train.py").write_text(PROGRAM)
    done = run("train.py")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "costs.txt").read_text()
    says(lines, "AddmmBackward0", "TanhBackward0")
    viewed = run("-m", "tapescope", "view", "run.tape.json", "--report", "costs", "--out", "again.txt")
    assert viewed.returncode == 0, viewed.stderr
    assert (tmp_path / "again.txt").read_text() == lines
    wrong = run("-m", "tapescope", "view", "run.tape.json", "--report", "cost", "--out", "again.txt")
    assert wrong.returncode == 2
    says(wrong.stderr, "'cost'", "'costs'")
    says(run("-m", "tapescope", "view", "run.tape.json", "--report", "costs").stderr, "--out FILE")


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"broken": "not_installed:policy", "number": "math:pi"}
    found = {name: EntryPoint(name, value, "group") for name, value in values.items()}
    monkeypatch.setattr(entry_points, "entry_points_of", lambda group: found)
    monkeypatch.setattr("tapescope.engine.planning.policies.entry_points_of", lambda group: found)


@pytest.mark.usefixtures("points")
def test_entry_points_that_cannot_be_used_are_explained() -> None:
    loss = nn.Linear(2, 1)(torch.ones(2)).sum()
    run = ts.backward(loss)
    for name, facts in {"broken": ("not_installed", "ModuleNotFoundError"), "number": ("number", "float")}.items():
        with pytest.raises((TypeError, ValueError)) as raised:
            ts.backward(nn.Linear(2, 1)(torch.ones(2)).sum(), policy=name)
        says(raised.value, name, *facts)
    with pytest.raises(ValueError, match=r"unknown policy 'brocken' \(did you mean 'broken'\?\)"):
        ts.backward(loss, policy="brocken")
    with pytest.raises(TypeError) as missing:
        run.report("number")
    says(missing.value, "'number'", "from_run(run)", "render(out)")


def test_a_report_that_no_package_has_is_refused() -> None:
    run = ts.backward(nn.Linear(2, 1)(torch.ones(2)).sum())
    with pytest.raises(ValueError, match="tapescope.reports"):
        run.report("costs")
    with pytest.raises(TypeError, match="name"):
        run.report(3)  # type: ignore[arg-type]
