"""Selective checkpoints under the hooks that `ts.record_forward`, `ts.plan_recompute` and `ts.recompute` open."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import checkpoint as checkpoint_module
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import tapescope as ts
from tapescope.inspector.torch_private.checkpoints import cached_results, region_of

from ..recomputed_programs import plan_all, same


def selective_program(users_hooks: bool) -> Callable[[], Tensor]:
    """Three regions which keep their sines and recompute the rest, between layers outside of them."""
    layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
    x = torch.randn(64, 16)

    def policy(context: object, operator: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        keeps = operator is torch.ops.aten.sin.default
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    def region(layer: nn.Module, y: Tensor) -> Tensor:
        return layer(y).erf().sin().erf()

    def make_loss() -> Tensor:
        with saved_tensors_hooks(lambda each: each, lambda each: each) if users_hooks else nullcontext():
            y = x
            for layer in layers:
                y = layer(y).tanh().exp()
                y = checkpoint(
                    region,
                    layer,
                    y,
                    use_reentrant=False,
                    context_fn=partial(create_selective_checkpoint_contexts, policy),
                )
        return y.sum()

    return make_loss


@pytest.mark.filterwarnings("ignore:A saved_tensors_hooks context:FutureWarning")
@pytest.mark.parametrize("users_hooks", [False, True])
def test_selective_checkpoints_warn_and_save_as_without_our_hooks(users_hooks: bool) -> None:
    """From torch 2.14 on they warn of hooks that are open around them: only the user's own count."""
    make_loss = selective_program(users_hooks)

    def warned(run: Callable[[], object]) -> set[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
        return {str(each.message) for each in caught if issubclass(each.category, FutureWarning)}

    def kept(around: AbstractContextManager[object]) -> list[Tensor]:
        """Return the tensors that the checkpointed regions keep outside of the graph."""
        with around:
            loss = make_loss()
        regions = dict.fromkeys(region for node in ts.graph(loss).nodes if (region := region_of(node)) is not None)
        found = [each for region in regions for each in cached_results(region)]
        loss.backward()
        return found

    expected = warned(make_loss)
    assert bool(expected) == (users_hooks and hasattr(checkpoint_module, "_current_user_saved_tensors_hooks"))
    assert warned(lambda: ts.record_forward(make_loss)) == expected
    assert warned(lambda: ts.plan_recompute(make_loss, 0.7, seconds=0.1, repetitions=1)) == expected
    plan = plan_all(make_loss)
    assert users_hooks or plan.dropped
    plain = kept(nullcontext())
    assert len(plain) == 3
    for _ in range(3):  # the first forward under a plan is followed otherwise than later ones
        assert same(kept(ts.recompute(plan)), plain)
        assert warned(lambda: kept(ts.recompute(plan))) == expected
