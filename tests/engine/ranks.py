"""Ranks of one process group, each a process that runs a test's program and logs what it saw."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tapescope.tests.warm_python import WarmPython


def run_ranks(
    python: WarmPython, program: Path, folder: Path, *given: str, size: int = 2, limit_s: float = 300.0
) -> None:
    """Runs `python PROGRAM RANK FOLDER GIVEN...` for each rank. None is left when it returns or the test fails.

    Args:
        python: runs them.
        program: the file.
        folder: for what they write. What a rank is at, if it says so, stands in FOLDER/RANK.at.
        given: the program's further arguments.
        size: how many ranks there are.
        limit_s: after so many seconds the test fails.
    """
    ends = time.monotonic() + limit_s
    started = [python.start(program, str(rank), folder, *given) for rank in range(size)]
    ended = []
    for process in started:
        failed = any(each.returncode for each in ended)  # the others may wait for it
        ended.append(process.end(5.0 if failed else max(0.0, ends - time.monotonic())))
    if time.monotonic() > ends:
        at = [path.read_text() for path in sorted(folder.glob("*.at"))]
        pytest.fail(f"the ranks have not ended in {limit_s:g} s" + (f"; they were at {' and '.join(at)}" if at else ""))
    for each in ended:
        assert each.returncode == 0, each.stderr[-5000:]


def logs_of_ranks(
    python: WarmPython, program: Path, folder: Path, *given: str, size: int = 2, limit_s: float = 300.0
) -> list[Any]:
    """The same of programs that log as JSON, in FOLDER/RANK.json: what each rank logged."""
    run_ranks(python, program, folder, *given, size=size, limit_s=limit_s)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
