"""The memory that existed before a forward equals the storages that weak references find, by kind and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import tapescope as ts
from tapescope.engine.memory.baseline import Baseline
from tapescope.tests.memory_meter.programs import PROGRAMS
from tapescope.tests.test_start_by_weak_references import Storages

NAMES = ("perceptron", "attention", "dropout", "tied_weights")
LOSS = 4  # bytes: the program keeps the loss of its last step


@pytest.mark.parametrize("name", NAMES)
def test_what_was_there_before_is_what_lives_of_the_program(name: str) -> None:
    with Storages() as storages:
        program = PROGRAMS[name]()
        program.step()
        program.step()
    alive = storages.alive_bytes() - LOSS
    run = ts.profile(program.make_loss)
    assert run.timeline.baseline.nbytes == alive
    assert run.timeline.peak_with_baseline_bytes == run.peak_bytes + alive
    with ts.capture(every_call=True):
        loss = program.make_loss()
    assert ts.simulate(ts.graph(loss)).baseline == ts.simulate(run.graph, footprints=run.footprints).baseline
    del loss
    assert ts.compare(program.make_loss, "heap", repetitions=1).before == run.timeline.baseline


def size(tensors: Sequence[Tensor]) -> int:
    return sum({each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors}.values())


def trained() -> tuple[nn.Module, Optimizer, Tensor, Callable[[], Tensor]]:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer, x = torch.optim.Adam(model.parameters()), torch.randn(32, 8)
    return model, optimizer, x, lambda: model(x.flatten(1)).square().mean()


@pytest.mark.parametrize("by", ["profile", "simulate", "memory=True"])
def test_it_has_the_bytes_of_each_kind(by: str) -> None:
    model, optimizer, x, make_loss = trained()
    make_loss().backward()
    optimizer.step()
    expected = {
        "parameters": size([*model.parameters()]),
        "buffers": size([*model.buffers()]),
        "gradients": size([each.grad for each in model.parameters() if each.grad is not None]),
        "optimizer state": size([each for state in optimizer.state.values() for each in state.values()]),
        "batch": size([x]),
    }
    if by == "profile":
        found = ts.profile(make_loss).timeline.baseline
    else:
        with ts.capture(every_call=True):
            loss = make_loss()
        if by == "simulate":
            found = ts.simulate(ts.graph(loss)).baseline
        else:
            found = ts.backward(loss, memory=True).timeline.baseline
    assert found.parts == expected
    optimizer.zero_grad()
    assert ts.profile(make_loss).timeline.baseline.grad_bytes == 0


def test_a_batch_of_which_nodes_save_a_part_counts_whole() -> None:
    weight, x = nn.Parameter(torch.randn(4)), torch.randn(64, 4)
    baseline = ts.profile(lambda: (weight * x[:8]).sum()).timeline.baseline
    assert baseline == Baseline({"parameters": 16, "batch": 1024})


def test_optimizers_of_other_models_are_not_of_it() -> None:
    _, others, _, other_loss = trained()
    other_loss().backward()
    others.step()
    _, _, _, make_loss = trained()
    assert "optimizer state" not in ts.profile(make_loss).timeline.baseline.parts


def test_a_file_keeps_it(tmp_path: object) -> None:
    run = ts.profile(trained()[3])
    path = f"{tmp_path}/run.json"
    run.save(path)
    found = ts.load(path)
    assert found.timeline.baseline == run.timeline.baseline
