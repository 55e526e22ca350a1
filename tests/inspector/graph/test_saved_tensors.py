"""The nodes' saved tensors: `graph.saved`. No capture is needed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import (
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.memory.dry_run import dry_run
from tapescope.inspector.torch_private.reference_counts import _references_of_one
from tapescope.inspector.torch_private.saved_variables import saved_slots

from ..programs import Twice


def test_saved_tensors_know_storage_bytes_version_and_parameter() -> None:
    layer = nn.Linear(4, 8)
    x = torch.ones(2, 4, requires_grad=True)
    hidden = layer(x)
    graph = ts.graph((hidden.relu() * hidden).sum(), layer)
    saved = {(graph.tasks[each.task].name, each.shape): each for each in graph.saved}
    weight = saved["AddmmBackward0", (4, 8)]
    assert weight.parameter == "weight" and weight.storage_bytes == 4 * 8 * 4
    relu, product = (
        saved["ReluBackward0", (2, 8)],
        [each for each in graph.saved if graph.tasks[each.task].name == "MulBackward0"],
    )
    assert relu.storage_bytes == 2 * 8 * 4 and relu.version == 0 and relu.dtype == torch.float32
    assert {each.storage for each in product} >= {relu.storage}, "relu's result is kept by two tasks and is one storage"


def test_saved_tensors_that_died_are_not_listed() -> None:
    x = torch.ones(4, requires_grad=True)
    for _ in range(5):
        x.exp()
    loss = x.exp().sum()
    assert len(ts.graph(loss).saved) == 1
    loss.backward()
    assert ts.graph(loss).saved == ()


def test_tensors_without_a_storage_of_their_own_are_listed_without_one() -> None:
    matrix = torch.eye(3).to_sparse().requires_grad_()
    x = torch.ones(3, 2, requires_grad=True)
    model = nn.Sequential(nn.LazyLinear(2))
    saved = ts.graph(torch.sparse.mm(matrix, x).sum(), model).saved
    assert {each.storage_bytes for each in saved} == {None, 24}


def test_each_slot_is_named_as_the_node_names_it() -> None:
    x, y = torch.ones(2, 3, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    graph = ts.graph(x @ y, {"x": x, "y": y})
    assert [(saved.slot, saved.shape, saved.parameter) for saved in graph.saved] == [
        ("mat2", (3, 2), "y"),
        ("self", (2, 3), "x"),
    ]


def test_lists_and_what_a_custom_function_saved_are_seen() -> None:
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, None, x.double())
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.ones(4, requires_grad=True)
    graph = ts.graph(Keeps.apply(x)[torch.tensor([0, 2])])
    assert [(saved.slot, saved.dtype, saved.shape) for saved in graph.saved] == [
        ("tensors", torch.float32, (4,)),
        ("tensors", torch.float64, (4,)),
        ("indices", torch.int64, (2,)),
    ]


def test_a_tensor_modified_since_it_was_saved_has_no_version() -> None:
    x = torch.ones(4, requires_grad=True)
    y = x.exp()
    loss = y.sum()
    assert [saved.version for saved in ts.graph(loss).saved] == [0]
    y.add_(1)
    assert [saved.version for saved in ts.graph(loss).saved] == [None]


def test_what_a_checkpoint_will_recompute_is_not_looked_at() -> None:
    calls = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp().sin()

    x = torch.ones(3, requires_grad=True)
    loss = checkpoint(forward, x, use_reentrant=False).sum()
    assert ts.graph(loss).saved == () and len(calls) == 1
    loss.backward()
    assert len(calls) == 2


class SavesAll(torch.autograd.Function):
    """Keeps its input, its result and something between as torch wants it."""

    @staticmethod
    def forward(ctx, x):
        between = x.cos()
        result = between * 2
        ctx.save_for_backward(x, between, result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        x, between, result = ctx.saved_tensors
        return gradient * x * between * result


class SavesItsOwnWay(torch.autograd.Function):
    """Also keeps its input as an attribute, which a backward does not free."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.x = x
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


def changed_in_place(x: Tensor, y: Tensor) -> Tensor:
    fresh = x * 1
    fresh[:2] = y[2:]
    return fresh.mul_(1.5).sigmoid_()


def looked_up(x: Tensor, y: Tensor) -> Tensor:
    return x[torch.arange(4), :] * y.max(dim=0, keepdim=True).values


