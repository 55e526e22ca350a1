"""`unobserved` leaves the thread as it found it, also where Ctrl-C comes as it ends."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tapescope.inspector.torch_private import thread_state as modes


def packs() -> int:
    """Return the number of saved tensors that the user's hooks receive."""
    seen: list[torch.Tensor] = []
    with saved_tensors_hooks(lambda tensor: seen.append(tensor.detach()), lambda packed: packed):
        torch.ones((), requires_grad=True).exp()
    return len(seen)


@pytest.mark.parametrize("call", ["_set_fwd_grad_enabled", "_set_grad_enabled"])
def test_an_interrupt_at_the_end_of_a_block_leaves_no_mode_behind(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_mode, calls = getattr(torch._C, call), []

    def interrupted(value: bool) -> None:
        set_mode(value)
        calls.append(value)
        if calls == [False, True]:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch._C, call, interrupted)
    with pytest.raises(KeyboardInterrupt), modes.unobserved():
        pass
    monkeypatch.undo()
    assert torch.is_grad_enabled() and torch._C._is_fwd_grad_enabled() and torch._C._is_torch_function_enabled()
    assert packs() == 1
