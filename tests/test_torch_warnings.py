"""`--warnings-of-torch-are-errors` finds what tapescope's own files cause, and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tapescope

from .torch_warnings import torch_warnings

TORCH = Path(torch.__file__).parent / "warns.py"
OURS = Path(tapescope.__file__).parent / "engine" / "calls.py"


def function(file: Path, name: str, text: str, **names: object) -> Callable[[], None]:
    """A function that looks as if it stood in this file."""
    found: dict[str, object] = {"warnings": warnings, **names}
    exec(compile(f"def {name}():\n    {text}", str(file), "exec"), found)
    made = found[name]
    assert callable(made)
    return made


def called_by(file: Path, inner: Callable[[], None], name: str = "call") -> Callable[[], None]:
    return function(file, name, "inner()", inner=inner)


@pytest.mark.parametrize("category", ["FutureWarning", "DeprecationWarning"])
@pytest.mark.parametrize("level", [1, 2])
def test_a_call_from_our_files_is_found(category: str, level: int) -> None:
    warns = function(TORCH, "warns", f"warnings.warn('goes', {category}, stacklevel={level})")
    with torch_warnings() as found, warnings.catch_warnings(record=True) as shown:
        called_by(OURS, warns)()
        called_by(OURS, warns)()
    assert found == [f"engine/calls.py:2: {category}: goes"] * 2
    assert len(shown) == 2  # who records warnings still gets them


def test_others_are_not() -> None:
    warns = function(TORCH, "warns", "warnings.warn('goes', FutureWarning)")
    users = called_by(Path(__file__), warns)
    with torch_warnings() as found, warnings.catch_warnings(record=True):
        users()
        called_by(OURS, users)()  # a user's forward under a verb of ours
        called_by(Path(__file__), called_by(OURS, warns, "__torch_function__"))()  # which passes on what the user calls
        called_by(OURS, function(TORCH, "warns", "warnings.warn('odd', UserWarning)"))()
    assert found == []


def test_warnings_from_c_are_found() -> None:
    """torch's C++ warns without a frame, as `warnings.warn` itself does."""
    call = function(OURS, "call", "warn('from C', DeprecationWarning)", warn=warnings.warn)
    with torch_warnings() as found, warnings.catch_warnings(record=True):
        call()
    assert found == ["engine/calls.py:2: DeprecationWarning: from C"]
