"""The README's own words, followed in an environment that has nothing else: it installs, and all tours run.

Slow, as it downloads: `make full` runs it. `tests/test_notebooks.py` runs the tours in the environment that is here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from nbformat import NotebookNode

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TOURS = sorted((ROOT / "notebooks").glob("*.ipynb"))

RUN = """
import resource, sys, time, nbformat
from nbclient import NotebookClient
path, out = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)
begun = time.monotonic()
NotebookClient(notebook, kernel_name="python3", allow_errors=True).execute()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"{time.monotonic() - begun:.0f} s, of which {used.ru_utime + used.ru_stime:.0f} s of a core")
nbformat.write(notebook, out)
"""


def bare_shell() -> dict[str, str]:
    """Return the shell's environment, without the settings that lead to packages of the present one."""
    kept = {
        name: value for name, value in os.environ.items() if not re.match("PYTHON|JUPYTER|IPYTHON|VIRTUAL_ENV", name)
    }
    return kept | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return Python of an environment in which the README's two lines have been run, in a clone."""
    folder = tmp_path_factory.mktemp("fresh")
    litter = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "out", "*.egg-info", "node_modules")
    clone = shutil.copytree(ROOT, folder / "tapescope", ignore=litter)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    found = folder / "venv" / "bin" / "python"

    def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [found, "-m", "pip", *arguments]
        return subprocess.run(command, cwd=clone, env=bare_shell(), capture_output=True, text=True)

    lines = [shlex.split(line, comments=True) for line in re.findall(r"^pip (install .*)$", README, re.MULTILINE)]
    of_torch = next(line for line in lines if "torch" in line)
    of_tapescope = next(line for line in lines if ".[notebook]" in line)
    if pip(
        *of_torch, "--retries", "0", "--timeout", "15"
    ).returncode:  # the package index cannot be reached: "or any torch that is there"
        done = pip("install", f"torch=={torch.__version__.partition('+')[0]}")
        assert done.returncode == 0, done.stderr
    done = pip(*takewhile(lambda word: word != "&&", of_tapescope))
    assert done.returncode == 0, done.stderr
    yield found
    shutil.rmtree(folder)  # more than a gigabyte


def executed(python: Path, path: Path, out: Path) -> NotebookNode:
    """Return the notebook after a run in that environment."""
    import nbformat  # which costs four seconds, and each test process imports this file to collect tests

    done = subprocess.run(
        [python, "-c", RUN, path, out], env=bare_shell(), cwd=out.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    print(f"{path.stem}: {done.stdout}", end="")
    return nbformat.read(out, as_version=4)


def complaints(notebook: NotebookNode) -> list[str]:
    """Errors, and what is on stderr: a notebook shows that in red, as it shows warnings."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    errors = ["\n".join(output.traceback) for output in outputs if output.output_type == "error"]
    return errors + [output.text for output in outputs if output.get("name") == "stderr"]


@pytest.mark.parametrize("tour", TOURS, ids=lambda path: path.stem)
def test_a_tour_runs_without_a_warning(python: Path, tour: Path, tmp_path: Path) -> None:
    shutil.copy(tour.with_name("tour_models.py"), tmp_path)
    notebook = executed(python, tour, tmp_path / tour.name)
    assert complaints(notebook) == []
    pictures = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert pictures, "nothing for a reader without a kernel"


def test_the_readmes_first_cells_run_as_they_stand(python: Path, tmp_path: Path) -> None:
    from nbformat.v4 import new_code_cell, new_notebook

    cells = [new_code_cell(source) for source in re.findall(r"```python\n(.*?)```", README, re.DOTALL)[:2]]
    assert cells[1].source.startswith("%%tapescope")
    (tmp_path / "readme.ipynb").write_text(json.dumps(new_notebook(cells=cells)), encoding="utf-8")
    notebook = executed(python, tmp_path / "readme.ipynb", tmp_path / "out.ipynb")
    assert complaints(notebook) == []
    assert any("image/png" in output.get("data", {}) for output in notebook.cells[-1].outputs)


def test_the_command_is_there(python: Path) -> None:
    done = subprocess.run([python.parent / "tapescope", "--version"], env=bare_shell(), capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("tapescope ") and not done.stderr
