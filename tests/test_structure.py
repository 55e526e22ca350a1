"""`python tests/structure` finds what is built otherwise, and draws the picture in the docs. `make lint` runs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def structure(root: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, root / "tests" / "structure", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("engine/schedule/dependencies.py", "    from ..planning.plan_order import plan_order", "imports up: 1"),
        (
            "inspector/graph/operations_and_calls.py",
            "    from ...engine.memory.timeline import Timeline",
            "imports up: 1",
        ),
        ("engine/schedule/ready_queue.py", "    from .device_queues import DeviceQueues", "cycles: 1"),
        (
            "engine/schedule/dependencies.py",
            "    from ..memory.timeline import Timeline",
            "engine.schedule -> engine.memory",
        ),
        ("engine/schedule/ready_queue.py", "    pass\n" * 600, "engine/schedule/ready_queue.py: "),
        (
            "engine/schedule/ready_queue.py",
            "    pass\nclass Run: ...\nclass Stop: ...\nclass Graph: ...",
            "Graph: engine.",
        ),
    ],
)
def test_what_is_built_otherwise_is_found(file: str, line: str, said: str, tmp_path: Path) -> None:
    for name in ("inspector", "engine", "widgets", "commands", "tests/structure"):
        ignored = shutil.ignore_patterns("__pycache__", "js", "static")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for path in (*ROOT.glob("*.py"), ROOT / "pyproject.toml"):
        shutil.copy(path, tmp_path)
    with (tmp_path / file).open("a") as source:
        source.write(f"\n\ndef wrong():\n{line}\n")
    counted = structure(tmp_path)
    assert said in counted.stdout, counted.stdout + counted.stderr


def test_the_picture_in_the_docs_is_that_of_the_code(tmp_path: Path) -> None:
    """`python tests/structure --picture docs/architecture.svg` makes it anew."""
    made = structure(ROOT, "--picture", tmp_path / "architecture.svg")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "architecture.svg").read_text() == (ROOT / "docs" / "architecture.svg").read_text()
