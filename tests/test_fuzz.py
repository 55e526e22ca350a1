"""A sample of `python tests/fuzz`: random programs of all that a backward may meet, as PyTorch runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .warm_python import WarmPython

pytestmark = pytest.mark.heavy

FOLDER = Path(__file__).parent / "fuzz"


@pytest.mark.parametrize("programs", [10, pytest.param(400, marks=pytest.mark.slow)])
def test_random_programs_do_as_under_pytorch(programs: int, fresh_python: WarmPython) -> None:
    ran = fresh_python.run(FOLDER / "__main__.py", "--programs", str(programs), "--seed", "20000")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_what_differs_is_found_and_shrunk(fresh_python: WarmPython) -> None:
    """A backward whose gradients are wrong in one bit, in a program of whose features none matters."""
    script = (
        "import runpy, sys\n"
        f"sys.path[0] = {str(FOLDER)!r}\n"
        f"fuzz = runpy.run_path({str(FOLDER / '__main__.py')!r})\n"
        "import ways, torch\n"
        "right = ways.native\n"
        "def wrong(*given):\n"
        "    forward = right(*given)\n"
        "    leaf = next(leaf for leaf in forward.leaves if leaf.grad is not None)\n"
        "    leaf.grad.mul_(1 + torch.finfo(torch.float32).eps)\n"
        "    return forward\n"
        "ways.WAYS.update(dict.fromkeys(ways.WAYS, wrong))\n"
        "seed = next(seed for seed in range(99) if ways.Way.of(seed).is_pytorchs)\n"
        "sys.exit(fuzz['main'](['--only', str(seed)]))\n"
    )
    ran = fresh_python.run("-c", script)
    assert ran.returncode == 1, ran.stderr
    assert "operations=1, features=frozenset()" in ran.stdout and "DIFFERENT: grads" in ran.stdout