OPERATIONS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x.exp(),
    lambda x, y: x.sin(),
    lambda x, y: x * y,
    lambda x, y: x * 1.5,
    lambda x, y: x @ y,
    lambda x, y: x.t(),
    lambda x, y: x.reshape(2, 8).view(4, 4),
    lambda x, y: x.chunk(2)[0].repeat(2, 1),
    lambda x, y: torch.cat([x[:2] * y[2:], y[1:3]]),
    lambda x, y: x.expand(2, 4, 4).sin().sum(0),
    lambda x, y: x.detach() * y,
    lambda x, y: x * torch.ones(4, 4),
    lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: x.softmax(-1),
    lambda x, y: nn.functional.layer_norm(x, (4,), y[0]),
    lambda x, y: nn.functional.dropout(x),
    lambda x, y: SavesAll.apply(x),
    lambda x, y: SavesItsOwnWay.apply(x),
    lambda x, y: Twice.apply(x) * x,
    lambda x, y: torch.linalg.qr(x).Q,
    changed_in_place,
    looked_up,
]


def closed_over(x: Tensor, loss: Tensor) -> Any:
    return lambda: x


def hooked(x: Tensor, loss: Tensor) -> None:
    loss.register_hook(lambda gradient: None if x is not None else gradient)


def gradient_of_a_leaf(x: Tensor, loss: Tensor) -> Any:
    leaf = torch.ones(4, 4, requires_grad=True)
    leaf.grad = x.detach()
    return leaf


HOLDERS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda x, loss: x,
    lambda x, loss: {"x": [x]},
    lambda x, loss: x[0],
    lambda x, loss: x.detach(),
    lambda x, loss: x.detach()[:, 0],
    lambda x, loss: x.detach().numpy(),
    lambda x, loss: x.untyped_storage(),
    lambda x, loss: (x * 2).exp(),
    lambda x, loss: [slot.tensor for slot in saved_slots(x.grad_fn)] if x.grad_fn else None,
    closed_over,
    hooked,
    gradient_of_a_leaf,
    # what keeps no bytes
    lambda x, loss: x.grad_fn,
    lambda x, loss: weakref.ref(x),
    lambda x, loss: x.detach().clone(),
    lambda x, loss: x.retain_grad(),
]


def run(
    operations: list[tuple[int, int, int]], holders: list[tuple[int, int]], known: bool
) -> tuple[Tensor, list[Any], Any]:
    """A loss, what is held besides, and the leaves if they are `known`."""
    torch.manual_seed(0)
    leaves = [torch.rand(4, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True)]
    values = [*leaves, leaves[0] * leaves[1], leaves[0] + 1]
    for kind, x, y in operations:
        values.append(OPERATIONS[kind](values[x % len(values)], values[y % len(values)]))
    loss = torch.stack([each.sum() for each in values]).sum()
    held = [HOLDERS[kind](values[number % len(values)], loss) for kind, number in holders]
    return loss, held, leaves if known else None


