"""`ts.graph(model, *inputs)`: the graph of a forward, compared with that of its own loss; and of one that raises."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.inspector.graph.graph import FailedCall
from tapescope.inspector.graph.kinds import KIND_TITLES, Kind
from tapescope.tests.says import Snapshots, raises, says, says_none_of


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.norm, self.down = (
            nn.Linear(width, 2 * width),
            nn.BatchNorm1d(2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.dropout(self.norm(self.up(x)).relu()))


class Model(nn.Module):
    """Blocks with a frozen layer, a buffer that is used, and a mask among the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.head = nn.Linear(4, 2)
        self.blocks[1].up.requires_grad_(False)
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, ids: Tensor, *, mask: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(ids) * mask) * self.scale)


def inputs() -> tuple[Tensor, Tensor]:
    return torch.tensor([1, 2, 3]), torch.ones(3, 4)


def test_it_is_the_graph_of_the_forwards_own_result() -> None:
    model, (ids, mask) = Model(), inputs()
    found = ts.graph(model, ids, mask=mask)
    with ts.capture(model):
        result = model(ids, mask=mask)
    expected = ts.graph(result)
    assert [(task.name, task.parameter) for task in found.tasks] == [
        (task.name, task.parameter) for task in expected.tasks
    ]
    assert (found.edges, found.roots) == (expected.edges, expected.roots)
    assert [found.module(task) for task in found.tasks] == [expected.module(task) for task in expected.tasks]
    assert [task.source and task.source.line for task in found.tasks if task.operation is not None] == [
        task.source and task.source.line for task in expected.tasks if task.operation is not None
    ]
    saved = [(each.task, each.slot, each.shape) for each in expected.saved]
    assert [(each.task, each.slot, each.shape) for each in found.saved] == saved
    assert not found.nodes, "it keeps nothing of the forward alive"
    assert all(task.operation is None or task.operation.inputs is None for task in found.tasks)  # type: ignore[union-attr]


@pytest.mark.parametrize("fails", [False, True])
def test_the_state_is_as_it_was(fails: bool) -> None:
    torch.manual_seed(0)
    model, (ids, mask) = Model(), inputs()
    model.head.weight.grad = torch.ones(2, 4)
    before, gradient, generator = (
        {name: each.clone() for name, each in model.state_dict().items()},
        model.head.weight.grad,
        torch.get_rng_state(),
    )
    versions = [each._version for each in model.state_dict().values()]
    if fails:
        with pytest.raises(RuntimeError):
            ts.graph(model, ids, mask=torch.ones(5, 5))
    else:
        ts.graph(model, ids, mask=mask)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert [each._version for each in model.state_dict().values()] == versions
    assert model.head.weight.grad is gradient and bool((gradient == 1).all())
    assert torch.equal(torch.get_rng_state(), generator)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not nn.modules.module._global_forward_hooks and torch._C._len_torch_function_stack() == 0


def test_what_has_no_gradient_is_named_with_the_tasks_that_used_it() -> None:
    model, (ids, mask) = Model(), inputs()
    graph = ts.graph(model, ids, mask=mask)
    found = {each.name: each for each in graph.untracked}
    kinds = {name: each.kind for name, each in found.items()}
    assert kinds == {
        "ids": "input",
        "mask": "input",
        "scale": "buffer",
        **dict.fromkeys(("blocks.1.up.weight", "blocks.1.up.bias"), "frozen parameter"),
        **{f"blocks.{block}.norm.running_{name}": "buffer" for block in (0, 1) for name in ("mean", "var")},
    }
    assert [graph.module(task) for task in found["blocks.1.up.weight"].users] == ["blocks.1.up"]
    assert [graph.tasks[task].name for task in found["scale"].users] == ["MulBackward0"]
    assert (found["mask"].meta.shape, found["ids"].meta.dtype) == ((3, 4), torch.int64)


