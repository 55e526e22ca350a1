from __future__ import annotations

import torch

from tapescope.inspector.torch_private.random_states import (
    accelerators_awake,
    generator_of,
    random_states,
    same_random_states,
    seed,
    set_random_states,
)

CPU = torch.device("cpu")


def test_states_are_put_back_and_seeds_repeat() -> None:
    before = random_states([CPU])
    first = torch.randn(3)
    assert not torch.equal(random_states([])[CPU], before[CPU])
    set_random_states(before)
    assert torch.equal(torch.randn(3), first)
    with same_random_states([]):
        seed(CPU, 5)
        seeded = torch.randn(3)
    after = torch.randn(3)
    seed(CPU, 5)
    assert torch.equal(torch.randn(3), seeded)
    set_random_states(before)
    torch.randn(3)
    assert torch.equal(torch.randn(3), after)
    set_random_states(before)


def test_an_accelerator_draws_from_its_own(accelerator: torch.device) -> None:
    assert accelerator in accelerators_awake()
    with same_random_states([accelerator]):
        before = random_states([accelerator])
        assert set(before) == {CPU, accelerator}
        first = torch.randn(3, device=accelerator)
        set_random_states(before)
        assert torch.equal(torch.randn(3, device=accelerator), first)
        seed(accelerator, 5)
        seeded = torch.randn(3, device=accelerator)
        seed(accelerator, 5)
        assert torch.equal(torch.randn(3, device=accelerator), seeded)
        generator_of(accelerator).manual_seed(5)
        assert torch.equal(torch.randn(3, device=accelerator), seeded)