@given(
    st.lists(st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 30), st.integers(0, 30)), max_size=10),
    st.lists(st.tuples(st.integers(0, len(HOLDERS) - 1), st.integers(0, 30)), max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_a_backward_frees_a_saved_storage_exactly_if_nothing_else_holds_it(
    operations: list[tuple[int, int, int]], holders: list[tuple[int, int]], known: bool, looked_at_before: bool
) -> None:
    loss, _held, _leaves = run(operations, holders, known)
    if looked_at_before:  # torch then has Python objects for all of the tensors
        assert ts.graph(loss).saved
    graph = ts.graph(loss)
    saved = graph.saved
    storages = [StorageWeakRef(slot.tensor.untyped_storage()) for node in graph.nodes for slot in saved_slots(node)]
    assert len(saved) == len(storages)
    again = ts.graph(loss).saved
    assert saved == again, "looking changes nothing"
    loss.backward()
    assert [each.held for each in saved] == [not storage.expired() for storage in storages]


def made_and_held(graph: ts.Graph) -> dict[tuple[str, str], tuple[str | None, bool]]:
    return {
        (graph.tasks[each.task].short_name, each.slot): (
            None if each.made_by is None else graph.tasks[each.made_by].short_name,
            each.held,
        )
        for each in graph.saved
    }


def test_a_saved_tensor_knows_the_task_that_made_it() -> None:
    x = torch.rand(4, 4, requires_grad=True)

    def forward() -> Tensor:
        left, right = (x * 1.5).chunk(2)
        looked_up = left.exp()[torch.tensor([0, 1])]
        return (looked_up * right.detach() @ SavesAll.apply(x)).sum()

    assert made_and_held(ts.graph(forward())) == {
        ("Mul", "other"): (None, False),  # 1.5 as a tensor of 8 bytes, and the detached one
        ("Exp", "result"): ("Exp", False),
        ("Index", "indices"): (None, False),
        ("SavesAll", "tensors"): ("SavesAll", False),  # the last of three
        ("Mm", "mat2"): ("SavesAll", False),
        ("Mm", "self"): ("Mul", False),
    }


def test_a_number_of_python_is_a_saved_tensor_of_eight_bytes() -> None:
    (saved,) = ts.graph(torch.ones(4, requires_grad=True) * 1.5).saved
    assert (saved.storage_bytes, saved.shape, saved.held) == (8, (), False)


def test_leaves_parameters_and_what_the_user_has_are_held() -> None:
    x, mine = torch.ones(4, requires_grad=True), torch.ones(4)

    def forward() -> Tensor:
        return nn.functional.mse_loss(x * torch.ones(4, requires_grad=True) * torch.ones(4) * mine, torch.ones(4))

    graph = ts.graph(forward())
    first, second, third = (task.id for task in graph.tasks if task.name == "MulBackward0")
    held = {(each.task, each.slot): each.held for each in graph.saved}
    assert held[first, "self"] and held[first, "other"], "of the leaf that nobody knows there is the AccumulateGrad"
    assert not held[second, "other"] and held[third, "other"]
    assert not held[third + 1, "self"] and not held[third + 1, "target"]


def test_a_tensor_modified_since_it_was_saved_has_no_maker() -> None:
    y = torch.ones(4, requires_grad=True).exp()
    loss = y.sum()
    y.add_(1)
    assert [(saved.made_by, saved.held) for saved in ts.graph(loss).saved] == [(None, True)]


def test_what_a_node_hides_counts_as_something_else() -> None:
    def forward() -> Tensor:
        x = torch.rand(4, requires_grad=True)
        factor, y = x * 2, x * 1
        y[:2].mul_(factor[:2])  # the node of mul_, inside a CopySlices, keeps the factor
        return (y * factor.sin()).sum()

    loss = forward()
    saved = made_and_held(ts.graph(loss))
    assert saved["Sin", "self"] == ("Mul", True) and saved["Mul", "self"] == ("CopySlices", False)


def test_a_tensor_without_a_storage_is_held_or_not() -> None:
    x, matrix = torch.ones(3, 2, requires_grad=True), torch.eye(3).to_sparse()

    def held(matrix: Tensor) -> list[bool]:
        loss = torch.sparse.mm(matrix, x).sum()
        del matrix
        return [each.held for each in ts.graph(loss).saved if each.storage is None]

    assert held(matrix) == [True]
    assert made_and_held(ts.graph(torch.sparse.mm(torch.eye(3).to_sparse(), x)))["SparseAddmm", "mat1"] == (None, False)


def test_references_are_counted_in_any_mode() -> None:
    y = (torch.ones(4, requires_grad=True) * 2).sin()
    with torch.inference_mode():
        assert made_and_held(ts.graph(y)) == {("Mul", "other"): (None, False), ("Sin", "self"): ("Mul", False)}


HOOKS = {
    "save_on_cpu": save_on_cpu,
    "saved_tensors_hooks": lambda: saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor),
    "allow_mutation": allow_mutation_on_saved_tensors,
    "disabled": lambda: disable_saved_tensors_hooks("none here"),
}


@pytest.mark.parametrize("hooks", HOOKS)
def test_references_are_counted_while_hooks_are_open(hooks: str) -> None:
    _references_of_one.cache_clear()
    y = (torch.ones(4, requires_grad=True) * torch.full((4,), 2.0)).sin()
    with HOOKS[hooks]():
        saved = made_and_held(ts.graph(y))
    assert saved == {("Mul", "other"): (None, False), ("Sin", "self"): ("Mul", False)}


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize(
    "verb",
    [
        lambda loss: str(ts.plan_order(loss)),
        lambda loss: str(ts.simulate(ts.graph(loss))),
        lambda loss: ts.backward(loss, policy="lpmf"),
        lambda loss: ts.backward(loss, memory=True),
        lambda loss: str(ts.orders.unpack_order(loss)),
        lambda loss: str(ts.compare(lambda: loss_of_branches(torch.ones(4, requires_grad=True)))),
    ],
    ids=["plan", "simulate", "lpmf", "memory", "unpack_order", "compare"],
)
def test_verbs_run_where_hooks_are_open(verb: Callable[[Tensor], object], hooks: str) -> None:
    x = torch.ones(4, requires_grad=True)
    (wanted,) = torch.autograd.grad(loss_of_branches(x), x)
    _references_of_one.cache_clear()
    with HOOKS[hooks]():
        loss = loss_of_branches(x)
        verb(loss)
        if x.grad is None:
            loss.backward()
    assert x.grad is not None and x.grad.equal(wanted)


