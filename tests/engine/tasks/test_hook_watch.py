from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy


def test_hooks_are_found_and_nothing_else_in_a_process_without_others() -> None:
    """Other tests leak hooks: torch never frees those on several tensors."""
    subprocess.run([sys.executable, Path(__file__).with_name("hook_watch_alone.py")], check=True)


def test_retained_gradients_are_known_without_a_look_at_all_objects() -> None:
    """Whoever takes `Tensor.retain_grad` from the class, as a test may, ends that for the process."""
    subprocess.run([sys.executable, Path(__file__).with_name("retained_alone.py")], check=True)
