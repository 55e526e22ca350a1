from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.inspector.drawing import fold
from tapescope.inspector.drawing.fold import Folded, FoldedCalls, fold_graph
from tapescope.inspector.drawing.svg import graph_to_svg
from tapescope.tests.says import Snapshots, raises

from ..programs import captured


def all_groups(folded: Folded) -> list[FoldedCalls]:
    stack, found = list(folded.items), []
    while stack:
        item = stack.pop(0)
        if isinstance(item, FoldedCalls):
            found.append(item)
            if not item.closed:
                stack.extend(item.items)
    return found


def labels(folded: Folded) -> list[tuple[str, str]]:
    return [(group.title, group.subtitle) for group in all_groups(folded)]


def test_equal_blocks_in_a_row_fold_into_one_of_them() -> None:
    folded = fold_graph(captured("gpt2"))
    [block] = [group for group in all_groups(folded) if group.times > 1]
    assert (block.title, block.subtitle, block.times, block.size) == ("h.0 – h.11", "Block ×12", 12, 43)
    assert len(set(folded.stands_in)) < len(folded.stands_in) / 4


def test_a_hidden_task_is_represented_by_its_counterpart() -> None:
    graph = captured("gpt2")
    folded = fold_graph(graph)
    for task in graph.tasks:
        shown = graph.tasks[folded.stands_in[task.id]]
        assert shown.name == task.name
        if task.parameter is not None:
            assert task.parameter.split(".")[2:] == (shown.parameter or "").split(".")[2:]


def test_blocks_that_differ_stay_apart() -> None:
    found = labels(fold_graph(captured("resnet50")))
    assert ("1 – 5", "Bottleneck ×5") in found, "layer3's first block has a downsample path of its own"
    assert found.count(("0", "Bottleneck")) == 4


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.ModuleList(nn.GRUCell(4, 4) for _ in range(2))
        self.dec = nn.ModuleList(nn.GRUCell(4, 4) for _ in range(2))
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        states = [torch.zeros(2, 4)] * 2
        for _ in range(6):
            for at, cell in enumerate(self.enc):
                states[at] = x = cell(x, states[at])
        outputs = []
        for _ in range(6):
            for at, cell in enumerate(self.dec):
                states[at] = x = cell(x, states[at])
            x = self.out(x)
            outputs.append(x)
        return torch.stack(outputs).sum()


def test_a_run_has_modules_of_one_name_and_its_tooltip_their_whole_paths() -> None:
    model = EncoderDecoder()
    with ts.capture(model):
        loss = model(torch.randn(2, 4))
    graph = ts.graph(loss)
    runs = {(group.title, group.times) for group in all_groups(fold_graph(graph)) if group.times > 1}
    assert ("dec.0, dec.1, out", 6) in runs
    assert all("enc" not in title or "dec" not in title for title, _ in runs)
    tooltips = re.findall("<title>(.*) [(].* tasks?(?: each)?</title>", graph.to_svg())
    assert {"enc.0 – enc.1", "dec.0, dec.1, out", "out"} <= set(tooltips)


def test_the_tooltip_of_repeated_steps_has_each_path_once() -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = Unrolled()

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(x, 12)

    model = Decoder()
    with ts.capture(model):
        loss = model(torch.randn(3, 4)).sum()
    tooltips = re.findall("<title>(.*) [(].* tasks?(?: each)?</title>", ts.graph(loss).to_svg())
    assert "decoder.cell, decoder.head" in tooltips
    assert not any("decoder.decoder" in tooltip for tooltip in tooltips)


class Unrolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, steps: int) -> Tensor:
        state = (x, x)
        outputs = []
        for _ in range(steps):
            state = self.cell(x, state)
            outputs.append(self.head(state[0] * 0.5))
        return torch.stack(outputs)


