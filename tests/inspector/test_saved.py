"""What the nodes keep: `graph.saved`. No capture is needed."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tapehead as th


def test_saved_tensors_know_storage_bytes_version_and_parameter() -> None:
    layer = nn.Linear(4, 8)
    x = torch.ones(2, 4, requires_grad=True)
    hidden = layer(x)
    graph = th.graph((hidden.relu() * hidden).sum(), layer)
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
    assert len(th.graph(loss).saved) == 1
    loss.backward()
    assert th.graph(loss).saved == ()


def test_tensors_without_a_storage_of_their_own_are_listed_without_one() -> None:
    matrix = torch.eye(3).to_sparse().requires_grad_()
    x = torch.ones(3, 2, requires_grad=True)
    model = nn.Sequential(nn.LazyLinear(2))
    saved = th.graph(torch.sparse.mm(matrix, x).sum(), model).saved
    assert {each.storage_bytes for each in saved} == {None, 24}


def test_each_slot_is_named_as_the_node_names_it() -> None:
    x, y = torch.ones(2, 3, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    graph = th.graph(x @ y, {"x": x, "y": y})
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
    graph = th.graph(Keeps.apply(x)[torch.tensor([0, 2])])
    assert [(saved.slot, saved.dtype, saved.shape) for saved in graph.saved] == [
        ("tensors", torch.float32, (4,)),
        ("tensors", torch.float64, (4,)),
        ("indices", torch.int64, (2,)),
    ]


def test_a_tensor_modified_since_it_was_saved_has_no_version() -> None:
    x = torch.ones(4, requires_grad=True)
    y = x.exp()
    loss = y.sum()
    assert [saved.version for saved in th.graph(loss).saved] == [0]
    y.add_(1)
    assert [saved.version for saved in th.graph(loss).saved] == [None]


def test_what_a_checkpoint_will_recompute_is_not_looked_at() -> None:
    calls = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp().sin()

    x = torch.ones(3, requires_grad=True)
    loss = checkpoint(forward, x, use_reentrant=False).sum()
    assert th.graph(loss).saved == () and len(calls) == 1
    loss.backward()
    assert len(calls) == 2
