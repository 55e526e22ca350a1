"""Runs the tests that ask for an accelerator on the second device, in a process that takes to it from its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from . import why_not

TESTS = Path(__file__).parents[1]


pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(torch.cuda.device_count() > 1, reason="they run on CUDA devices"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


@pytest.mark.slow
def test_what_asks_for_an_accelerator_holds_on_the_second_device() -> None:
    hold("accelerator and not slow")


@pytest.mark.slow
def test_what_asks_for_one_and_takes_long_holds_there_too() -> None:
    hold("accelerator and slow")


def hold(marks: str) -> None:
    asking = [str(path) for path in TESTS.rglob("test_*.py") if "accelerator" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-q", "--second-device", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-m", marks, *sorted(asking)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert " passed" in ran.stdout