def loss_of_branches(x: Tensor) -> Tensor:
    return torch.stack([x.exp().sin(), (x * x).cos()]).sum()


def test_only_what_the_program_saves_goes_through_hooks_that_are_open() -> None:
    packed: list[Tensor] = []
    _references_of_one.cache_clear()
    with saved_tensors_hooks(lambda tensor: packed.append(tensor) or tensor, lambda tensor: tensor):
        loss = loss_of_branches(torch.ones(4, requires_grad=True))
        count = len(packed)
        graph = ts.graph(loss)
        assert graph.saved == () and graph.saved.packed == count
        assert str(count) in repr(graph.saved) and "saved_tensors_hooks" in repr(graph.saved)
        ts.plan_order(loss)
    assert len(packed) == count


def test_what_hooks_packed_is_counted_beside_what_is_listed() -> None:
    x = torch.ones(4, requires_grad=True)
    with save_on_cpu():
        y = x.exp()
    saved = ts.graph(y.sin().sum()).saved
    assert (len(saved), saved.packed) == (1, 1)
    assert ts.graph(x.exp().sum()).saved.packed == 0


def dropped_input() -> Tensor:
    return (torch.ones(1000, requires_grad=True) * torch.ones(1000)).sum()


def test_measuring_and_predicting_hold_nothing_as_they_look() -> None:
    assert [each.held for each in ts.backward(dropped_input(), memory=True).graph.saved] == [False]
    graph = ts.graph(dropped_input())
    start = [(each.nbytes, each.keepers, each.held) for each in dry_run(graph).start]
    assert start == [(4000, ((0, "other"),), False), (4000, ((2, "leaf"),), False), (4, (), True)]
    assert [each.held for each in graph.saved] == [False]


def held_by_power(loss: Tensor) -> list[bool]:
    graph = ts.graph(loss)
    return [each.held for each in graph.saved if "Pow" in graph.tasks[each.task].name]


def complex_again(z: Tensor) -> Tensor:
    return torch.view_as_complex(torch.view_as_real(z))


VIEWS = {
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    "both": torch.view_as_real,
    "conj": lambda z: z.conj(),
    "imag of conj": lambda z: z.conj().imag,
    "complex again": complex_again,
    "part of complex again": lambda z: complex_again(z)[1:],
    "real part of complex again": lambda z: complex_again(z[1:]).real,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_view_between_real_and_complex_holds_its_base_for_the_graph_alone(view: Callable[[Tensor], Tensor]) -> None:
    a = torch.randn(8, requires_grad=True)
    held = held_by_power(view(torch.fft.fft(a)).square().abs().sum())  # not in the assertion, which keeps what it calls
    assert held == [False]
    kept = torch.fft.fft(a)
    held = held_by_power(view(kept).square().abs().sum())
    assert held == [True]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_tensor_between_two_views_and_their_base_holds_the_bytes_if_the_user_has_it(keeps: bool) -> None:
    a = torch.randn(8, requires_grad=True)
    kept = []

    def make_loss() -> Tensor:
        pairs = torch.view_as_real(torch.fft.fft(a))
        kept.extend([pairs] if keeps else [])
        one, other = torch.view_as_complex(pairs), torch.view_as_complex(pairs)
        return (one.square().abs() + other.square().abs()).sum() + pairs.square().sum()

    held = held_by_power(make_loss())
    assert held == [keeps] * 3


def test_the_peak_of_a_real_part_is_predicted_to_the_byte() -> None:
    a = torch.randn(8, requires_grad=True)
    with ts.capture(every_call=True):
        loss = torch.fft.fft(a).real.square().sum()
    predicted = ts.simulate(ts.graph(loss))
    assert predicted.estimates == ()
    assert predicted.peak_bytes == ts.backward(loss, memory=True).peak_bytes
