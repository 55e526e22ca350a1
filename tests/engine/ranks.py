"""Ranks of one process group, each a process that runs a test's program and logs what it saw."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest


def run_ranks(program: Path, folder: Path, *given: str, size: int = 2, limit_s: float = 300.0) -> None:
    """Runs `python PROGRAM RANK FOLDER GIVEN...` for each rank. None is left when it returns or the test fails.

    Args:
        program: the file.
        folder: for what they write. What a rank is at, if it says so, stands in FOLDER/RANK.at.
        given: the program's further arguments.
        size: how many ranks there are.
        limit_s: after so many seconds the test fails.
    """
    started = [
        subprocess.Popen([sys.executable, program, str(rank), folder, *given], stderr=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    ends = time.monotonic() + limit_s
    try:
        for process in started:
            errors = process.communicate(timeout=max(0.0, ends - time.monotonic()))[1]
            assert process.returncode == 0, errors[-5000:]
    except subprocess.TimeoutExpired:
        at = [path.read_text() for path in sorted(folder.glob("*.at"))]
        pytest.fail(f"the ranks have not ended in {limit_s:g} s" + (f"; they were at {' and '.join(at)}" if at else ""))
    finally:
        for process in started:
            process.kill()


def logs_of_ranks(program: Path, folder: Path, *given: str, size: int = 2, limit_s: float = 300.0) -> list[Any]:
    """The same of programs that log as JSON, in FOLDER/RANK.json: what each rank logged."""
    run_ranks(program, folder, *given, size=size, limit_s=limit_s)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
