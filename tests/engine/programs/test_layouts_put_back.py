"""What verbs put back of tensors without a storage of their own: sparse and MKL-DNN buffers, sparse gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tapehead as th
from tapehead.inspector.torch_internals.tensors import strided_parts

BUFFERS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "mkldnn": Tensor.to_mkldnn,
}
VERBS: dict[str, Callable[[Callable[[], Tensor]], object]] = {
    "record_forward": th.record_forward,
    "plan_mirror": lambda make_loss: th.plan_mirror(make_loss, budget=0.5),
    "compare": th.compare,
    "find_nan": th.find_nan,
    "order_dependent": th.order_dependent,
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
