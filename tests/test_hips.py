"""`make hips`: on tests that stand in for autograd's, and on a sample of autograd's own where they were downloaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tapescope

pytest.importorskip("autograd")

from tapescope.tests.says import says

ROOT = Path(tapescope.__file__).parent
pytestmark = pytest.mark.heavy

TESTS = """
import autograd.numpy as np
import tapescope as ts
from autograd import grad, hessian
from autograd.builtins import tuple as box_tuple

def test_nested():
    assert hessian(lambda x: np.sum(np.sin(x) ** 2))(np.ones(2)).shape == (2, 2)

def test_no_tape():
    grad(lambda x: 1.0)(2.0)

def test_raises():
    grad(lambda x: 1 / 0)(2.0)

def test_last_bit(monkeypatch):
    whole = ts.backward
    def wrong(tape, g, policy):
        whole(tape, g, policy=policy)
        if policy == "dfs":
            tape.gradient = np.nextafter(tape.gradient, 9.0)
    monkeypatch.setattr(ts, "backward", wrong)
    grad(np.sin)(1.0)

def test_after():
    grad(lambda pair: pair[0] * pair[1])((2.0, 3.0))
"""


def hips(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests/hips"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_gradient_of_other_bits_fails_its_test(tmp_path: Path) -> None:
    (tmp_path / "test_stand_in.py").write_text(TESTS)
    done = hips(str(tmp_path))
    assert done.returncode == 1
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 2
    says(failed[0], "test_raises")
    says(failed[1], "test_last_bit")
    says(done.stdout, "3 passed", "1 no tape", "3 gradients compared", "to the bit")


@pytest.mark.slow
def test_a_sample_of_autograds_own_tests_passes_on_tapes() -> None:
    tests = Path(os.environ.get("AUTOGRAD_TESTS") or ROOT / ".venv/hips/tests")
    if not tests.is_dir():
        pytest.skip("autograd's tests are not here; `make hips` downloads them")
    done = hips(str(tests), "-k", "test_tuple or test_list or test_dict or test_builtins or test_core")
    assert done.returncode == 0, done.stdout[-3000:]
    compared = re.search(r"([\d,]+) gradients compared", done.stdout)
    assert compared and int(compared[1].replace(",", "")) > 0
