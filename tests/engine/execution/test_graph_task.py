"""The calls that user code gets while Python runs a backward, and single nodes run by the engine itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge, get_gradient_edge

import tapescope as ts
from tapescope.engine.execution.graph_task import GraphTask


def graph_task(loss: Tensor, keep_graph: bool = True) -> GraphTask:
    return GraphTask(ts.graph(loss), None, keep_graph, False)


def run(task: GraphTask, body: Callable[[], Any]) -> Any:
    found = []
    task.run(lambda: found.append(body()), list)
    return found[0]


def test_tensor_hooks_run_though_their_tensor_is_gone_and_the_node_does_not_run() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 3
    y.register_hook(lambda gradient: gradient * 10)
    loss = y.sum()
    node = y.grad_fn
    del y
    task = graph_task(loss)
    (result,) = run(task, lambda: task.run_tensor_hooks(node, [torch.ones(2)]))
    assert torch.equal(result, torch.full((2,), 10.0)) and x.grad is None


def test_tensor_hooks_see_none_for_a_gradient_that_is_missing() -> None:
    seen = []
    first, second = torch.ones(2, requires_grad=True).mul(1).split(1)
    second.register_hook(seen.append)
    task = graph_task(first)
    assert run(task, lambda: task.run_tensor_hooks(first.grad_fn, [torch.ones(1), None]))[1] is None
    assert seen == [None]
    assert run(task, lambda: task.run_tensor_hooks(first.grad_fn, [None, None])) == [None, None]


def test_a_retained_gradient_is_filled() -> None:
    y = torch.ones(2, requires_grad=True) * 3
    y.retain_grad()
    task = graph_task(y.sum())
    run(task, lambda: task.run_tensor_hooks(y.grad_fn, [torch.full((2,), 7.0)]))
    assert torch.equal(y.grad, torch.full((2,), 7.0))


def test_several_runs_are_one_backward_until_it_finishes() -> None:
    task = graph_task(torch.ones(2, requires_grad=True).sum())
    log: list[object] = []

    def queue(name: str) -> int:
        Variable._execution_engine.queue_callback(lambda: log.append(name))
        return torch._C._current_graph_task_id()

    assert run(task, lambda: queue("first")) == run(task, lambda: queue("second"))
    assert log == []
    run(task, lambda: task.finish(again=False))
    assert log == ["first", "second"]


def test_a_backward_inside_gets_the_engines_own_answers() -> None:
    x = torch.ones(2, requires_grad=True)
    task = graph_task(x.sum())

    def inner() -> list[Any]:
        seen = []
        y = torch.ones(2, requires_grad=True)
        node = get_gradient_edge(y).node
        hook = y.register_hook(
            lambda gradient: seen.extend([torch._C._current_graph_task_id(), torch._C._will_engine_execute_node(node)])
        )
        with torch.enable_grad():
            (y * 2).sum().backward()
        hook.remove()  # its node holds it, and it its node
        assert not torch._C._will_engine_execute_node(node), "asked of the outer one"
        return seen

    outer = run(task, torch._C._current_graph_task_id)
    number, executed = run(task, inner)
    assert number != outer and executed


def test_torch_answers_for_itself_afterwards_also_after_an_error() -> None:
    before = [torch._C._current_graph_task_id, torch._C._will_engine_execute_node, Variable._execution_engine]
    task = graph_task(torch.ones(2, requires_grad=True).sum())

    def bad() -> None:
        raise KeyError("bad")

    with pytest.raises(KeyError):
        run(task, bad)
    after = [torch._C._current_graph_task_id, torch._C._will_engine_execute_node, Variable._execution_engine]
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert torch._C._current_graph_task_id() == -1 and torch._C._current_autograd_node() is None
    assert torch.autograd._is_checkpoint_valid()
    with pytest.raises(RuntimeError, match="during backward pass"):
        Variable._execution_engine.queue_callback(lambda: None)


@pytest.mark.parametrize("free", [False, True])
def test_a_node_run_by_the_engine_alone_leaves_the_next_ones_to_us(free: bool) -> None:
    x = torch.full((2,), 2.0, requires_grad=True)
    y = x.exp()
    z = y * x  # one of the next nodes leads to the other
    task = graph_task(z.sum(), keep_graph=not free)
    edges = [GradientEdge(child, number) for child, number in z.grad_fn.next_functions]
    wanted = edges if free else []
    found = run(task, lambda: task.run_in_engine(z.grad_fn, [torch.ones(2)], wanted, free))
    assert torch.equal(found[0], x) and torch.equal(found[1], y) and x.grad is None
    assert torch.equal(y.grad_fn(torch.ones(2)), y), "the next node was not run, nor freed"
    if free:
        with pytest.raises(RuntimeError, match="second time"):
            z.grad_fn(torch.ones(2))
