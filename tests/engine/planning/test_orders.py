"""Random programs in random legal orders: both engines do the same, and what PyTorch does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tapescope as ts

from ..backward_programs import random_policy, random_program
from ..comparing import assert_equal

Log = list[tuple[str, int, Any]]


def hooked_program(seed: int, log: Log) -> tuple[list[Tensor], list[Tensor]]:
    """Leaves and roots of a random program with hooks of all kinds, some of which replace gradients."""
    pick = random.Random(seed)
    seen: list[Tensor] = []

    def visit(tensor: Tensor) -> None:
        number = len(seen)
        seen.append(tensor)
        factor = pick.choice([None, None, 2.0, -1.0])

        def tensor_hook(gradient: Tensor) -> Tensor | None:
            log.append(("tensor", number, gradient.tolist()))
            return None if factor is None else gradient * factor

        def post_hook(given: tuple[Tensor | None, ...], taken: tuple[Tensor | None, ...]) -> None:
            log.append(("post", number, [each is None for each in given]))

        match pick.randrange(6):
            case 0:
                tensor.register_hook(tensor_hook)
            case 1:
                tensor.grad_fn.register_prehook(
                    lambda taken: log.append(("pre", number, [each is None for each in taken]))
                )
            case 2:
                tensor.grad_fn.register_hook(post_hook)
            case 3:
                tensor.retain_grad()

    leaves, loss = random_program(seed, visit=visit)
    for number, leaf in enumerate(leaves):
        leaf.register_hook(lambda gradient, number=number: log.append(("leaf", number, gradient.tolist())))
        leaf.register_post_accumulate_grad_hook(
            lambda leaf, number=number: log.append(("accumulated", number, leaf.grad.tolist()))
        )
    return leaves, [loss, *pick.sample(seen, 2)]


def outcome(seed: int, backward: Callable[[list[Tensor], list[Tensor]], object]) -> tuple[Log, list[Tensor | None]]:
    log: Log = []
    leaves, roots = hooked_program(seed, log)
    backward(roots, [torch.ones_like(root) for root in roots])
    return log, [leaf.grad for leaf in leaves]


@pytest.fixture(autouse=True)
def _double() -> Any:
    """Sums in another order differ by less in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_both_engines_do_the_same_in_any_order_and_have_pytorchs_gradients(seed: int, order: int) -> None:
    def run(engine: str) -> Callable[[list[Tensor], list[Tensor]], object]:
        return lambda roots, gradients: ts.backward(roots, gradients, policy=random_policy(order), engine=engine)

    native_log, native = outcome(seed, run("native"))
    direct_log, direct = outcome(seed, run("direct"))
    assert direct_log == native_log
    assert_equal(direct, native, bitwise=True)
    log, expected = outcome(seed, torch.autograd.backward)
    assert_equal(direct, expected, bitwise=False)
    assert sorted(each[:2] for each in log) == sorted(each[:2] for each in direct_log)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000))
def test_heap_is_pytorch_to_the_bit_and_hook_by_hook(seed: int) -> None:
    expected_log, expected = outcome(seed, torch.autograd.backward)
    for engine in ("native", "direct"):
        log, found = outcome(
            seed, lambda roots, gradients, engine=engine: ts.backward(roots, gradients, policy="heap", engine=engine)
        )
        assert log == expected_log
        assert_equal(found, expected, bitwise=True)


def sum_of(created: list[str], added: list[str]) -> Tensor:
    x = torch.ones(4, requires_grad=True)
    made = {name: getattr(torch, name)(x) for name in created}
    return (made[added[0]] + made[added[1]]).sum()


@pytest.mark.parametrize(
    ("created", "added", "first"),
    [
        (["sin", "cos"], ["sin", "cos"], {"bfs": "Sin", "dfs": "Cos", "heap": "Cos"}),
        (["sin", "cos"], ["cos", "sin"], {"bfs": "Cos", "dfs": "Sin", "heap": "Cos"}),
        (["cos", "sin"], ["sin", "cos"], {"bfs": "Sin", "dfs": "Cos", "heap": "Sin"}),
    ],
)
def test_bfs_and_dfs_follow_the_operands_and_heap_the_order_of_creation(
    created: list[str], added: list[str], first: dict[str, str]
) -> None:
    for policy, name in first.items():
        for engine in ("native", "direct"):
            run = ts.backward(sum_of(created, added), policy=policy, engine=engine)
            assert run.graph.tasks[run.order[2]].short_name == name
    loss, ran = sum_of(created, added), []
    add = loss.grad_fn.next_functions[0][0]
    for node, _ in add.next_functions:
        node.register_prehook(lambda gradients, node=node: ran.append(node.name()))
    loss.backward()
    assert ran[0] == f"{first['heap']}Backward0", "PyTorch's own engine"
