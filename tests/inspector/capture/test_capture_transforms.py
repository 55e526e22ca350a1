"""The lines and modules of nodes made inside transforms of torch.func, against the stacks that anomaly mode notes."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Thread

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

import tapescope as ts
from tapescope.inspector.graph.source_lines import is_library
from tapescope.inspector.torch_private.nodes import notes_on

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).tanh()) * 2  # type: ignore[no-any-return]


def by_row(net: Net, x: Tensor) -> Tensor:
    return vmap(lambda row: net(row).sin().sum())(x)  # type: ignore[no-any-return]


def by_row_and_column(net: Net, x: Tensor) -> Tensor:
    return vmap(vmap(lambda number: (net.up.weight * number).exp().sum()))(x)  # type: ignore[no-any-return]


def slope_of_each_row(net: Net, x: Tensor) -> Tensor:
    return vmap(grad(lambda row: net(row).square().sum()))(x)  # type: ignore[no-any-return]


def meta_learning(net: Net, x: Tensor) -> Tensor:
    def adapted_loss(parameters: dict[str, Tensor], task: Tensor) -> Tensor:
        def loss(parameters: dict[str, Tensor]) -> Tensor:
            output: Tensor = functional_call(net, parameters, (task,))
            return output.square().mean()

        slopes = grad(loss)(parameters)
        return loss({name: each - 0.1 * slopes[name] for name, each in parameters.items()})

    return vmap(adapted_loss, (None, 0))(dict(net.named_parameters()), x.unflatten(0, (3, 2)))  # type: ignore[no-any-return]


def jacobian(net: Net, x: Tensor) -> Tensor:
    return jacrev(lambda y: net(y).sin())(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "forward", [by_row, by_row_and_column, slope_of_each_row, meta_learning, jacobian], ids=lambda each: each.__name__
)
def test_nodes_inside_transforms_have_their_lines(forward: Callable[[Net, Tensor], Tensor]) -> None:
    with torch.autograd.set_detect_anomaly(True), ts.capture():
        loss = forward(Net(), torch.randn(6, 4)).sum()
    graph = ts.graph(loss)
    made = [task for task in graph.tasks if not task.is_leaf]
    seen = [task for task in made if task.source is not None]
    assert len(seen) >= 0.95 * len(made)
    for task in seen:
        assert (task.source.file, task.source.line) == user_line_by_torch(graph.nodes[task.id])


def test_nodes_inside_transforms_have_their_modules() -> None:
    net = Net()
    with ts.capture():
        loss = vmap(net)(torch.randn(6, 4)).sum()
    graph = ts.graph(loss)
    modules = {task.name: graph.module(task) for task in graph.tasks if task.name in ("MmBackward0", "TanhBackward0")}
    assert modules == {"MmBackward0": "down", "TanhBackward0": ""}
    assert {graph.module(task) for task in graph.tasks} >= {"up", "down", ""}


def test_a_foreign_node_inside_a_transform_stays_foreign() -> None:
    """The node given is numbered as the operation's own: a thread counts its nodes alone."""
    results: list[Tensor] = []

    def make() -> None:
        results.append(torch.ones(2, 4, requires_grad=True).exp().cos())

    def captured() -> None:
        given, layer = results[0], nn.Linear(4, 4)
        with ts.capture():
            results.append(vmap(layer)(given))

    for work in (make, captured):
        thread = Thread(target=work)
        thread.start()
        thread.join()
    given, loss = results
    graph = ts.graph(loss)
    task = graph.tasks[list(graph.nodes).index(given.grad_fn)]
    assert task.operation is None and task.name == "CosBackward0"


def user_line_by_torch(node: torch.autograd.graph.Node) -> tuple[str, int]:
    """Return the innermost line outside torch of the stack that anomaly mode notes at a node."""
    frames = _FRAME.findall("".join(notes_on(node)["traceback_"]))
    return next((file, int(line)) for file, line in reversed(frames) if not is_library(file))
