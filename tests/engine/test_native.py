"""What PyTorch's engine does under a pinned order, and what is left behind: nothing."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import tapehead as th
from tapehead.engine.policies import POLICIES
from tapehead.inspector.torch_internals import node_hooks

from .comparing import assert_equal, compiled_loss, gradients_of


def test_native_takes_inputs_and_runs_only_what_they_need() -> None:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    run = th.backward((x.exp() * y.sin()).sum(), inputs=[x], policy="bfs")
    assert x.grad is not None and y.grad is None
    ran = {run.graph.tasks[task].name for task in run.order}
    assert "ExpBackward0" in ran and "SinBackward0" not in ran
    assert list(run.order) == [task for task in run.planned if task in set(run.order)]


def test_native_retains_and_creates_graphs_as_pytorch_does() -> None:
    x = torch.full((3,), 2.0, requires_grad=True)
    loss = (x**3).sum()
    th.backward(loss, retain_graph=True)
    x.grad = None
    th.backward(loss, create_graph=True, policy="bfs")
    (second,) = torch.autograd.grad(x.grad.sum(), x)
    assert torch.equal(second, torch.full((3,), 12.0))


def test_native_frees_the_graph_unless_told_otherwise() -> None:
    loss = torch.ones(3, requires_grad=True).exp().sum()
    th.backward(loss)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_pinned_numbers_and_hooks_are_gone_afterwards() -> None:
    x = torch.ones(3, requires_grad=True)
    loss = (x.exp() + x.sin()).sum()
    graph = th.graph(loss)
    numbers = [node._sequence_nr() for node in graph.nodes]
    th.backward(loss, policy="bfs", retain_graph=True)
    assert [node._sequence_nr() for node in graph.nodes] == numbers
    assert [node_hooks(node) for node in graph.nodes] == [([], [])] * len(graph)


def test_an_interrupt_leaves_numbers_and_hooks_as_they_were() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    loss = (y + x.sin()).sum()
    graph = th.graph(loss)
    numbers = [node._sequence_nr() for node in graph.nodes]

    def interrupt(gradient: Tensor) -> None:
        raise KeyboardInterrupt

    handle = y.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        th.backward(loss, policy="bfs", retain_graph=True)
    handle.remove()
    assert [node._sequence_nr() for node in graph.nodes] == numbers
    x.grad = None
    th.backward(loss, policy="dfs")
    torch.testing.assert_close(x.grad, x.detach().exp() + x.detach().cos())


def test_numbers_of_shared_leaves_come_back_after_backwards_in_several_threads() -> None:
    layer = nn.Linear(8, 8)
    leaves = [node for node, _ in layer(torch.ones(1, 8)).grad_fn.next_functions if node is not None]
    runs: list[th.Run] = []

    def work() -> None:
        for _ in range(20):
            runs.append(th.backward(layer(torch.ones(4, 8)).sum(), policy="bfs"))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {node._sequence_nr() for node in leaves if "Accumulate" in node.name()} == {2**64 - 1}
    assert all(sorted(run.order) == list(range(len(run.graph))) for run in runs)


def test_the_order_leaves_out_what_a_backward_inside_the_backward_runs() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2

    def inner(gradient: Tensor) -> None:
        with torch.enable_grad():
            (x * 3).sum().backward()

    y.register_hook(inner)
    run = th.backward(y.sum())
    assert run.order == run.planned and torch.equal(x.grad, torch.full((2,), 5.0))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_native_runs_compiled_regions(policy: str) -> None:
    x = torch.arange(3.0, requires_grad=True)
    expected = gradients_of([x], lambda: compiled_loss(x).backward())
    found = gradients_of([x], lambda: th.backward(compiled_loss(x), policy=policy))
    assert_equal(found, expected, bitwise=False)
