"""For tests of recomputation: the plan that drops all it may, and a training with and without a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from tapescope.engine.recompute.apply_plan import apply_plan
from tapescope.engine.recompute.plan import RecomputePlan
from tapescope.engine.recompute.record_forward import record_forward
from tapescope.inspector.capture.forward_program import ForwardProgram

MakeLoss = Callable[[], Tensor]


def everything(program: ForwardProgram) -> RecomputePlan:
    """Drop every storage that can be recomputed."""
    return RecomputePlan.of(program, [each.number for each in program.storages if each.obstacle is None])


def plan_all(make_loss: MakeLoss) -> RecomputePlan:
    return everything(record_forward(make_loss, 1))


def some(program: ForwardProgram, seed: int) -> RecomputePlan:
    """Drops a random half."""
    generator = torch.Generator().manual_seed(seed)
    numbers = [each.number for each in program.storages if each.obstacle is None]
    chosen = torch.rand(len(numbers), generator=generator) < 0.5
    return RecomputePlan.of(program, [number for number, taken in zip(numbers, chosen, strict=True) if taken])


def gradients(make_loss: MakeLoss, leaves: Sequence[Tensor], plan: RecomputePlan | None = None) -> list[Tensor | None]:
    """Return the loss and the gradients of one backward. Random numbers are always the same."""
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(3)
    with nullcontext() if plan is None else apply_plan(plan):
        loss = make_loss()
    loss.backward()
    return [loss.detach(), *(leaf.grad for leaf in leaves)]


def same(some: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> bool:
    """Return whether they are equal bit by bit."""
    return len(some) == len(others) and all(
        one is other is None or (one is not None and other is not None and _bits(one) == _bits(other))
        for one, other in zip(some, others, strict=True)
    )


def _bits(tensor: Tensor) -> bytes:
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def agrees(make_loss: MakeLoss, leaves: Sequence[Tensor], plan: RecomputePlan | None = None) -> apply_plan:
    """Asserts that gradients under the plan (None: one that drops all it may) are the same bits, in the first forward
    under it and in the second. Returns the second one's context manager."""
    plan = plan_all(make_loss) if plan is None else plan
    expected = gradients(make_loss, leaves)
    assert same(gradients(make_loss, leaves, plan), expected)
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(3)
    with apply_plan(plan) as recomputed:
        loss = make_loss()
    loss.backward()
    assert same([loss.detach(), *(leaf.grad for leaf in leaves)], expected)
    return recomputed


def trained(model: nn.Module, make_loss: MakeLoss, steps: int, plan: RecomputePlan | None) -> dict[str, Tensor]:
    """The model's parameters and buffers after some steps from where it is; the model is put back."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    torch.manual_seed(3)
    for _ in range(steps):
        optimizer.zero_grad()
        with nullcontext() if plan is None else apply_plan(plan):
            loss = make_loss()
        loss.backward()
        optimizer.step()
    after = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(before)
    return {**after, "loss": loss.detach()}


@contextmanager
def nothing_left() -> Iterator[None]:
    """Asserts that afterwards neither modes nor hooks are where they were not before."""
    depth, functions = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    yield
    assert torch._C._len_torch_dispatch_stack() == depth
    assert torch._C._len_torch_function_stack() == functions
    saved = torch.ones(1, requires_grad=True).exp().grad_fn._raw_saved_result
    assert saved.unpack_hook is None
