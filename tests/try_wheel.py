"""`python tests/try_wheel.py WHEEL`: installs a wheel into an empty environment with the torch of this one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

USE = """
import sys
import torch, tapescope as ts
from importlib.metadata import entry_points
assert ts.__file__.startswith(sys.prefix), ts.__file__
assert any(each.value == "tapescope.commands.pytest_plugin" for each in entry_points(group="pytest11"))
weight = torch.ones(3, requires_grad=True)
session = ts.debug((weight * weight).sum())
session.run()
assert torch.equal(weight.grad, 2 * torch.ones(3))
print("tapescope", ts.__version__, "stepped", len(session.order), "tasks on torch", torch.__version__)
"""


def try_wheel(wheel: Path, folder: Path) -> str:
    """Install the wheel into an environment in this folder, use it, and return the last program's output."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.check_output(where, text=True).strip())
    # Packages here are visible there, torch among them; pip then finds what the wheel requires without an index.
    (site / "here.pth").write_text(sysconfig.get_path("purelib"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: str | Path) -> str:
        return subprocess.run(
            command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    # --no-index: everything that the wheel requires has to be visible already.
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", wheel.resolve())
    (folder / "train.py").write_text(TRAIN)
    run(folder / "venv" / "bin" / "tapescope", "--version")
    run(folder / "venv" / "bin" / "tapescope", "run", "--fail-on", "leaks,nan", "train.py")
    assert (folder / "tapescope-train.html").stat().st_size > 10_000
    return run(python, "-c", USE)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print(try_wheel(Path(sys.argv[1]), Path(made)), end="")
