"""The pytest plugin in a separate project, found through its entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tapescope.tests.says import says
from tapescope.tests.warm_python import WarmPython

pytestmark = pytest.mark.heavy

COMMON = ("-q", "--strict-markers", "-p", "no:cacheprovider")
ROOT = Path(__file__).parents[2]
NET = """
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())

class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.h = nn.ModuleList(Block(64) for _ in range(layers))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for each in self.h:
            x = each(x)
        return self.head(x)
"""
TESTS = """
import os
import sys
import pytest

def test_without_the_marker():
    assert "torch" not in sys.modules

@pytest.fixture
def batch():
    import torch
    return torch.randn(128, 64), torch.randint(0, 10, (128,))

@pytest.mark.peak_memory("2 MiB")
def test_step(batch):
    import torch
    from net import Net
    model = Net(int(os.environ.get("LAYERS", 2)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()

@pytest.mark.peak_memory
def test_number(batch):
    assert (batch[0] * 2).sum().item() < 1e9

@pytest.mark.peak_memory
def test_own_error(batch):
    raise NotImplementedError("not yet")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project beside an installed tapescope, as pip records one: with the entry points of pyproject.toml."""
    installed = tmp_path / "site" / "tapescope-0.dist-info"
    installed.mkdir(parents=True)
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    lines = [f"{name} = {module}" for name, module in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tapescope\nVersion: 0\n")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    (folder / "test_memory.py").write_text(TESTS)
    return folder


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(project: Path, fresh_python: WarmPython) -> Run:
    """Run pytest in the project, in a process that has already imported torch. Returns its status and output."""

    def run(*options: str, layers: int = 2, on_fakes: bool = True) -> tuple[int, str]:
        main = (
            f"import sys; sys.path.insert(0, {str(project.parent / 'site')!r}); import pytest; sys.exit(pytest.main())"
        )
        command = ("-c", main, *COMMON, *(["--tapescope-predict"] if on_fakes else []), *options)
        environment = os.environ | {"LAYERS": str(layers), "OMP_NUM_THREADS": "1"}
        process = fresh_python.start(*command, environment=environment, cwd=project).end(240)
        return process.returncode, process.stdout + process.stderr

    return run


def run_anew(project: Path, *options: str) -> tuple[int, str]:
    paths = [str(project.parent / "site"), *filter(None, sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *COMMON, "--tapescope-predict", *options]
    process = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=240)
    return process.returncode, process.stdout + process.stderr


CPU_AS_DEVICE = """
import os
import torch

torch.accelerator.is_available = lambda: True
torch.accelerator.reset_peak_memory_stats = lambda: None
torch.accelerator.max_memory_allocated = lambda: int(os.environ["PEAK"])
"""
"""A conftest.py with an accelerator that has this peak; the test itself runs on the CPU."""


@pytest.mark.slow
def test_on_an_accelerator_the_test_runs_as_written_and_its_allocator_is_asked(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "conftest.py").write_text(CPU_AS_DEVICE)
    baseline = ("-k", "test_step or test_number", "--tapescope-baseline", "peaks.json")
    monkeypatch.setenv("PEAK", "1000000")
    status, printed = run(*baseline, "--tapescope-update", on_fakes=False)
    assert status == 0, printed  # .item() works, since the numbers are real
    stored = json.loads((project / "peaks.json").read_text())["tests"]
    assert stored["test_memory.py::test_step"] == {"measured": {"peak_bytes": 1000000}}
    monkeypatch.setenv("PEAK", "1005000")
    assert run(*baseline, on_fakes=False)[0] == 0
    monkeypatch.setenv("PEAK", "1100000")
    status, printed = run(*baseline, on_fakes=False)
    assert status == 1
    says(printed, "10 %", "--tapescope-predict", "2 failed")
    monkeypatch.setenv("PEAK", "3000000")
    says(run("-k", "test_step", on_fakes=False)[1], "measured", "exceeds 2.0 MiB")
    status, printed = run(*baseline)
    says(printed, "no predicted peak", "--tapescope-update")


def test_a_model_that_grew_by_a_layer_fails_and_the_layer_is_named(project: Path, run: Run) -> None:
    baseline = ("-k", "test_step", "--tapescope-baseline", "peaks.json")
    status, printed = run(*baseline)
    assert status == 4
    says(printed, "peaks.json", "--tapescope-update")
    assert run(*baseline, "--tapescope-update")[0] == 0
    stored = json.loads((project / "peaks.json").read_text())["tests"]["test_memory.py::test_step"]["predicted"]
    assert stored["peak_bytes"] == sum(each["bytes"] for each in stored["modules"].values()) < 2 * 2**20
    # A block has 64 × 256 + 256 + 256 × 64 + 64 parameters; Adam's state is twice that, with a step of each of 4.
    block = sum(stored["modules"][f"h.0.{name}"]["kinds"]["parameters"] for name in ("up", "down"))
    assert block == 2 * 64 * 256 * 4 + 1024 + 512
    assert run(*baseline)[0] == 0
    status, printed = run(*baseline, layers=3)
    assert status == 1
    says(printed, "peak grew from", "h.2 (new)", "net.py:", "parameters", "--tapescope-update")
    assert "h.1" not in printed
    assert run(*baseline, layers=1)[0] == 0


def test_a_limit_fails_with_the_largest_modules(project: Path, run: Run) -> None:
    status, printed = run("-k", "test_step", layers=8)
    assert status == 1
    says(printed, "exceeds 2.0 MiB", "h.0.up", "optimizer state", "net.py:7")


def test_the_plugin_imports_torch_for_marked_tests_only_and_explains_what_it_cannot_predict(project: Path) -> None:
    status, printed = run_anew(project, "-k", "not test_step")
    assert status == 1
    says(printed, "test_memory.py:27", ".item()", "not yet", "2 failed, 1 passed")
    assert printed.count("During handling") == 0


def test_tests_that_the_plugin_cannot_check_fail(project: Path, run: Run) -> None:
    (project / "test_memory.py").write_text(
        "import pytest, unittest\n\n"
        "@pytest.mark.peak_memory('1 GiB')\nasync def test_later():\n    assert False\n\n"
        "class Steps(unittest.TestCase):\n    @pytest.mark.peak_memory('1 GiB')\n"
        "    def test_step(self):\n        pass\n"
    )
    status, printed = run()
    assert status == 1
    says(printed, "coroutine", "unittest.TestCase", "2 errors")


def test_contradicting_options_are_refused(project: Path, run: Run) -> None:
    status, printed = run("--tapescope-update")
    assert status == 4
    says(printed, "--tapescope-baseline FILE")
    (project / "peaks.json").write_text("[]")
    status, printed = run("--tapescope-baseline", "peaks.json")
    assert status == 4
    says(printed, "peaks.json", "--tapescope-update")
