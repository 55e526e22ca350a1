"""A capture to which torch reports each new node (2.14+), against one whose function mode also intercepts each call."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import tapescope as ts
from tapescope.inspector.graph.node_metadata import operation_of
from tapescope.inspector.graph.operations_and_calls import Operation
from tapescope.inspector.torch_private.nodes import TELLS_OF_NEW_NODES

pytestmark = pytest.mark.skipif(not TELLS_OF_NEW_NODES, reason="torch tells of new nodes from 2.14 on")


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def written(x: Tensor) -> Tensor:
    y = x * 1
    y += x
    y[0] = x[1]
    y.mul_(2)
    return y


FORWARDS: dict[str, Callable[[Tensor], Any]] = {
    "operators": lambda x: [x + x, 1 - x, x / 2, 2 / x, x**2, 2**x, -x, x @ x, x % 2, x[0], x.T, 1 + x, abs(x)],
    "methods": lambda x: [x.exp(), x.sum(), x.view(-1), x.norm(), x.split(1)[0], x.t(), x.unbind()[0], x.softmax(0)],
    "functions": lambda x: [torch.mul(x, x), torch.stack([x, x]), torch.sum(x), torch.cat([x]), functional.gelu(x)],
    "losses": lambda x: [functional.cross_entropy(x, torch.tensor([0, 1])), functional.mse_loss(x, x.detach())],
    "norms": lambda x: [functional.layer_norm(x, (2,)), functional.normalize(x), functional.relu(x)],
    "modules": lambda x: [nn.ReLU()(x), nn.LayerNorm(2)(x), nn.Linear(2, 2)(x), nn.Dropout(0.5)(x), nn.GELU()(x)],
    "custom functions": lambda x: [Scale.apply(x), torch.ops.aten.sin(x), torch.ops.aten.sin.default(x)],
    "written": lambda x: [written(x)],
    "chained": lambda x: [x.sin().cos().exp() + functional.relu(x.tanh() * torch.exp(x))],
}


@pytest.mark.parametrize("forward", FORWARDS.values(), ids=FORWARDS)
def test_operations_are_named_as_a_function_mode_names_them(forward: Callable[[Tensor], Any]) -> None:
    x = torch.rand(2, 2, requires_grad=True)
    names = []
    for every_call in (False, True):
        torch.manual_seed(0)
        with ts.capture(every_call=every_call):
            results = forward(x)
        graph = ts.graph(results)
        names.append([(task.name, task.operation.name if task.operation else None) for task in graph.tasks])
    assert names[0] == names[1]


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.Linear(2, 2)
        self.first.register_forward_pre_hook(lambda module, args: (args[0].sin(),))
        self.first.register_forward_hook(lambda module, args, result: result.cos())
        self.second.register_full_backward_hook(lambda module, given, taken: None)
        self.second.forward = lambda x: nn.Linear.forward(self.second, x).exp()  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.second(self.first(x)) * 2
        return nn.MSELoss()(x, torch.zeros(2, 2))  # type: ignore[no-any-return]


def test_modules_and_lines_are_those_that_global_hooks_see() -> None:
    model = Hooked()
    found = []
    for every_call in (False, True):
        with ts.capture(every_call=every_call):
            loss = model(torch.ones(2, 2))
        graph = ts.graph(loss)
        calls = [(call.path, call.class_name, call.index, call.parent) for call in graph.calls]
        found.append((calls, [(task.name, task.call, task.parameter, task.source) for task in graph.tasks]))
    assert found[0] == found[1]


def test_nodes_of_a_double_backward_have_the_line_that_asked_for_it() -> None:
    x = torch.ones(3, requires_grad=True)
    with ts.capture():
        (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)  # the line of the backward
        loss = slope.sin().sum()
    graph = ts.graph(loss)
    made = [task for task in graph.tasks if task.source and "# the line of the backward" in task.source.code()[0]]
    assert {task.operation.name for task in made if isinstance(task.operation, Operation)} >= {"grad"}
    assert all(task.source is not None for task in graph.tasks)


def test_nodes_of_a_recomputation_have_their_lines_modules_and_times() -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    seen: list[tuple[str, Operation | None]] = []
    with ts.capture(), set_checkpoint_early_stop(False):
        loss = checkpoint(block, torch.ones(1, 2, requires_grad=True), use_reentrant=False).sum()
        look = torch.autograd.graph.node_creation_hook(lambda node: seen.append((node.name(), operation_of(node))))
        with look:
            loss.backward()
    seen = [each for each in seen if each[0] in ("AddmmBackward0", "TanhBackward0")]
    assert [name for name, _ in seen] == ["AddmmBackward0", "TanhBackward0"]
    times = []
    for (_, operation), path in zip(seen, ("0", "1"), strict=True):
        assert operation is not None and operation.source is not None and operation.call is not None
        assert operation.call.path == path
        times.append(operation.created_ns)
    assert times == sorted(times)


def test_times_of_creation_never_go_back() -> None:
    x = torch.ones(4, requires_grad=True)
    with ts.capture() as tape:
        y = x
        for _ in range(20):
            y = torch.einsum("i,i->i", y, x).sin() + nn.Linear(4, 4)(y)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    operations = [task.operation for task in ts.graph(slope.sum()).tasks if not task.is_leaf]
    times = [each.created_ns for each in operations if isinstance(each, Operation)]
    assert times == sorted(times) and times[0] > tape.started_ns


def test_iterations_are_operations_of_their_own_and_the_nodes_of_one_call_are_one() -> None:
    x, layer = torch.ones(1, 4, requires_grad=True), nn.Linear(4, 4)
    with ts.capture():
        y = x
        for _ in range(3):
            y = functional.linear(y, layer.weight, layer.bias).sin()
    operations = [task.operation for task in ts.graph(y).tasks if not task.is_leaf]
    assert len(operations) == 9 and len({id(each) for each in operations}) == 6
    assert operations[0] is operations[1] and operations[0] is not operations[3]


def test_no_mode_is_open_unless_it_is_wanted() -> None:
    with ts.capture():
        assert torch._C._len_torch_function_stack() == 0
    with ts.capture(every_call=True):
        assert torch._C._len_torch_function_stack() == 1


def hook_of(names: list[str], name: str) -> Callable[[Node], None]:
    return lambda node: names.append(name)


def test_hooks_of_users_inside_and_around_are_called_in_order() -> None:
    x, names = torch.ones(2).requires_grad_(), list[str]()
    hook = torch.autograd.graph.node_creation_hook
    marked: list[bool] = []
    with hook(hook_of(names, "outer")), ts.capture():
        with hook(lambda node: marked.append(operation_of(node) is not None)), hook(hook_of(names, "inner")):
            y = x.detach().requires_grad_().exp()
        z = y.sin()
    z.cos()
    assert names == ["outer", "inner", "outer", "inner", "outer"]  # of the leaf's node, exp and sin
    assert marked == [False, True], "a capture's hook, opened before, has been called before"
    assert all(task.operation is not None for task in ts.graph(z).tasks)


def fires(make: Callable[[], object]) -> int:
    """Return the number of Python hooks called for one new node of this thread."""
    called = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal called
        called += event == "call" and frame.f_code.co_name == "fire"

    sys.setprofile(note)
    try:
        make()
    finally:
        sys.setprofile(None)
    return called


def in_a_new_thread(work: Callable[[], None]) -> None:
    """Run this with a separate stack of hooks, and raise its errors."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_no_hook_is_left_behind() -> None:
    def run() -> None:
        y = torch.ones(2, requires_grad=True) * 1  # the leaf's node lives on
        with ts.capture():
            assert fires(y.exp) == 1
            with ts.capture():
                assert fires(y.exp) == 2
            with pytest.raises(KeyError), ts.capture():
                raise KeyError
            assert fires(y.exp) == 1
        with pytest.raises(RuntimeError, match="shapes"), ts.capture():
            nn.Linear(2, 2)(torch.ones(3, 3))
        assert fires(y.exp) == 0

    in_a_new_thread(run)


