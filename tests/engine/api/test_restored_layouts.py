"""Verbs restore tensors without a storage: sparse and MKL-DNN buffers, sparse gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.inspector.torch_private.tensors import strided_parts
from tapescope.tests.says import says

BUFFERS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "mkldnn": Tensor.to_mkldnn,
}
VERBS: dict[str, Callable[[Callable[[], Tensor]], object]] = {
    "record_forward": ts.record_forward,
    "plan_recompute": lambda make_loss: ts.plan_recompute(make_loss, budget=0.5),
    "compare": ts.compare,
    "find_nan": ts.find_nan,
    "find_order_dependence": ts.find_order_dependence,
}


class Counting(nn.Module):
    """Writes a buffer in each forward."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 4)
        self.register_buffer("weights", BUFFERS[layout](2 * torch.eye(4)))

    def forward(self, ids: Tensor) -> Tensor:
        self.weights.mul_(2)
        return self.linear(self.table(ids)) @ self.weights.to_dense()


def content(tensor: Tensor) -> list[Tensor]:
    return [part.clone() for part in strided_parts(tensor)] or [tensor.to_dense()]


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.parametrize("layout", BUFFERS)
@pytest.mark.parametrize("verb", VERBS)
def test_sparse_buffers_and_gradients_are_as_before(verb: str, layout: str) -> None:
    model, ids = Counting(layout), torch.tensor([1, 2, 2])

    def make_loss() -> Tensor:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        return model(ids).square().mean()

    make_loss().backward()
    kept = {"buffer": model.weights, "grad": model.table.weight.grad}
    before = {name: content(tensor) for name, tensor in kept.items()}
    versions = {name: tensor._version for name, tensor in kept.items()}
    VERBS[verb](make_loss)
    assert model.weights is kept["buffer"] and model.table.weight.grad is kept["grad"]
    for name, tensor in kept.items():
        assert list(map(torch.equal, content(tensor), before[name])) == [True] * len(before[name]), name
    assert {name: tensor._version for name, tensor in kept.items()} == versions


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.parametrize("verb", [each for each in VERBS if each != "record_forward"])
def test_a_gradient_that_pytorch_does_not_let_be_assigned_is_refused_and_stays(verb: str) -> None:
    weight = torch.eye(4).to_sparse_csr().requires_grad_()

    def make_loss() -> Tensor:
        return (weight @ torch.ones(4, 3)).sum()

    make_loss().backward()
    assert weight.grad is not None and weight.grad.layout is torch.strided
    grad, values = weight.grad, weight.grad.clone()
    with pytest.raises(NotImplementedError) as raised:
        VERBS[verb](make_loss)
    says(str(raised.value), "(4, 4)", "torch.sparse_csr", "torch.strided", ".grad to None")
    assert weight.grad is grad and torch.equal(grad, values)


MADE: dict[str, Callable[[], Tensor]] = {
    **{name: lambda make=make: make(2 * torch.eye(4)) for name, make in BUFFERS.items()},
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(1, 4)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(1, 4)], layout=torch.jagged),
}
WAYS: dict[str, Callable[[Tensor], object]] = {
    "itself": lambda buffer: buffer.mul_(0.9),
    "data": lambda buffer: buffer.data.mul_(0.9),
    "detach": lambda buffer: buffer.detach().mul_(0.9),
    "values": lambda buffer: (buffer._values() if buffer.layout is torch.sparse_coo else buffer.values()).mul_(0.9),
}


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", MADE)
@pytest.mark.parametrize("verb", ["record_forward", "plan_recompute", "find_nan"])
def test_what_is_written_through_an_alias_is_as_before(verb: str, layout: str, way: str) -> None:
    if (layout, way) == ("mkldnn", "values"):
        pytest.skip("mkldnn tensors have no values()")
    buffer, linear, x = MADE[layout](), nn.Linear(4, 4), torch.ones(3, 4)

    def total() -> Tensor:
        if layout == "nested":
            return torch.nested.to_padded_tensor(buffer, 0.0).sum()
        return (buffer.values() if layout == "jagged" else buffer.to_dense()).sum()

    def make_loss() -> Tensor:
        with torch.no_grad():
            WAYS[way](buffer)
        return linear(x).sum() + total()

    before = total()
    VERBS[verb](make_loss)
    assert torch.equal(total(), before)
