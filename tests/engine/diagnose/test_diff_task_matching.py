"""The tasks of two programs that `ts.diff` matches, and its report on programs that do not differ."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.diagnose.diff_task_matching import aligned
from tapescope.tests.says import says_none_of

Program = Callable[[Tensor, Tensor], Tensor]

SWAPPED: list[tuple[Program, Program]] = [
    (lambda u, v: (u.sin() * v.cos()).sum(), lambda u, v: (v.cos() * u.sin()).sum()),
    (lambda u, v: (u.sin() * v.sin()).sum(), lambda u, v: (v.sin() * u.sin()).sum()),
    (lambda u, v: (u * v).sum(), lambda u, v: (v * u).sum()),
    (lambda u, v: (u.exp() + v.exp()).prod(), lambda u, v: (v.exp() + u.exp()).prod()),
    (lambda u, v: ((u * 2) * (u * 3)).sum() + v.sum(), lambda u, v: v.sum() + ((u * 3) * (u * 2)).sum()),
    (lambda u, v: torch.maximum(u.sin(), v.exp()).sum(), lambda u, v: torch.maximum(v.exp(), u.sin()).sum()),
    (
        lambda u, v: ((u @ v.T).sin() * (v @ u.T).cos()).sum(),
        lambda u, v: ((v @ u.T).cos() * (u @ v.T).sin()).sum(),
    ),
]


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("programs", SWAPPED)
def test_where_arguments_are_swapped_no_gradient_is_said_to_be_apart(
    programs: tuple[Program, Program], captured: bool, saved: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    u, v = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    runs = []
    for program in programs:
        with ts.capture() if captured else torch.enable_grad():
            loss = program(u, v)
        mine = torch.autograd.grad(loss, (u, v), retain_graph=True)
        run = ts.backward(loss, trace="cheap")
        runs.append((mine, ts.load(run.save(tmp_path / "run.json")) if saved else run))
    (gradients, first), (others, second) = runs
    assert all(map(torch.equal, gradients, others)), "the program itself is to be the same to the bit"
    difference = ts.diff(first, second)
    assert difference.first_unequal is None and difference.only == ((), ())
    says_none_of("\n".join(difference.sentences), "%")  # by how much, or the tolerance
    assert len(difference.cells) == 1, "no parameter is said to differ"


def test_where_it_matters_which_argument_comes_first_the_gradients_are_apart() -> None:
    u, v = (torch.randn(4, requires_grad=True) for _ in range(2))
    runs = [ts.backward(loss, trace="cheap") for loss in ((u.sin() - v.sin()).sum(), (v.sin() - u.sin()).sum())]
    difference = ts.diff(*runs)
    for each in difference.leaves:
        leaves = [run.graph.leaves[task.id] for run, task in zip(runs, each.tasks, strict=True)]
        assert leaves[0] is leaves[1] and each.taken == pytest.approx(2, rel=1), "a leaf is compared with itself"
    assert difference.first_in_values is not None


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.outer(self.inner(self.norm(x)).tanh())
        return found


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), *(Block() for _ in range(3)), nn.Linear(8, 3))


def run_of(model: nn.Module, x: Tensor, path: Path, *, captured: bool = False, autocast: bool = False) -> ts.Run:
    with (
        ts.capture() if captured else torch.enable_grad(),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        loss = model(x).float().square().mean()
    return ts.load(ts.backward(loss, trace="cheap").save(path))


def parameters_of(run: ts.Run, model: nn.Module, x: Tensor) -> dict[int, str]:
    """Return this run's parameter for each leaf's task, since its file has no names without a capture."""
    graph = ts.graph(model(x).float().square().mean(), model)
    assert [task.name for task in graph.tasks] == [task.name for task in run.graph.tasks]
    return {task.id: task.parameter for task in graph.tasks if task.is_leaf and task.parameter is not None}


def test_under_autocast_each_weight_of_a_file_without_names_is_compared_with_itself(tmp_path: Path) -> None:
    model, x = net(), torch.randn(6, 5)
    plain, cast = run_of(model, x, tmp_path / "a"), run_of(model, x, tmp_path / "b", autocast=True)
    names = parameters_of(plain, model, x)
    with torch.autocast("cpu", torch.bfloat16):
        others = parameters_of(cast, model, x)
    pairs = aligned(plain.graph, cast.graph)
    assert len(pairs) == len(plain.graph)
    assert {names[task]: others[pairs[task]] for task in names} == {name: name for name in names.values()}
    assert ts.diff(plain, cast).first_in_values is None


def changed(model: nn.Sequential) -> Iterator[tuple[str, nn.Sequential, Callable[[str], str]]]:
    """Another version of a model, and what a parameter of the first one is called in it."""
    inserted = copy.deepcopy(list(model))
    inserted.insert(2, nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    yield "with another layer", nn.Sequential(*inserted), lambda name: _shifted(name, 2)
    renamed = nn.Sequential()
    for number, module in enumerate(copy.deepcopy(list(model))):
        renamed.add_module(f"part{number}", module)
    yield "renamed", renamed, lambda name: f"part{name}"
    some = nn.Sequential()
    for number, module in enumerate(copy.deepcopy(list(model))):
        some.add_module("other" if number == 2 else str(number), module)
    yield "one of them renamed", some, lambda name: name.replace("2.", "other.", 1) if name[0] == "2" else name
    yield "of another seed", nn.Sequential(nn.Linear(5, 8), *(Block() for _ in range(3)), nn.Linear(8, 3)), str


def _shifted(name: str, since: int) -> str:
    number, _, rest = name.partition(".")
    return f"{int(number) + (int(number) >= since)}.{rest}"


@pytest.mark.parametrize("number", range(4))
def test_of_another_version_of_a_model_each_leaf_is_found_without_names(number: int, tmp_path: Path) -> None:
    model, x = net(), torch.randn(6, 5)
    _, other, called = list(changed(model))[number]
    first, second = run_of(model, x, tmp_path / "a"), run_of(other, x, tmp_path / "b")
    names, others = parameters_of(first, model, x), parameters_of(second, other, x)
    pairs = aligned(first.graph, second.graph)
    assert len(pairs) == len(first.graph)
    assert {names[task]: others[pairs[task]] for task in names} == {name: called(name) for name in names.values()}


@pytest.mark.parametrize("captured", [False, True])
def test_a_module_that_was_moved_keeps_its_leaves(captured: bool) -> None:
    model, x = net(), torch.randn(6, 5)
    parts = list(model)
    parts[1], parts[3] = parts[3], parts[1]
    graphs = []
    for each in (model, nn.Sequential(*parts)):
        with ts.capture() if captured else torch.enable_grad():
            loss = each(x).sum()
        graphs.append(ts.graph(loss))
    pairs = aligned(*graphs)
    leaves = [graph.leaves for graph in graphs]
    assert all(leaves[0][task] is leaves[1][pairs[task]] for task in leaves[0])
    for task in graphs[0].tasks:  # and what multiplies with a weight is that weight's task
        if task.short_name == "Addmm" and task.id in pairs:
            bias = graphs[0].out_edges[task.id][0].next_task
            assert pairs[bias] == graphs[1].out_edges[pairs[task.id]][0].next_task


def test_a_weight_is_never_compared_with_a_bias_and_a_name_of_another_shape_is_another_leaf() -> None:
    x = torch.randn(3, 8)
    graphs = []
    for layers in ([nn.Linear(8, 8), nn.Linear(8, 4)], [nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 4)]):
        with ts.capture():
            loss = nn.Sequential(*layers)(x).sum()
        graphs.append(ts.graph(loss))
    pairs = aligned(*graphs)
    for mine, other in pairs.items():
        assert graphs[0].tasks[mine].inputs[0].shape == graphs[1].tasks[other].inputs[0].shape
    named = {graphs[0].tasks[mine].parameter: graphs[1].tasks[other].parameter for mine, other in pairs.items()}
    assert (named["0.weight"], named["1.weight"]) == ("1.weight", "2.weight")


def test_twice_as_many_rows_are_the_same_tasks_of_other_shapes(tmp_path: Path) -> None:
    model, x = net(), torch.randn(6, 5)
    runs = [run_of(model, rows, tmp_path / "run") for rows in (x, torch.cat([x, x]))]
    difference = ts.diff(*runs)
    assert difference.only == ((), ()) and all(leaf.taken < 1e-5 for leaf in difference.leaves)
    first = difference.first_in_values
    assert first is not None and first.apart.by == "shape"


@pytest.mark.slow
def test_a_graph_of_many_tasks_is_aligned_with_its_twin_and_with_one_that_has_more() -> None:
    def chain(length: int) -> ts.Graph:
        x = y = torch.ones(2, requires_grad=True)
        for number in range(length):
            y = y.sin() if number % 3 else y * x
        return ts.graph(y.sum())

    first, second = chain(20_000), chain(20_003)
    assert aligned(first, first) == {number: number for number in range(len(first))}
    assert len(aligned(first, second)) >= len(first) - 3
