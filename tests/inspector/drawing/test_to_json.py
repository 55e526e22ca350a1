from __future__ import annotations

import json

import torch
from torch import nn

import tapescope as ts


def test_json_has_every_fact_of_the_graph() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    with ts.capture():
        loss = model(torch.ones(4, 3)).sum()
    graph = ts.graph(loss)
    content = json.loads(graph.to_json())
    assert (content["format"], content["version"]) == ("tapescope.graph", 1)
    assert [(task["id"], task["name"], task["kind"], task["parameter"], task["call"]) for task in content["tasks"]] == [
        (task.id, task.name, task.kind, task.parameter, task.call) for task in graph.tasks
    ]
    assert content["edges"] == [[edge.task, edge.output, edge.next_task, edge.input] for edge in graph.edges]
    assert content["roots"] == [[root.task, root.input] for root in graph.roots]
    assert [(call["path"], call["class"], call["parent"]) for call in content["calls"]] == [
        (call.path, call.class_name, call.parent) for call in graph.calls
    ]
    relu = next(task for task in content["tasks"] if task["name"] == "ReluBackward0")
    assert relu["inputs"] == [{"shape": [4, 2], "dtype": "torch.float32", "device": "cpu", "nbytes": 32}]
    assert relu["operation"] == "torch.nn.functional.relu"
    assert [(each["task"], each["storage"], each["storage_bytes"]) for each in content["saved"]] == [
        (each.task, each.storage, each.storage_bytes) for each in graph.saved
    ]


def test_sequence_numbers_are_strings_and_ranks_are_exact_in_javascript() -> None:
    content = json.loads(ts.graph((torch.ones(2, requires_grad=True) * 2).sum()).to_json())
    leaf = content["tasks"][-1]
    assert leaf["sequence_nr"] == "18446744073709551615"
    assert [task["rank"] for task in content["tasks"]] == list(range(len(content["tasks"])))
