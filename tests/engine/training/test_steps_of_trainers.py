"""Steps of loops that Trainers run are recorded like one's own, and the Trainer does not notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

import tapescope as ts

from ..trainer_loops import LOOPS
from .test_record_steps import held_after_optimizer, in_place, walked


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loop", LOOPS)
def test_steps_of_a_trainer_are_as_without_and_hold_the_walked_sums_to_the_byte(loop: str, tmp_path: Path) -> None:
    expected = LOOPS[loop](tmp_path / "plain", 6)
    sums: list[dict[str, int]] = []

    def walk(optimizer: Optimizer, *given: Any) -> None:
        sums.append(walked([optimizer]))

    hook = register_optimizer_step_post_hook(walk)
    try:
        before = in_place()
        with ts.record_steps(steps=3) as steps:
            found = LOOPS[loop](tmp_path / "recorded", 6)
        assert in_place() == before
    finally:
        hook.remove()
    for (name, one), other in zip(expected.state_dict().items(), found.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert (len(steps), len(sums)) == (3, 6)
    for step, wanted in zip(steps, sums, strict=False):
        held = held_after_optimizer(step.timeline)
        assert {kind: held.get(kind, 0) for kind in wanted} == wanted
    assert len(steps[1].run.order) == len(steps[1].run.graph.tasks) > 10