@dataclass
class Result:
    logits: Tensor
    hidden: list[Tensor]
    name: str = "no tensor"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits, hidden: (logits, hidden),
        lambda logits, hidden: {"logits": logits, "more": [hidden, 3, None]},
        lambda logits, hidden: Result(logits, [hidden, logits]),
    ],
)
def test_results_in_containers_and_dataclasses_are_its_roots(wrap: Callable[[Tensor, Tensor], object]) -> None:
    class Wraps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> object:
            hidden = self.layer(x)
            return wrap(hidden.exp(), hidden.sin())

    graph = ts.graph(Wraps(), torch.ones(1, 3))
    assert [graph.tasks[root.task].name for root in graph.roots] == ["ExpBackward0", "SinBackward0"]


def test_the_summary_counts_parameters_shapes_and_saved_bytes() -> None:
    model, (ids, mask) = Model(), inputs()
    graph = ts.graph(model, ids, mask=mask)
    rows = {row.path: row for row in graph.summary().rows}
    for path, row in rows.items():
        parameters = list(model.get_submodule(path).parameters())
        assert row.parameters == sum(each.numel() for each in parameters)
        assert row.frozen == sum(each.numel() for each in parameters if not each.requires_grad)
        assert row.class_name == type(model.get_submodule(path)).__name__
    assert set(rows) == {name for name, module in model.named_modules()}
    assert (rows[""].shapes, rows["blocks.0.up"].shapes, rows["embed"].shapes) == (((3, 2),), ((3, 8),), ((3, 4),))
    held = {each.storage: each.storage_bytes for each in graph.saved if each.parameter is None}
    assert rows[""].saved_bytes == sum(each or 0 for each in held.values())
    says(graph.summary(), "blocks.1.up", "(40 frozen)", "3×8", "Embedding")


def test_a_module_that_is_called_twice_is_one_row() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(self.cell(x))

    (_, row) = ts.graph(Twice(), torch.ones(2, 4)).summary().rows
    assert (row.path, row.calls, row.parameters, row.shapes) == ("cell", 2, 20, ((2, 4),))


def without_no_grad(model: nn.Module) -> ts.Graph:
    return ts.graph(model, torch.ones(2, 3))


def test_a_forward_without_a_graph_says_why(snapshot: Snapshots) -> None:
    model = nn.Linear(3, 3)
    cases: list[tuple[Callable[[nn.Module], Any], nn.Module, tuple[str, ...]]] = [
        (torch.no_grad()(without_no_grad), model, ("Linear", "torch.no_grad()")),
        (torch.inference_mode()(without_no_grad), model, ("Linear", "torch.inference_mode()")),
        (without_no_grad, nn.Linear(3, 3).requires_grad_(False), ("Linear", "2 parameters", "requires_grad=True")),
        (without_no_grad, nn.Identity(), ("Identity", "requires grad")),
    ]
    for run, of, facts in cases:
        with raises(RuntimeError, *facts) as refused:
            run(of)
        snapshot("graph", refused.value)
    graph = ts.graph(cases[2][1], torch.ones(2, 3, requires_grad=True))
    assert [task.parameter for task in graph.tasks if task.is_leaf] == ["input"]
    with raises(TypeError, "Flat", "dict"):
        ts.graph(type("Flat", (nn.Module,), {"forward": lambda self, x: {"none": 3}})(), torch.ones(1))


