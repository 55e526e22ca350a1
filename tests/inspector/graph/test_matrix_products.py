from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.inspector.graph.matrix_products import Product, products_of
from tapescope.inspector.torch_private.saved_variables import saved_slots


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def only(tensor: Tensor) -> tuple[ts.Graph, Product]:
    graph = ts.graph(get_gradient_edge(tensor))  # it keeps the nodes after the caller frees the tensor
    (product,) = products_of(graph).values()
    return graph, product


CALLS: dict[str, Callable[[], Tensor]] = {
    "mm": lambda: leaf(3, 4) @ leaf(4, 5),
    "mm of complex numbers": lambda: leaf(3, 4, dtype=torch.complex128) @ leaf(4, 5, dtype=torch.complex128),
    "addmm": lambda: torch.addmm(leaf(5), leaf(3, 4), leaf(4, 5), alpha=2, beta=3),
    "Linear": lambda: nn.Linear(4, 5, dtype=torch.float64)(leaf(3, 4)),
    "bmm": lambda: torch.bmm(leaf(2, 3, 4), leaf(2, 4, 5)),
    "baddbmm": lambda: torch.baddbmm(leaf(2, 3, 5), leaf(2, 3, 4), leaf(2, 4, 5), alpha=0.5, beta=0.25),
    "einsum": lambda: torch.einsum("bi,ij->bj", leaf(3, 4), leaf(4, 5)),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_node_gives_is_the_product_of_what_is_said(name: str) -> None:
    graph, product = only(CALLS[name]())
    node = graph.nodes[product.task]
    factors = {slot.name: slot.tensor.detach() for slot in saved_slots(node)}
    left, right = factors[product.left.slot], factors[product.right.slot]
    assert (left.shape, right.shape) == (product.left.shape, product.right.shape)
    assert product.result.shape is not None
    gradient = torch.randn(product.result.shape, dtype=product.result.dtype)
    given = node(gradient)  # type: ignore[operator]
    torch.testing.assert_close(given[product.left.output], product.alpha * gradient @ right.mH)
    torch.testing.assert_close(given[product.right.output], product.alpha * left.mH @ gradient)
    if product.addend is not None:
        torch.testing.assert_close(given[product.addend], product.beta * gradient)


def test_a_convolution_tells_what_it_takes_to_repeat_it() -> None:
    image, kernel = leaf(2, 4, 9, 9), leaf(6, 2, 3, 3)
    graph, product = only(functional.conv2d(image, kernel, stride=2, padding=1, dilation=2, groups=2))
    settings = dict(product.settings)
    gradient = torch.randn(2, 6, 4, 4, dtype=torch.float64)
    names = "stride", "padding", "dilation", "transposed", "output_padding", "groups"
    made = torch.ops.aten.convolution_backward(
        gradient, image, kernel, None, *(settings[name] for name in names), [True, True, False]
    )
    given = graph.nodes[product.task](gradient)  # type: ignore[operator]
    for factor in (product.left, product.right):
        torch.testing.assert_close(given[factor.output], made[factor.output])


def test_a_linear_of_its_own_keeps_what_is_looked_for() -> None:
    # On devices with their own linear there is this node, which no CPU makes.
    names = dir(torch._C._functions.LinearBackward0)
    assert {"_raw_saved_input", "_raw_saved_weight"} <= set(names)


def test_factors_nobody_asks_a_gradient_of_are_told_apart() -> None:
    _, product = only(torch.randn(3, 4) @ leaf(4, 5, dtype=torch.float32))
    assert product.wanted == (1,)
    assert (product.left.kept, product.right.kept) == ("saved", "not saved")
    assert (product.left.shape, product.right.shape) == ((3, 4), (4, 5))


def test_a_bmm_that_keeps_one_factor_still_has_both_shapes() -> None:
    _, product = only(torch.bmm(torch.randn(2, 3, 4), leaf(2, 4, 5, dtype=torch.float32)))
    assert (product.left.shape, product.right.shape) == ((2, 3, 4), (2, 4, 5))
    _, product = only(torch.bmm(leaf(2, 3, 4, dtype=torch.float32), torch.randn(2, 4, 5)))
    assert (product.left.shape, product.right.shape) == ((2, 3, 4), (2, 4, 5))


def test_what_a_checkpoint_packed_is_not_unpacked() -> None:
    weight, x = leaf(4, 4), leaf(3, 4)
    forwards = []

    def forward(x: Tensor) -> Tensor:
        forwards.append(1)
        return (x @ weight).relu()

    loss = checkpoint(forward, x, use_reentrant=False).sum()  # type: ignore[union-attr]
    _, product = only(loss)
    assert (product.left.kept, product.right.kept) == ("packed", "packed")
    assert (product.left.shape, product.right.shape) == ((3, 4), (4, 4))
    assert len(forwards) == 1
    with saved_tensors_hooks(lambda tensor: tensor, lambda _: pytest.fail("was unpacked")):
        made = leaf(3, 4) @ leaf(4, 4)
    assert only(made)[1].left.kept == "packed"


def test_a_modified_and_a_freed_factor_are_told() -> None:
    x, weight = leaf(3, 4), leaf(4, 4)
    hidden = x * 1
    made = hidden @ weight
    hidden.detach().add_(1)
    assert only(made)[1].left.kept == "modified"
    made = x @ weight
    made.sum().backward()
    assert only(made)[1].left.kept == "gone"


def test_sparse_matrices_are_left_out() -> None:
    sparse = torch.eye(4).to_sparse().requires_grad_()
    assert not products_of(ts.graph(torch.mm(sparse, leaf(4, 4, dtype=torch.float32)).sum()))


def test_no_tensor_is_kept() -> None:
    x = leaf(3, 4) * 1
    made = x @ leaf(4, 5)
    products = products_of(ts.graph(made))
    gone = weakref.ref(x)
    del x, made
    gc.collect()
    assert gone() is None
    assert len(products) == 1


def test_factors_that_are_one_tensor_have_one_identity() -> None:
    weight, other = leaf(4, 4), leaf(4, 4)
    made = [leaf(3, 4) @ weight, leaf(3, 4) @ weight, leaf(3, 4) @ weight.t(), leaf(3, 4) @ other]
    identities = [product.right.identity for product in products_of(ts.graph(made)).values()]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 3
