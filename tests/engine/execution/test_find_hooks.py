from __future__ import annotations

from pathlib import Path

import pytest

from tapescope.tests.warm_python import WarmPython

pytestmark = pytest.mark.heavy


def test_hooks_are_found_and_nothing_else_in_a_process_without_others(fresh_python: WarmPython) -> None:
    """Other tests leak hooks: torch never frees those on several tensors."""
    done = fresh_python.run(Path(__file__).with_name("find_hooks_alone.py"))
    assert done.returncode == 0, done.stderr


def test_retained_gradients_are_known_without_a_look_at_all_objects(fresh_python: WarmPython) -> None:
    """Whoever takes `Tensor.retain_grad` from the class, as a test may, ends that for the process."""
    done = fresh_python.run(Path(__file__).with_name("retained_alone.py"))
    assert done.returncode == 0, done.stderr