def test_a_repeating_period_of_modules_and_loose_tasks_folds() -> None:
    with ts.capture():
        loss = Unrolled()(torch.ones(3, 4), 10).sum()
    graph = ts.graph(loss)
    folded = fold_graph(graph)
    [run] = [group for group in all_groups(folded) if group.times > 1]
    assert (run.title, run.subtitle, run.times) == ("cell, head", "(LSTMCell, Linear + 1 task) ×10", 10)
    assert sum(isinstance(item, int) for item in run.items) == 1, "the loose product is part of the period"
    assert len(folded.between) == 9 * 2, "hidden and cell state lead from each step to the one before"


def test_a_large_repeated_block_is_drawn_closed() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(2, 2) for _ in range(35)])

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    with ts.capture():
        loss = nn.Sequential(Block(), Block(), Block())(torch.ones(1, 2)).sum()
    [run] = [group for group in all_groups(fold_graph(ts.graph(loss))) if group.title == "0 – 2"]
    assert run.closed and run.subtitle == "Block ×3"


def test_folding_that_would_hide_next_to_nothing_is_left() -> None:
    with ts.capture():
        loss = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU())(torch.ones(1, 2)).sum()
    assert all(group.times == 1 for group in all_groups(fold_graph(ts.graph(loss))))


def test_blocks_whose_gradients_have_other_shapes_are_not_equal() -> None:
    sizes = [8, 7, 6, 5, 4, 3, 2, 2, 2, 2, 2, 2, 2]
    with ts.capture():
        loss = nn.Sequential(*[nn.Linear(a, b) for a, b in pairwise(sizes)])(torch.ones(1, 8)).sum()
    [run] = [group for group in all_groups(fold_graph(ts.graph(loss))) if group.times > 1]
    assert run.title == "6 – 11" and run.times == 6


def test_equal_networks_of_equal_layers_lead_from_layer_to_layer_alike() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.two(self.one(x).relu())

    def network() -> nn.Module:
        return nn.Sequential(*(Layer() for _ in range(4)))

    model = nn.Sequential(*(network() for _ in range(3)))
    with ts.capture(model):
        loss = model(torch.ones(2, 4)).sum()
    graph = ts.graph(loss)
    folded = fold_graph(graph)
    outer, inner = (group for group in all_groups(folded) if group.times > 1)
    assert (outer.times, inner.times) == (3, 4)
    between = [graph.edges[number] for number, repeat in folded.between.items() if repeat == inner.repeat]
    assert len(between) == 3 * 3 * 2  # in each network from layer to layer, through it and around it
    assert "</svg>" in graph_to_svg(graph, fold="fit")


def test_fold_none_opens_everything() -> None:
    graph = captured("gpt2")
    folded = fold_graph(graph, "none")
    assert folded.stands_in == tuple(range(len(graph)))
    assert not any(group.closed or group.times > 1 for group in all_groups(folded))


def test_a_depth_closes_the_modules_from_there_on() -> None:
    graph = captured("gpt2")
    outermost = {group.path for group in all_groups(fold_graph(graph, 0)) if group.closed}
    assert {"h.0", "h.11", "lm_head"} <= outermost
    inner = [group for group in all_groups(fold_graph(graph, 1)) if group.closed]
    assert {group.path for group in inner} >= {"h.0.attn", "h.3.mlp"} and not {
        group.path for group in inner
    } & outermost


def test_paths_close_the_modules_that_they_name() -> None:
    graph = captured("gpt2")
    closed = [group for group in all_groups(fold_graph(graph, ["h.3", "h.5.attn"])) if group.closed]
    assert sorted(group.path for group in closed) == ["h.3", "h.5.attn"]
    assert [group.size for group in closed if group.path == "h.3"] == [43], "tasks, its parameters' included"


@pytest.mark.parametrize(
    ("fold", "facts"),
    [
        ("h.3", ["'h.3'", '"fit"', '"repeats"']),
        (["h.33"], ["'h.33'"]),
        (-1, ["-1"]),
    ],
)
def test_a_fold_that_means_nothing_is_refused(fold: object, facts: list[str], snapshot: Snapshots) -> None:
    with raises(ValueError, *facts) as refused:
        fold_graph(captured("gpt2"), fold)  # type: ignore[arg-type]
    snapshot("graph", refused.value)


