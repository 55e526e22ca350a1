"""Calls of gradient scalers are seen, and the class is as torch made it afterwards."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.amp import GradScaler

from tapescope.inspector.torch_private.optimizer_steps import watching_scaler_steps, watching_scales

from ..interrupts import interrupted, lines_run

SCALE, STEP = GradScaler.scale, GradScaler._maybe_opt_step


def scaler() -> GradScaler:
    return GradScaler("cpu", init_scale=4.0)


def is_as_made() -> bool:
    return GradScaler.scale is SCALE and GradScaler._maybe_opt_step is STEP


class Seen(list[tuple[Any, Any, float]]):
    """The scaled loss, the result, and the factor."""

    def scaled(self, outputs: Any, result: Any, scale: Tensor) -> None:
        self.append((outputs, result, scale.item()))


def test_what_is_scaled_is_seen_once_by_each_and_results_are_torchs() -> None:
    loss, one, other = torch.tensor(3.0), Seen(), Seen()
    with watching_scales(one.scaled), watching_scales(other.scaled):
        result = scaler().scale(loss)
        assert scaler().scale(outputs=[loss, loss]) == [result, result]
        assert GradScaler("cpu", enabled=False).scale(loss) is loss
    assert result == 12 and len(one) == 2
    assert one == other == [(loss, result, 4.0), ([loss, loss], [result, result], 4.0)]
    assert is_as_made()
    scaler().scale(loss)
    assert len(one) == 2


@pytest.mark.parametrize("first_out", [0, 1])
def test_whoever_ends_first_the_class_is_as_it_was(first_out: int) -> None:
    seen = Seen(), Seen()
    stacks = ExitStack(), ExitStack()
    for stack, each in zip(stacks, seen, strict=True):
        stack.enter_context(watching_scales(each.scaled))
    stacks[first_out].close()
    scaler().scale(torch.tensor(1.0))
    assert (len(seen[first_out]), len(seen[1 - first_out])) == (0, 1)
    stacks[1 - first_out].close()
    assert is_as_made()


def test_a_method_that_the_program_wraps_meanwhile_stays_wrapped_and_is_seen_once() -> None:
    seen = Seen()
    try:
        with watching_scales(seen.scaled):
            beneath = GradScaler.scale
            wrapped = mock.Mock(side_effect=lambda *given: beneath(*given))
            GradScaler.scale = lambda *given: wrapped(*given)  # type: ignore[assignment,method-assign]
            theirs = GradScaler.scale
            scaler().scale(torch.tensor(1.0))
        assert GradScaler.scale is theirs
        with watching_scales(seen.scaled):
            scaler().scale(torch.tensor(2.0))
        assert GradScaler.scale is theirs
        scaler().scale(torch.tensor(3.0))
        assert [outputs.item() for outputs, _, _ in seen] == [1, 2] and wrapped.call_count == 3
    finally:
        GradScaler.scale = SCALE  # type: ignore[method-assign]


def test_a_call_that_raises_and_one_at_whose_end_nobody_watches_are_left() -> None:
    told: list[str] = []

    def watcher(*given: Any) -> Generator[None, Any, None]:
        try:
            told.append("begins")
            yield
        finally:
            told.append("is over")
        told.append("has returned")

    with ExitStack() as stack:
        stack.enter_context(watching_scaler_steps(watcher))
        with pytest.raises(KeyError):
            scaler()._maybe_opt_step(None, {})  # type: ignore[arg-type]
        assert told == ["begins", "is over"]
        optimizer = mock.Mock(step=mock.Mock(side_effect=stack.close))
        scaler()._maybe_opt_step(optimizer, {"found_inf_per_device": {}})
        assert told == ["begins", "is over"] * 2 and optimizer.step.call_count == 1
    assert is_as_made()


def test_an_interrupt_at_any_line_leaves_the_class_as_it_was_and_whoever_else_watches_watching() -> None:
    def watch() -> None:
        with watching_scales(Seen().scaled), watching_scaler_steps(lambda *given: iter(())):  # type: ignore[arg-type,return-value]
            scaler().scale(torch.tensor(1.0))

    lines = lines_run(watch)
    assert lines > 20
    for line in range(1, lines + 1):
        assert interrupted(watch, line)
        assert is_as_made(), line
        seen = Seen()
        with watching_scales(seen.scaled):
            assert interrupted(watch, line)
            scaler().scale(torch.tensor(1.0))
        assert seen[-1][0] == 1 and is_as_made(), line
