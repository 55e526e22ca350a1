"""`python tests/try_wheel.py WHEEL`: installs a wheel into two empty environments, and uses it.

The first environment has torch and what the wheel requires, the second also what its extra `notebook` requires. Their
packages are links to those of this environment, so that no package index is needed, and an import that the wheel does
not declare fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

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
run = ts.profile(lambda: (weight * weight).sum())
assert run.save_html("run.html").stat().st_size > 10_000
print("tapescope", ts.__version__, "stepped", len(session.order), "tasks on torch", torch.__version__)
"""

ALONE = """
try:
    import IPython
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("IPython is not required by the wheel, and is here")
"""

NOTEBOOK = """
import os
from pathlib import Path
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
cells = [
    "%load_ext tapescope\\nimport torch, tapescope as ts\\nweight = torch.ones(3, requires_grad=True)",
    "%%tapescope loss\\nloss = (weight * weight).sum()",
    "deck = ts.deck((weight * weight).sum())\\ndeck.save_html('deck.html')",
]
notebook = new_notebook(cells=[new_code_cell(each) for each in cells])
NotebookClient(notebook, kernel_name="python3").execute()
shown = [set(output.get("data", ())) for output in notebook.cells[1].outputs]
assert any("application/vnd.jupyter.widget-view+json" in each for each in shown), notebook.cells[1].outputs
assert Path("deck.html").stat().st_size > 10_000
"""


def required(wheel: Path, extra: str) -> set[str]:
    """Return the names of the packages that the wheel requires with an extra, directly or indirectly.

    Raises:
        PackageNotFoundError: one of them is not installed here.
    """
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        todo = message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    pending = [(Requirement(each), extra) for each in todo]
    while pending:
        wanted, of_extra = pending.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": of_extra}):
            continue
        for each in ("", *wanted.extras):
            if (wanted.name, each) not in seen:
                seen.add((wanted.name, each))
                found.add(wanted.name)
                requires = distribution(wanted.name).requires or ()
                pending += [(Requirement(text), each) for text in requires]
    return found


def make_environment(folder: Path, names: set[str]) -> Path:
    """Make an environment with links to these packages of the present one, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.check_output(where, text=True).strip())
    for name in names:
        files = distribution(name).files or ()
        for top in {each.parts[0] for each in files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(sysconfig.get_path("purelib")) / top)
    return python


def try_wheel(wheel: Path, folder: Path) -> str:
    """Install the wheel into two environments in this folder, use it in both, and return the last programs' output."""
    return "".join(
        _use(wheel, folder / (extra or "alone"), extra, program)
        for extra, program in (("", USE + ALONE), ("notebook", USE + NOTEBOOK))
    )


def _use(wheel: Path, folder: Path, extra: str, program: str) -> str:
    python = make_environment(folder / "venv", required(wheel, extra))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: str | Path) -> str:
        return subprocess.run(
            command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    wanted = f"{wheel.resolve()}[{extra}]" if extra else wheel.resolve()
    # --no-index: everything that the wheel requires has to be there already.
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", wanted)
    command = python.with_name("tapescope")
    assert "run" in run(command, "--help")
    (folder / "train.py").write_text(TRAIN)
    run(command, "run", "--fail-on", "leaks,nan", "--profile", "1", "train.py")
    for page in ("tapescope-train.html", "tapescope-train-memory.html"):
        assert (folder / page).stat().st_size > 10_000
    return run(python, "-c", program)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print(try_wheel(Path(sys.argv[1]), Path(made)), end="")