def test_a_module_that_is_not_convex_is_dissolved() -> None:
    """Its two tasks have a task of no module between them: as one box, it would come before and after that."""

    class Split(nn.Module):
        def forward(self, x: Tensor, last: bool) -> Tensor:
            return x.sin() if last else x.cos()

    x = torch.ones(2, requires_grad=True)
    with ts.capture():
        split = Split()
        loss = split(split(x, False).exp(), True).sum()
    graph = ts.graph(loss)
    calls = {task.name: task.call for task in graph.tasks}
    one = calls["CosBackward0"]
    tasks = tuple(replace(task, call=one) if task.name == "SinBackward0" else task for task in graph.tasks)
    assert not all_groups(fold_graph(replace(graph, tasks=tasks)))


def row_of_blocks(times: int) -> Tensor:
    """Blocks without modules, of three tasks and a use of a weight each."""
    x, weight = torch.ones(4, requires_grad=True) * 1, torch.ones(4, requires_grad=True)
    for _ in range(times):
        x = x.sin() + x * weight
    return x.sum()


def test_of_very_many_siblings_runs_of_loose_tasks_are_folded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ts.graph(row_of_blocks(20))
    assert all_groups(fold_graph(graph)) == []
    monkeypatch.setattr(fold, "MOST_LOOSE", 50)
    folded = fold_graph(graph)
    [run] = all_groups(folded)
    assert (run.title, run.subtitle, run.times) == ("Sin, Mul, Add", "3 tasks ×20", 20)
    for task in graph.tasks:
        assert graph.tasks[folded.stands_in[task.id]].name == task.name
    assert all_groups(fold_graph(graph, "none")) == []
    assert "3 tasks ×20" in graph.to_svg()


def test_a_run_of_loose_tasks_begins_where_the_forward_goes_back_and_says_its_lines() -> None:
    x = torch.zeros(4, requires_grad=True)
    with ts.capture():
        state = x.exp()
        for _ in range(60):
            state = state.sin()
            state = state * 2
            state = state.tanh()
        loss = state.sum()
    graph = ts.graph(loss)
    shift = [replace(task, name="MulBackward0") if task.name == "ExpBackward0" else task for task in graph.tasks]
    for each in (graph, replace(graph, tasks=tuple(shift))):  # of the second also an earlier start would do
        [run] = all_groups(fold_graph(each))
        line = each.tasks[run.items[0]].source.line  # type: ignore[index, union-attr]
        assert (run.title, run.times) == ("Sin, Mul, Tanh", 60)
        assert run.subtitle == f"test_fold.py:{line}–{line + 2} ×60"


def test_a_long_chain_of_equal_tasks_is_drawn_as_one_of_them() -> None:
    x = torch.ones(4, requires_grad=True)
    for _ in range(5_000):
        x = x.sin()
    svg = ts.graph(x.sum()).to_svg()
    assert "1 task ×4,999" in svg and len(svg) < 20_000


def test_what_is_in_no_run_stays_as_it_is_among_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MOST_LOOSE", 5)
    x = torch.ones(4, requires_grad=True)
    for length in range(6):
        for _ in range(length):
            x = x.sin()
        x = x.cos()
    graph = ts.graph(x.sum())
    assert all_groups(fold_graph(graph)) == []


def test_what_no_viewer_shows_is_refused_and_said_what_to_do(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots
) -> None:
    monkeypatch.setattr(fold, "MOST_DRAWN", 10)
    with raises(ValueError, "62 tasks", "10", "ts.capture(model)") as without_modules:
        ts.graph(row_of_blocks(20)).to_svg()
    with raises(ValueError, "10", 'fold="repeats"', "fold=1") as with_modules:
        captured("gpt2").to_svg(fold="none")
    snapshot("graph", f"{without_modules.value}\n{with_modules.value}")
