from __future__ import annotations

import builtins
import re
import shutil

import pytest
import torch
from torch import nn

import tapescope as ts


def captured() -> ts.Graph:
    model = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 1)))
    with ts.capture():
        loss = model(torch.ones(4, 3)).sum()
    return ts.graph(loss)


def test_dot_has_every_task_and_edge_once_and_a_cluster_per_module_call() -> None:
    pytest.importorskip("graphviz")
    graph = captured()
    source = graph.to_graphviz().source
    assert sorted(map(int, re.findall(r"^\tt(\d+) \[", source, re.M))) == list(range(len(graph)))
    assert re.findall(r"t(\d+) -> t(\d+)", source) == [(str(edge.task), str(edge.next_task)) for edge in graph.edges]
    assert sorted(map(int, re.findall(r"subgraph \"cluster_m(\d+)\"", source))) == [call.id for call in graph.calls]
    assert source.count("{") == source.count("}")


def test_tooltips_have_shapes_and_what_has_no_gradient_or_failed_is_a_node() -> None:
    pytest.importorskip("graphviz")
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    model[2].requires_grad_(False)
    graph = ts.graph(model, torch.ones(4, 3))
    source = graph.to_graphviz().source
    for task in graph.tasks:
        (tooltip,) = re.findall(rf'^\tt{task.id} \[.*tooltip="([^"]*)"', source, re.M)
        assert all(str(meta) in tooltip for meta in task.inputs)
    for each in graph.untracked:
        assert f'label="{each.name}"' in source
    with pytest.raises(RuntimeError) as error:
        ts.graph(model, torch.ones(4, 5))
    assert 'label="linear(4×5, 2×3, 2)"' in ts.graph(error.value).to_graphviz().source


def test_names_are_data_in_dot() -> None:
    pytest.importorskip("graphviz")
    leaf = torch.ones(2, requires_grad=True)
    source = ts.graph((leaf * 2).sum(), {'w"]; evil [label="\\N': leaf}).to_graphviz().source
    assert 'label="w\\"]; evil [label=\\"\\\\N"' in source


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs the program dot")
def test_dot_accepts_it() -> None:
    pytest.importorskip("graphviz")
    picture = captured().to_graphviz().pipe("svg").decode()
    assert picture.count('class="node"') == len(captured())


def test_without_the_package_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: object, **kwargs: object) -> object:
        if name == "graphviz":
            raise ModuleNotFoundError("No module named 'graphviz'")
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ModuleNotFoundError, match="pip install graphviz"):
        captured().to_graphviz()
