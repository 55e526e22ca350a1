"""The wheel and the sdist, and which package may import which."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from .try_wheel import try_wheel
from .versions.__main__ import VERSIONS

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[1]
PACKAGES = ("inspector", "engine", "widgets", "commands", "integrations", "public")
SOURCES = sorted([*ROOT.glob("*.py"), *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))])

# torch, what torch requires, and tapescope; everything else that is not Python's own is refused.
BLOCKER = """
allowed = {"tapescope", "torch", "torchgen", "functorch", "typing_extensions", "filelock", "fsspec", "jinja2"}
allowed |= {"markupsafe", "networkx", "sympy", "mpmath", *sys.stdlib_module_names}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r} (torch alone is installed here)", name=name)

sys.meta_path.insert(0, Blocker())
"""

STEP = """
import torch, tapescope as ts
assert ts.__file__.startswith(sys.argv[1]), ts.__file__

def make_loss():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    return model, model(torch.randn(8, 4)).square().mean()

stepped, loss = make_loss()
svg = ts.graph(loss, stepped).to_svg()
assert svg.startswith("<svg") and "0.weight" in svg
session = ts.debug(loss, policy="heap")
steps = 0
while session.ready:
    session.step()
    steps += 1
assert steps == len(session.order) > 8

expected, loss = make_loss()
loss.backward()
for a, b in zip(stepped.parameters(), expected.parameters(), strict=True):
    assert torch.equal(a.grad, b.grad)

native, loss = make_loss()
ts.backward(loss, policy="bfs")
for a, b in zip(native.parameters(), expected.parameters(), strict=True):
    torch.testing.assert_close(a.grad, b.grad)
print("stepped", steps)
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel made from that sdist. Built from a copy: a build litters its sources."""
    folder = tmp_path_factory.mktemp("build")
    litter = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "out", "*.egg-info", "node_modules")
    shutil.copytree(ROOT, folder / "sources", ignore=litter)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "sources"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return folder / "dist"


def run(script: str, library: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the script in a separate Python that finds tapescope in the folder `library`."""
    script = f"import sys\nsys.path.insert(0, sys.argv[1])\n{script}"
    return subprocess.run([sys.executable, "-I", "-c", script, str(library)], cwd=cwd, capture_output=True, text=True)


@pytest.fixture(scope="session")
def library(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_has_every_source_file_and_nothing_else_of_the_repository(library: Path) -> None:
    packed = {path.relative_to(library / "tapescope") for path in (library / "tapescope").rglob("*.py")}
    assert packed == {path.relative_to(ROOT) for path in SOURCES}
    assert (library / "tapescope" / "py.typed").exists()
    drawing = library / "tapescope" / "inspector" / "drawing"
    assert {path.name for path in drawing.glob("*.json")} == {"colours.json", "layout_constants.json"}
    static = library / "tapescope" / "widgets" / "static"
    fonts = {"DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSans.LICENSE.txt"}
    assert {path.name for path in static.iterdir()} == {"deck.js", "frontier.js", "loop.js", "figures.js"} | fonts
    assert {path.name.partition("-")[0] for path in library.iterdir()} == {"tapescope"}


def test_the_wheel_says_what_it_is(library: Path) -> None:
    (metadata,) = library.glob("tapescope-*.dist-info/METADATA")
    fields = metadata.read_text()
    assert "License-Expression: MIT\n" in fields
    assert "Requires-Python: >=3.11\n" in fields
    (entry_points,) = library.glob("tapescope-*.dist-info/entry_points.txt")
    assert "tapescope = tapescope.__main__:main" in entry_points.read_text()
    assert list(library.glob("tapescope-*.dist-info/licenses/LICENSE"))


def test_the_wheel_steps_a_backward_with_torch_alone(library: Path, tmp_path: Path) -> None:
    done = run(BLOCKER + STEP, library, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("stepped")


def test_the_blocker_blocks(library: Path, tmp_path: Path) -> None:
    assert "torch alone is installed here" in run(BLOCKER + "import rich", library, tmp_path).stderr


def test_importing_tapescope_leaves_for_later_what_only_some_need(library: Path, tmp_path: Path) -> None:
    later = {"rich", "IPython", "anywidget", "graphviz", "matplotlib", "pandas", "plotly"}
    done = run(f"import tapescope; print(sorted({later} & set(sys.modules)))", library, tmp_path)
    assert done.stdout == "[]\n", done.stderr


def test_the_sdist_brings_tests_and_what_runs_them(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "constraints.txt", "LICENSE", "pyproject.toml", "tests/test_package.py"} <= names
    shown = re.findall(r'(?:src|srcset)="([^"]+)"', (ROOT / "README.md").read_text(encoding="utf-8"))
    assert shown and set(shown) <= names


def test_pypi_would_take_both_and_show_the_readme(built: Path) -> None:
    pytest.importorskip("twine")  # of the extra `dev`
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert "stepped" in try_wheel(wheel, tmp_path)


def test_the_citation_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {project['version']}\n" in citation and f"license: {project['license']}\n" in citation


def test_the_workflow_runs_the_versions_that_are_supported() -> None:
    text = (ROOT / ".github" / "workflows" / "versions.yml").read_text(encoding="utf-8")
    (row,) = re.findall(r"torch: (\[.*\])", text)
    assert tuple(json.loads(row)) == VERSIONS


def test_imports_within_the_package_are_relative_and_lead_somewhere() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not any(alias.name.partition(".")[0] == "tapescope" for alias in node.names), path
            elif isinstance(node, ast.ImportFrom) and node.level:
                target = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                assert target.with_suffix(".py").exists() or target.is_dir(), f"{path}: {'.' * node.level}{node.module}"
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] != "tapescope", path


def test_the_packages_that_are_installed_are_the_folders_that_are_there() -> None:
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")}
    named = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    assert sorted(named) == sorted(
        ["tapescope", *(".".join(["tapescope", *folder.relative_to(ROOT).parts]) for folder in folders)]
    )


def test_the_readme_links_to_files_that_are_there_and_has_no_blanks() -> None:
    text = (ROOT / "README.md").read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    files = [link for link in links if not link.startswith("#")] + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    assert files and all((ROOT / file).is_file() for file in files)
    assert all(link[1:] in headings for link in links if link.startswith("#"))
    assert "@@" not in text


def test_the_notebook_extra_names_all_that_a_tour_needs() -> None:
    """Also what the tours need without a word of theirs: numpy, without which torch begins with a warning."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    imported = set()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        lines = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
        imported |= {found[1] for line in lines if (found := re.match(r"\s*(?:import|from)\s+(\w+)", line))}
    of_ipykernel, beside = {"IPython"}, {"tour_models"}
    imported -= {*sys.stdlib_module_names, "tapescope", "torch", *of_ipykernel, *beside}
    assert {"pandas", "plotly"} <= imported <= set(extras["notebook"])
    assert {"numpy", *extras["hips"], *extras["figures"], *extras["graphviz"]} <= set(extras["notebook"])
