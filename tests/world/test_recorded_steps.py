"""Recording whole steps leaves no trace: each program trains as without, and nothing of us stays in the process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import tapescope as ts

from .programs import HANDLES, PROGRAMS, Program, built
from .snapshot import differences, snapshot, state_of

pytestmark = pytest.mark.filterwarnings("ignore")


def name_of(each: Callable[..., object]) -> str:
    return each.__name__


def trained(build: Callable[[], Program], recorded: bool) -> dict[str, Any]:
    """After four steps, of which two are recorded, and one of these is traced task by task."""
    program = built(build)
    leaves = [each for each in program.tensors().values() if each.is_leaf and each.requires_grad]
    dense = [each for each in leaves if each.layout is torch.strided and each.is_floating_point()]
    optimizer = torch.optim.SGD(dense, 1e-3, momentum=0.5)
    process = {"modes", "gradients", "hooks of saved tensors", "autocast", "replaced", "hooks of all modules"}
    before = snapshot(program)
    with ts.record_steps(steps=2) if recorded else nullcontext():
        for _ in range(4):
            optimizer.zero_grad()
            program.make_loss().backward()
            optimizer.step()
    assert not process & set(differences(before, snapshot(program)))
    return state_of(program)


@pytest.mark.parametrize("build", PROGRAMS, ids=name_of)
def test_programs_train_as_without_while_their_steps_are_recorded(build: Callable[[], Program]) -> None:
    try:
        assert trained(build, recorded=True) == trained(build, recorded=False)
    finally:
        for handle in HANDLES:
            handle.remove()
        HANDLES.clear()
