from __future__ import annotations

import torch
from torch import nn

from tapescope.inspector.graph.operations_and_calls import Facts


def test_modules_have_the_paths_that_torch_gives_them() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(nn.ReLU(), shared), shared, nn.ModuleDict({"a": nn.Sequential(nn.Tanh())}))
    model.register_module("nothing", None)
    model[0].register_module("parent", model)  # a circle
    _, paths = Facts().add_root(model)
    assert list(paths.items()) == [(part, path) for path, part in model.named_modules()]


def test_what_compile_wraps_a_module_in_is_not_in_a_path() -> None:
    model = nn.Sequential(torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager"))
    facts = Facts()
    _, paths = facts.add_root(model)
    assert set(paths.values()) == {"", "0", "0.0"}
    assert facts.leaf_name(model[0]._orig_mod[0].weight) == "0.0.weight"
