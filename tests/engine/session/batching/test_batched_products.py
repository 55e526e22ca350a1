"""One product for several tasks gives what their nodes give, laid out alike, and counts what it did."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.session.batching.batched_products import Operands, Tally, launches_of, stacked, summed
from tapescope.inspector.graph.matrix_products import products_of


def operands(results: list[Tensor], name: str) -> tuple[list[Operands], list[list[Tensor | None]]]:
    """Return the operands and the results of the nodes with this name."""
    graph = ts.graph(results)
    members, given = [], []
    for task, product in products_of(graph).items():
        node = graph.nodes[task]
        assert node.name() == name
        gradient = torch.randn(product.result.shape or (), dtype=product.result.dtype)
        with torch.no_grad():
            given.append(list(node(gradient)))  # type: ignore[operator]
        members.append(Operands.of(product, node, gradient, product.wanted))
    return members, given


CASES = {
    "MmBackward0": lambda x: [x @ torch.randn(4, 5, requires_grad=True) for _ in range(3)],
    "AddmmBackward0": lambda x: [nn.Linear(4, 5)(x) for _ in range(3)],
    "BmmBackward0": lambda x: [torch.bmm(x[None], torch.randn(1, 4, 5, requires_grad=True)) for _ in range(3)],
}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_stack_gives_what_each_node_gives(name, shared):
    torch.manual_seed(0)
    results = CASES[name](torch.randn(2, 4, requires_grad=True))
    if not shared:
        results = [each for _ in range(3) for each in CASES[name](torch.randn(2, 4, requires_grad=True))[:1]]
    members, expected = operands(results, name)
    outputs, tally = members[0].product.wanted, Tally()
    found = stacked(members, outputs, None, tally)
    for one, other in zip(found, expected, strict=True):
        for output in outputs:
            torch.testing.assert_close(one[output], other[output])
            assert one[output].stride() == other[output].stride()
    assert tally.launches < 3 * launches_of(members[0].product, outputs, None) == 6
    assert tally.copied_bytes > 0
    (first, *_) = found
    version = found[1][outputs[0]]._version
    first[outputs[0]].add_(1)
    assert found[1][outputs[0]]._version == version


@pytest.mark.parametrize("rows", [(2, 2, 2), (1, 3, 2)])
def test_a_tree_is_the_sum_of_what_each_node_gives(rows):
    torch.manual_seed(0)
    layer = nn.Linear(4, 5)
    members, expected = operands([layer(torch.randn(count, 4)) for count in rows], "AddmmBackward0")
    (output,) = members[0].product.wanted
    tally = Tally()
    found = summed(members, output, tally)
    torch.testing.assert_close(found, sum(each[output] for each in expected))
    assert found.stride() == expected[0][output].stride()
    assert tally.launches == 3
    torch.testing.assert_close(summed(members[:1], output, tally), expected[0][output])


def test_of_one_and_the_same_factor_the_gradients_are_summed_first():
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 5), torch.randn(2, 4)
    members, expected = operands([layer(x) for _ in range(4)], "AddmmBackward0")
    (output,) = members[0].product.wanted
    tally = Tally()
    torch.testing.assert_close(summed(members, output, tally), sum(each[output] for each in expected))
    assert tally.copied_bytes == 4 * members[0].gradient.nbytes