def failed(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[Exception, ts.Graph, FailedCall]:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - any error of the user's
        ts.graph(model, *args, **kwargs)
    graph = ts.graph(raised.value)
    assert graph.failed is not None
    return raised.value, graph, graph.failed


def test_after_an_error_the_failed_call_is_in_the_graph_with_its_shapes(tmp_path: Path) -> None:
    model, (ids, mask) = Model(), inputs()
    model.head = nn.Linear(5, 2)
    with pytest.raises(RuntimeError) as plain:
        model(ids, mask=mask)
    error, graph, call = failed(model, ids, mask=mask)
    assert (type(error), error.args) == (plain.type, plain.value.args), "it is the user's own"
    assert (call.name, call.shapes) == ("linear", ((3, 4), (2, 5), (2,)))
    assert call.call is not None and graph.calls[call.call].path == "head"
    ends = [graph.tasks[edge.next_task] for edge in call.edges]
    assert [end.parameter or end.name for end in ends] == ["MulBackward0", "head.weight", "head.bias"]
    says("\n".join(error.__notes__), "ts.graph(error)", "sys.last_value")
    says(graph.summary(), "linear(3×4, 2×5, 2) in head", "test_graph.py")
    root = ElementTree.fromstring(graph.save_svg(tmp_path / "until.svg").read_text(encoding="utf-8"))
    (drawn,) = [each for each in root.iter() if "ts-failed" in each.get("class", "").split() and each.get("data-task")]
    says("".join(drawn.itertext()), "linear(3×4, 2×5, 2)", "RuntimeError")
    red = [each.text for each in root.iter() if each.get("class") == "ts-shape ts-raised"]
    assert red == ["3×4"]


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_after_an_error_the_models_inputs_have_their_names_as_without_one(needs_gradient: bool) -> None:
    x = torch.randn(2, 8, requires_grad=needs_gradient)
    right, wrong = (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(rows, 4)) for rows in (16, 12))

    def pills(graph: ts.Graph) -> list[tuple[str | None, int]]:
        """The names that an input may have, with the number of tasks that use each."""
        own = [(each.parameter, 1) for each in graph.tasks if each.parameter == "input"]
        return own + [(each.name, len(each.users)) for each in graph.untracked if each.kind == "input"]

    assert pills(ts.graph(right, x)) == [("input", 1)]
    with pytest.raises(RuntimeError) as raised:
        ts.graph(wrong, x)
    assert pills(ts.graph(raised.value)) == [("input", 1)]
    assert pills(ts.graph(raised.value)) == [("input", 1)], "it can be read again"


def test_a_module_whose_own_code_raises_is_the_failed_call_and_one_that_was_caught_is_not() -> None:
    class Refuses(nn.Module):
        def forward(self, x: Tensor, count: int) -> Tensor:
            raise KeyError(count)

    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.refuses, self.last = nn.Linear(3, 3), Refuses(), Refuses()

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            try:
                return self.refuses(x, 1)
            except KeyError:
                return self.last(x.exp(), 2)

    error, graph, call = failed(Tries(), torch.ones(2, 3))
    assert isinstance(error, KeyError) and error.args == (2,)
    assert (call.name, call.shapes) == ("Refuses", ((2, 3),))
    assert call.call is not None and graph.calls[call.call].path == "last"
    assert [graph.tasks[edge.next_task].name for edge in call.edges] == ["ExpBackward0"]


def test_the_first_call_of_a_forward_may_fail_and_inputs_are_named() -> None:
    _, graph, call = failed(nn.Sequential(nn.Linear(3, 2)), torch.ones(4, 5))
    assert [(each.kind, each.name, each.users) for each in graph.untracked] == [("input", "input", (len(graph),))]
    assert {task.parameter for task in graph.tasks} == {"0.weight", "0.bias"} and call.name == "linear"
    says(graph.to_svg(), "input 4×5", KIND_TITLES[Kind.FAILED])


def test_an_error_of_a_forward_can_be_pickled_and_one_of_elsewhere_has_no_graph() -> None:
    error, _, _ = failed(nn.Linear(3, 2), torch.ones(4, 5))
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), copied.args) == (type(error), error.args)
    for other in (copied, ValueError("of the user")):
        with raises(ValueError, type(other).__name__, "ts.capture()"):
            ts.graph(other)


def test_names_of_the_users_are_data_in_the_picture() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self._buffers["<script>"] = torch.ones(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self._buffers["<script>"]

    picture = ts.graph(Odd(), torch.ones(1, 2)).to_svg(fold="none")
    says(picture, "&lt;script&gt; 2")
    says_none_of(picture, "<script>")
