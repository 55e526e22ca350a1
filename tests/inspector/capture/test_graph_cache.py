"""A graph that looks like one that was read before is the one that a new look would have read."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet, ref

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

import tapescope as ts
from tapescope.inspector.capture import build_graph as walk
from tapescope.inspector.capture import graph_cache as alike
from tapescope.inspector.graph import operations_and_calls as facts
from tapescope.tests.says import raises

from ..programs import Twice


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nor does a capture of another test say anything of these graphs."""
    monkeypatch.setattr(facts, "_alive", WeakSet())
    alike.forget_graphs()
    yield
    alike.forget_graphs()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of tasks of each graph that is really read."""
    found: list[int] = []
    real = walk._build

    def build(nodes: alike.Found, *args: object) -> ts.Graph:
        found.append(len(nodes))
        return real(nodes, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(walk, "_build", build)
    return found


def read_anew(loss: Tensor) -> ts.Graph:
    roots = walk.root_edges(loss)
    return walk._build(walk._walk([node for node, _ in roots]), roots, None)


def hold_against_a_new_look(loss: Tensor) -> ts.Graph:
    found, expected = ts.graph(loss), read_anew(loss)
    for name in ("tasks", "edges", "roots", "calls", "nodes", "raised", "out_edges", "in_edges", "devices", "saved"):
        assert str(getattr(found, name)) == str(getattr(expected, name)), name
    assert found.nodes == expected.nodes and found.tasks == expected.tasks
    return found


@pytest.mark.parametrize("name", ["resnet50", "gpt2", "lstm_cell", "din", "ensemble", "mixture_of_experts", "needless"])
def test_the_steps_of_a_training_loop(name: str, reads: list[int]) -> None:
    _, make_loss = ts.workload(name).build()
    first, second = hold_against_a_new_look(make_loss()), hold_against_a_new_look(make_loss())
    assert len(reads) == 3  # two of them to compare with
    assert first.like is second.like and not first.like.nodes
    assert [task.sequence_nr for task in first.tasks] != [task.sequence_nr for task in second.tasks]


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return operator(*args, **(kwargs or {}))


def chained(weight: Tensor, x: Tensor) -> Tensor:
    return (weight * x).sum()


def one_or_the_other(first: bool) -> Tensor:
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    return ((a.exp() if first else b.exp()) + b.exp() + a.exp()).sum()


def made_in_turn(first: bool) -> Tensor:
    x = torch.ones(2, requires_grad=True)
    if first:
        a, b = x.exp(), x.exp().exp()
    else:
        b, a = x.exp().exp(), x.exp()
    return (a + b).sum()


def of_which_one_is_taken(number: int) -> Tensor:
    return torch.ones(4, requires_grad=True).exp().unbind()[number].sin()


def of_many_kinds(by: float) -> Tensor:
    """In place, through views, custom Functions, and with gradients of which only some are wanted."""
    x, y = torch.ones(4, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    z = (x * y).clone()
    z[:2] = Twice.apply(x[2:]) * by
    left, _ = z.chunk(2)
    return left.t().max(dim=0).values.sum() + torch.cat([left.double().float(), z]).softmax(-1)[0, 0]


def test_nodes_of_many_kinds(reads: list[int]) -> None:
    for step in range(3):
        hold_against_a_new_look(of_many_kinds(1.0 + step))
    assert len(reads) == 1 + 3


OTHERS: dict[str, Callable[[bool], Tensor]] = {
    "a broadcast shape": lambda one: chained(torch.ones(1 if one else 3, requires_grad=True), torch.ones(3)),
    "a dtype": lambda one: torch.ones(2, dtype=torch.float64 if one else torch.float32, requires_grad=True).exp().sum(),
    "a device": lambda one: torch.ones(2, device="cpu" if one else "meta", requires_grad=True).exp(),
    "a device below a copy": lambda one: (
        torch.ones(2, device="cpu" if one else "meta", requires_grad=True).exp().to("meta", torch.float64).sum()
    ),
    "an edge": one_or_the_other,
    "when nodes were made": made_in_turn,
    "an output's number": lambda one: of_which_one_is_taken(int(one)),
    "the root": lambda one: torch.ones(4, requires_grad=True).exp().unbind()[int(one)],
    "an output without a reader": lambda one: (
        torch.ones(6, requires_grad=True).exp().split([2, 4] if one else [2, 2, 2])[0].sum()
    ),
    "how many edges": lambda one: torch.stack([torch.ones((), requires_grad=True)] * (2 + one)).sum(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_in_one_thing_is_read(name: str, reads: list[int]) -> None:
    make = OTHERS[name]
    for one in (True, False, True, False):
        hold_against_a_new_look(make(one))
    assert len(reads) == 2 + 4


def test_metadata_is_read_again_only_if_the_engine_finds_another(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    real = alike.input_metadata_of_each

    def read(nodes: list[Any]) -> list[Any]:
        found.append(len(nodes))
        return real(nodes)

    monkeypatch.setattr(alike, "input_metadata_of_each", read)
    weight = torch.ones(3, requires_grad=True)
    for rows in (2, 2, 2, 5, 5, 2):
        left, right = (weight * torch.ones(rows, 3)).split([1, rows - 1])
        hold_against_a_new_look((left * right).sum())
    assert len(found) == 3  # 2, 5, and 2 again


def test_a_hook_or_an_operation_never_sees_the_engines_check() -> None:
    x = torch.ones(3, requires_grad=True)
    seen: list[Tensor] = []
    for _ in range(3):
        y = x.exp()
        x.register_hook(seen.append)
        y.register_hook(seen.append)
        loss = (y * 2).sum()
        with Counting() as mode:
            ts.graph(loss)
        assert not seen and not mode.calls and x.grad is None


def test_names_are_those_that_were_asked_for() -> None:
    model = nn.Linear(2, 2)
    x = torch.ones(2)

    def parameters(graph: ts.Graph) -> list[str | None]:
        return [task.parameter for task in graph.tasks if task.is_leaf]

    for _ in range(2):
        assert parameters(ts.graph(model(x).sum())) == [None, None]
        assert sorted(map(str, parameters(ts.graph(model(x).sum(), model)))) == ["bias", "weight"]
        with ts.capture(model):
            loss = model(x).sum()
        assert sorted(map(str, parameters(ts.graph(loss)))) == ["bias", "weight"]
        assert any(task.operation for task in ts.graph(loss).tasks)
        del loss


def test_nested_gradients_have_no_shape(reads: list[int]) -> None:
    for _ in range(2):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged, requires_grad=True)
        assert ts.graph(nested.exp()).tasks[0].inputs[0].shape is None
    assert len(reads) == 1


def test_shapes_with_symbols_are_refused_as_ever() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    for _ in range(2):
        fake = mode.from_tensor(torch.ones(5, 3, requires_grad=True), static_shapes=False)
        with mode, raises(NotImplementedError, "ExpBackward0", "static_shapes=True"):
            ts.graph(fake.exp().sum())


def test_few_graphs_are_kept() -> None:
    x = torch.ones(2, requires_grad=True)
    for length in range(1, 2 * alike._MOST_GRAPHS):
        y = x
        for _ in range(length):
            y = y.exp()
        ts.graph(y.sum())
    assert len(alike._known) <= alike._MOST_GRAPHS


def test_numbers_are_the_nodes_own_while_they_are_pinned() -> None:
    x = torch.ones(2, requires_grad=True)
    loss = (x.exp() + x.sin().cos()).sum()
    expected = ts.graph(loss)
    seen: list[ts.Graph] = []
    handle = x.register_hook(lambda gradient: seen.append(ts.graph(loss)))
    ts.backward(loss, policy="bfs", retain_graph=True)
    handle.remove()
    assert seen[0].tasks == expected.tasks and seen[0].nodes == expected.nodes


def test_a_function_whose_class_is_made_in_each_forward_is_not_kept() -> None:
    def forward() -> ref[Tensor]:
        scale = torch.ones(3)

        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * scale

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                return gradient * scale

        assert len(ts.graph(Scale.apply(torch.ones(3, requires_grad=True)).sum())) == 3  # type: ignore[no-untyped-call]
        return ref(scale)

    scales = [forward() for _ in range(3)]
    gc.collect()
    assert [scale() for scale in scales] == [None] * 3


def test_a_graph_too_large_to_be_kept_is_not_compared(monkeypatch: pytest.MonkeyPatch, reads: list[int]) -> None:
    looks: list[object] = []
    monkeypatch.setattr(alike, "_MOST_NODES", 2)
    monkeypatch.setattr(alike, "CacheKey", lambda found, roots: looks.append(found))
    weight = torch.ones(3, requires_grad=True)
    for _ in range(2):
        ts.graph(weight.exp().sum())
    assert reads == [3, 3] and not looks