def test_a_forgotten_capture_takes_no_hook_of_a_users_away_and_is_used_again() -> None:
    names: list[str] = []

    def run() -> None:
        y = torch.ones(2, requires_grad=True) * 1
        forgotten = ts.capture()
        forgotten.__enter__()
        with torch.autograd.graph.node_creation_hook(hook_of(names, "user")):
            del forgotten
            gc.collect()
            y.exp()
            assert names == ["user"]
        for _ in range(3):
            with ts.capture():
                z = y.sin()
                assert fires(y.exp) == 1
            assert operation_of(z.grad_fn) is not None
        assert operation_of(y.cos().grad_fn) is None

    in_a_new_thread(run)
    assert names == ["user"]


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_a_record_leads_back_to_no_node() -> None:
    """A node hides from the collector what it refers to: a cycle would stay for ever."""

    def step() -> list[weakref.ref[Any]]:
        model, box = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4)), [torch.ones(2, 4, requires_grad=True)]
        with ts.capture(model):
            y = Scale.apply(torch.einsum("ij,ij->ij", model(box[0]), box[0]).sin())
            (slope,) = torch.autograd.grad(y.sum(), box[0], create_graph=True)
            loss = slope.square().sum() + y.sum()
            model[0].weight.grad = torch.ones(4, 4, requires_grad=True).exp()
        box += [y, loss, slope]
        ts.graph(loss)
        return [weakref.ref(each) for each in (y.untyped_storage(), loss, slope, model[0].weight)]

    assert [each() for each in step()] == [None] * 4


def test_what_another_thread_makes_is_left_out() -> None:
    results: list[Tensor] = []
    x = torch.ones(2, requires_grad=True)
    with ts.capture():
        thread = threading.Thread(target=lambda: results.append(nn.Linear(2, 2)(x).sin()))
        thread.start()
        thread.join()
        loss = results[0].sum()
    assert {task.name for task in ts.graph(loss).tasks if task.operation and not task.is_leaf} == {"SumBackward0"}


def test_a_call_of_a_module_does_what_torch_does_with_it() -> None:
    """A capture replaces the code of `Module.__call__` by one that says the same, and a stack around it."""
    original = nn.Module._wrapped_call_impl.__code__
    assert original.co_names == ("_compiled_call_impl", "_call_impl")
    layer = nn.Linear(2, 2)
    layer.compile(backend="eager")
    with ts.capture():
        assert nn.Module._wrapped_call_impl.__code__ is not original
        loss = layer(torch.ones(1, 2)).sum()
    assert nn.Module._wrapped_call_impl.__code__ is original
    assert ts.graph(loss).calls[0].class_name == "Linear"
